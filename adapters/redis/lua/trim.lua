-- Gives back the memory of what every group has done with: all before the lowest of their
-- pending and last delivered ids. Never past a pending one. KEYS: log. Returns the number.
local function less(a, b)
  local am, as = string.match(a, '(%d+)-(%d+)')
  local bm, bs = string.match(b, '(%d+)-(%d+)')
  am, bm = tonumber(am), tonumber(bm)
  return am < bm or am == bm and tonumber(as) < tonumber(bs)
end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local floor
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local g = {}
  for i = 1, #flat, 2 do g[flat[i]] = flat[i + 1] end
  local low = g['last-delivered-id']
  if g['pending'] > 0 then
    local first = redis.call('XPENDING', KEYS[1], g['name'])[2]
    if first and less(first, low) then low = first end
  end
  if not floor or less(low, floor) then floor = low end
end
if not floor then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', floor)
