-- Ends deliveries. ARGV: verb, round, then ids (ack), or ids and deliveries by turns (nack, return).
-- Returns -1: the shard is not ours, -2: a return of a round that is over, else the number of deleted
-- entries.
if not mine() then return -1 end
local verb, gone = ARGV[4], 0
if verb == 'ack' then
  redis.call('XACK', log, group, unpack(ARGV, 6))
  return 0
end
-- A message that was returned is handed out with the number that it had, so a late return could not
-- be told from one of that hand-out. The round tells: see shard_recover.
if verb == 'return' and redis.call('GET', lease) ~= prefix .. ARGV[5] then return -2 end
for i = 6, #ARGV, 2 do
  local p = redis.call('XPENDING', log, group, ARGV[i], ARGV[i], 1)[1]
  -- Anything else is what an earlier try of this very command has left, whose answer was lost.
  if p and p[2] == 'owner' and p[4] == tonumber(ARGV[i + 1]) then
    gone = gone + free(ARGV[i], verb == 'return' and p[4] - 1 or p[4])
  end
end
return gone
