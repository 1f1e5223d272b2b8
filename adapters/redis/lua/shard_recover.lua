-- After a read whose answer was lost: lets the next read have what that one took. It may not even
-- have run yet. Run after this, it would take messages that nobody knows of, and the next read would
-- hand out those behind them; so a new round begins, in which it does nothing. The same after a return
-- whose answer was lost: the message goes back by this, and that return is over.
-- ARGV: round, then the ids that the owner knows it has out.
-- Returns the number of deleted entries; -1: the shard is not ours.
if not mine() then return -1 end
-- An earlier try of this, late: it does not know what is out by now.
if tonumber(string.sub(redis.call('GET', lease), #prefix + 1)) >= tonumber(ARGV[4]) then return -1 end
redis.call('SET', lease, prefix .. ARGV[4], 'KEEPTTL')
local known = {}
for i = 5, #ARGV do known[ARGV[i]] = true end
local gone, from = 0, '-'
while true do
  local p = redis.call('XPENDING', log, group, from, '+', 500, 'owner')
  for _, e in ipairs(p) do
    if not known[e[1]] then gone = gone + free(e[1], e[4] - 1) end
    from = '(' .. e[1]
  end
  if #p < 500 then return gone end
end
