-- Makes the stream of a shard. KEYS: log. Returns 1 if it was not there.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'stream' then return 0 end
if kind ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is a ' .. kind .. ' and not a stream')
end
redis.call('XGROUP', 'CREATE', KEYS[1], '~make', '0', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[1], '~make')
return 1
