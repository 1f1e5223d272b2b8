-- Keeps one message until it is due. KEYS: sorted set, the stream it will go to.
-- ARGV: delay in ms, token that makes the member unique, then fields and values.
-- Returns 0 if there is no such stream.
if redis.replicate_commands then redis.replicate_commands() end
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local t = redis.call('TIME')
local f = {}
for i = 2, #ARGV do f[#f + 1] = ARGV[i] end
redis.call('ZADD', KEYS[1], t[1] * 1000 + math.ceil(t[2] / 1000) + ARGV[1], cmsgpack.pack(f))
return 1
