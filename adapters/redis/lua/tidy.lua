-- Takes the consumers out of a group that have not asked for long and have nothing pending: they
-- were killed. One that lives after all comes back with its next read. The check and the deed are
-- one script, for XGROUP DELCONSUMER throws away what a consumer has pending.
-- KEYS: log, retry. ARGV: group, idle in ms. Returns how many.
local n = 0
for _, key in ipairs(KEYS) do
  local list = redis.pcall('XINFO', 'CONSUMERS', key, ARGV[1])
  for _, flat in ipairs(list.err and {} or list) do
    local c = {}
    for i = 1, #flat, 2 do c[flat[i]] = flat[i + 1] end
    if c['name'] ~= '~free' and c['pending'] == 0 and c['idle'] > tonumber(ARGV[2]) then
      redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], c['name'])
      n = n + 1
    end
  end
end
return n
