-- Ends or extends deliveries of one stream, each only if its lease is still ours: neither XACK
-- nor XCLAIM has such a condition, so an owner that comes late would take the message away
-- from the one that has it now.
-- KEYS: the stream, retry stream, later.
-- ARGV: verb, group, consumer, '1' if the stream is the retry stream, lease in ms, count of
-- arguments per delivery, then per delivery: id, deliveries, delay or idle in ms, error, tries, token.
-- Returns per delivery 1 done, 0 lost, 2 the entry is gone, 3 no memory for another copy: then the
-- original stays as it was.
if redis.replicate_commands then redis.replicate_commands() end
local verb, group, me, isretry = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local src, out = KEYS[1], {}

local function finish(id)
  redis.call('XACK', src, group, id)
  if isretry then redis.call('XDEL', src, id) end
end

local function again(i, id)
  local entry = redis.call('XRANGE', src, id, id)[1]
  if not entry then
    finish(id)
    return 2
  end
  local f, origin = {}, id
  for j = 1, #entry[2], 2 do
    local name, value = entry[2][j], entry[2][j + 1]
    if name == 'o' then origin = value
    elseif name ~= 'a' and name ~= 'e' then
      f[#f + 1] = name
      f[#f + 1] = value
    end
  end
  for _, v in ipairs({'a', ARGV[i + 4], 'o', origin, 'e', ARGV[i + 3]}) do f[#f + 1] = v end
  local delay, res = tonumber(ARGV[i + 2]), nil
  if delay > 0 then
    local t = redis.call('TIME')
    table.insert(f, 1, ARGV[i + 5])
    local packed = cmsgpack.pack(f)
    res = redis.pcall('ZADD', KEYS[3], t[1] * 1000 + math.ceil(t[2] / 1000) + delay, packed)
    if redis.call('ZRANGE', KEYS[3], 0, 0)[1] == packed then redis.pcall('PUBLISH', KEYS[3], '') end
  else
    res = redis.pcall('XADD', KEYS[2], '*', unpack(f))
  end
  if type(res) == 'table' and res.err then return 3 end
  finish(id)
  return 1
end

for i = 6, #ARGV, 6 do
  local id = ARGV[i]
  local p = redis.call('XPENDING', src, group, id, id, 1)[1]
  local res = 0
  -- A lease that has ended is lost, taken over or not: the next owner may be on his way.
  if p and p[2] == me and p[3] < tonumber(ARGV[5]) and p[4] == tonumber(ARGV[i + 1]) then
    res = 1
    if verb == 'ack' then
      finish(id)
    elseif verb == 'nack' then
      res = again(i, id)
    elseif verb == 'return' then
      redis.call('XCLAIM', src, group, '~free', 0, id, 'IDLE', ARGV[5], 'RETRYCOUNT', p[4] - 1, 'JUSTID')
    else
      -- The count is the fence, so it is said. JUSTID alone leaves it, but not on every server
      -- that speaks the protocol.
      redis.call('XCLAIM', src, group, me, 0, id, 'IDLE', ARGV[i + 2], 'RETRYCOUNT', p[4], 'JUSTID')
    end
  end
  out[#out + 1] = res
end
return out
