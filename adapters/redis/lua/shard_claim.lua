-- Takes a shard that no other member owns. ARGV: lease in ms, start of the group if it is not there.
-- Returns {1, fence, 1 if the group was made, deleted} or {0}: somebody owns it, or {-1}: no stream.
if taken() then return {0} end
local made = 0
if missing() then
  local res = redis.pcall('XGROUP', 'CREATE', log, group, ARGV[5])
  if res.err then
    if string.find(res.err, 'requires the key to exist', 1, true) then return {-1} end
    return res
  end
  made = 1
end
-- Greater than the last one and not less than the clock, so that it grows also over a flush, which
-- takes the last one away, and over a failover to a replica that has not heard of it.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local fence = string.format('%.0f', math.max(now, (tonumber(redis.call('GET', KEYS[3])) or 0) + 1))
redis.call('SET', KEYS[3], fence)
redis.call('SET', lease, member .. ' ' .. fence .. ' 0', 'PX', ARGV[4])
-- What the last owner had out and did not give back may have been tried: it counts.
return {1, fence, made, free_all(0)}
