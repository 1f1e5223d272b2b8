-- A mark of a dedup store. KEYS: mark. ARGV: verb, token, ms.
-- The value is 'c' and the token of who claims it, or 'd': done. Its expiry is the end of the
-- lease, or of the window, so that the server's clock is the only one.
-- claim returns -1: ours now, 0: done before, else how many ms are left of another's lease;
-- the others return 1, or 0: the token is not the current one.
local key, verb, token, ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local now = redis.call('GET', key)
if verb == 'claim' then
  if not now then
    redis.call('SET', key, 'c' .. token, 'PX', ms)
    return -1
  end
  if now == 'd' then return 0 end
  return math.max(1, redis.call('PTTL', key))
end
if now ~= 'c' .. token then return 0 end
if verb == 'extend' then
  redis.call('PEXPIRE', key, ms)
elseif verb == 'done' then
  redis.call('SET', key, 'd', 'PX', ms)
else
  redis.call('DEL', key)
end
return 1
