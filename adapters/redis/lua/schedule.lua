-- Keeps one message until it is due. KEYS: sorted set, the stream it will go to.
-- ARGV: delay in ms, token that makes the member unique, then fields and values.
-- Returns 0 if there is no such stream.
if redis.replicate_commands then redis.replicate_commands() end
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local t = redis.call('TIME')
local f = {}
for i = 2, #ARGV do f[#f + 1] = ARGV[i] end
local packed = cmsgpack.pack(f)
redis.call('ZADD', KEYS[1], t[1] * 1000 + math.ceil(t[2] / 1000) + ARGV[1], packed)
-- Who waits for the one that was the first so far must hear of it. A login that may not publish
-- leaves it to the consumers' own looks.
if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == packed then redis.pcall('PUBLISH', KEYS[1], '') end
return 1
