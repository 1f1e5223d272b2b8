-- Ends deliveries. ARGV: verb, then ids (ack), or ids and deliveries by turns (nack, return).
-- Returns -1: the shard is not ours, else the number of deleted entries.
if not mine() then return -1 end
local verb, gone = ARGV[4], 0
if verb == 'ack' then
  redis.call('XACK', log, group, unpack(ARGV, 5))
  return 0
end
for i = 5, #ARGV, 2 do
  local p = redis.call('XPENDING', log, group, ARGV[i], ARGV[i], 1)[1]
  -- Anything else is what an earlier try of this very command has left, whose answer was lost.
  if p and p[2] == 'owner' and p[4] == tonumber(ARGV[i + 1]) then
    gone = gone + free(ARGV[i], verb == 'return' and p[4] - 1 or p[4])
  end
end
return gone
