-- Hands out at most ARGV[3] entries of one group, without waiting.
-- KEYS: log, retry, sched, later.
-- ARGV: group, consumer, room, lease in ms ('' = do not reclaim), cursor of the log, cursor of the
-- retry stream, which comes first ('log' or 'retry').
-- Returns {now, due in ms or -1, cursor log, cursor retry, vanished ids, error or '', list};
-- list holds {0 log | 1 retry, id, deliveries, fields}.
if redis.replicate_commands then redis.replicate_commands() end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local group, me, room = ARGV[1], ARGV[2], tonumber(ARGV[3])
local names = {KEYS[1], KEYS[2]}
local list, cursors, gone, err, due = {}, {ARGV[5], ARGV[6]}, 0, '', -1

-- What is due goes to its stream first. Without memory an XADD is refused: the message
-- stays where it is, and the rest goes on, for only consuming makes room again.
local function move(from, to)
  for _, packed in ipairs(redis.call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, 200)) do
    local f = cmsgpack.unpack(packed)
    table.remove(f, 1)
    local res = redis.pcall('XADD', to, '*', unpack(f))
    if type(res) == 'table' and res.err then break end
    redis.call('ZREM', from, packed)
    -- Where one was there may be another soon, also where this was the last: the consumer
    -- must look as often as it does while it sees one wait.
    if due < 0 then due = 60000 end
  end
  local head = redis.call('ZRANGE', from, 0, 0, 'WITHSCORES')
  if head[2] then
    local wait = math.max(0, tonumber(head[2]) - now)
    if due < 0 or wait < due then due = wait end
  end
end
-- A stream that is not there is made by its consumer, with its group, and not by the way.
if redis.call('EXISTS', KEYS[1]) == 1 then move(KEYS[3], KEYS[1]) end
if redis.call('EXISTS', KEYS[2]) == 1 then move(KEYS[4], KEYS[2]) end

local function reclaim(which)
  local key = names[which + 1]
  local res = redis.pcall('XAUTOCLAIM', key, group, me, ARGV[4], cursors[which + 1], 'COUNT', room)
  if res.err then err = res.err return end
  cursors[which + 1] = res[1]
  gone = gone + #(res[3] or {})
  for _, e in ipairs(res[2]) do
    if e and e[2] then
      local p = redis.call('XPENDING', key, group, e[1], e[1], 1)
      list[#list + 1] = {which, e[1], p[1] and p[1][4] or 1, e[2]}
      room = room - 1
    end
  end
end

local function read(which)
  local res = redis.pcall('XREADGROUP', 'GROUP', group, me, 'COUNT', room, 'STREAMS', names[which + 1], '>')
  if not res then return end
  if res.err then err = res.err return end
  for _, e in ipairs(res[1][2]) do
    list[#list + 1] = {which, e[1], 1, e[2]}
    room = room - 1
  end
end

local order = ARGV[7] == 'retry' and {1, 0} or {0, 1}
if ARGV[4] ~= '' then
  for _, which in ipairs(order) do if room > 0 then reclaim(which) end end
end
for _, which in ipairs(order) do if room > 0 then read(which) end end
return {now, due, cursors[1], cursors[2], gone, err, list}
