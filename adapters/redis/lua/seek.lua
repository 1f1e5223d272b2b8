-- Moves a group. What it failed before belongs to the old position and goes. KEYS: log, retry,
-- later. ARGV: group, id, idle in ms under which a consumer counts as a member.
-- Returns the number of members, if there are any; -1 if there is no such group; 0 done.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local members = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if members.err then return -1 end
local n = 0
for _, flat in ipairs(members) do
  local c = {}
  for i = 1, #flat, 2 do c[flat[i]] = flat[i + 1] end
  if c['name'] ~= '~free' and c['idle'] < tonumber(ARGV[3]) then n = n + 1 end
end
if n > 0 then return n end
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2])
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('XGROUP', 'CREATE', KEYS[2], ARGV[1], '0', 'MKSTREAM')
return 0
