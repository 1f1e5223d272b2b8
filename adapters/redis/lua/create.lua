-- Makes a destination. KEYS: log, meta, gone. ARGV: shape, layout version.
-- Returns {made, shape, version}: what is there now.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'stream' then
  return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is a ' .. kind .. ' and not a stream')
end
local made = 0
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('HSET', KEYS[2], 'shape', ARGV[1], 'version', ARGV[2])
  made = 1
end
local shape = redis.call('HGET', KEYS[2], 'shape')
if shape == ARGV[1] then
  redis.call('DEL', KEYS[3])
  if redis.call('EXISTS', KEYS[1]) == 0 then
    -- The only way to an empty stream is through a group.
    redis.call('XGROUP', 'CREATE', KEYS[1], '~make', '0', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', KEYS[1], '~make')
    made = 1
  end
end
return {made, shape, redis.call('HGET', KEYS[2], 'version')}
