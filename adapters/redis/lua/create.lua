-- Makes a destination. KEYS: meta, gone, log (not for a keyed one, whose streams are in other
-- slots: see stream.lua). ARGV: shape, layout version, partitions.
-- Returns {made, shape, version, partitions}: what is there now.
if KEYS[3] then
  local kind = redis.call('TYPE', KEYS[3]).ok
  if kind ~= 'none' and kind ~= 'stream' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[3] .. ' is a ' .. kind .. ' and not a stream')
  end
end
local made = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'shape', ARGV[1], 'version', ARGV[2], 'partitions', ARGV[3])
  made = 1
end
local have = redis.call('HMGET', KEYS[1], 'shape', 'version', 'partitions')
if have[1] == ARGV[1] and (have[3] or '0') == ARGV[3] then
  redis.call('DEL', KEYS[2])
  if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then
    -- The only way to an empty stream is through a group.
    redis.call('XGROUP', 'CREATE', KEYS[3], '~make', '0', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', KEYS[3], '~make')
    made = 1
  end
end
return {made, have[1], have[2], have[3] or '0'}
