-- A member says that it lives. KEYS: members, a sorted set by the end of each one's heartbeat.
-- ARGV: member ('' = only look), ms until then. Returns the members, the oldest first: a name begins
-- with the time its bearer joined.
if redis.replicate_commands then redis.replicate_commands() end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[1] ~= '' then
  -- Without memory this fails, and the others are left alone too: they cannot say it either.
  redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local names = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(names)
return names
