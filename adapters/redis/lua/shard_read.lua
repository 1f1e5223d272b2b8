-- Hands out at most ARGV[4] entries, in the order of the stream: first what was out before and
-- comes again, then what is new. ARGV[5]: round.
-- Returns {0}: the shard is not ours, or the round is over, or {1, 1 if there may be more, last id of the stream,
-- deleted, list of {id, deliveries, fields}}.
if redis.call('GET', lease) ~= prefix .. ARGV[5] then return {0} end
local room, list, gone = tonumber(ARGV[4]), {}, 0
for _, e in ipairs(redis.call('XPENDING', log, group, '-', '+', room, '~free')) do
  local res = redis.call('XCLAIM', log, group, 'owner', 0, e[1])
  if res[1] and res[1][2] then
    list[#list + 1] = {e[1], e[4] + 1, res[1][2]}
  else
    redis.call('XACK', log, group, e[1])
    gone = gone + 1
  end
  room = room - 1
end
if room > 0 then
  local res = redis.call('XREADGROUP', 'GROUP', group, 'owner', 'COUNT', room, 'STREAMS', log, '>')
  for _, e in ipairs(res and res[1][2] or {}) do
    list[#list + 1] = {e[1], 1, e[2]}
    room = room - 1
  end
end
local last, info = '0-0', redis.call('XINFO', 'STREAM', log)
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then last = info[i + 1] end
end
return {1, room == 0 and 1 or 0, last, gone, list}
