-- In front of every script of one shard and group.
-- KEYS: log, lease, fence. ARGV: group, member, fence (or ''), then the script's own.
-- The lease is a string "member fence round" that expires; the fence outlives it. A round ends
-- when an answer to a read was lost: see shard_recover.
-- What the owner has out is pending with the consumer 'owner', what is to come again with '~free'.
-- One name for all owners: the lease tells who that is, and no name of a dead one stays behind.
if redis.replicate_commands then redis.replicate_commands() end
local log, lease, group, member = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local prefix = member .. ' ' .. ARGV[3] .. ' '
local function mine()
  return string.sub(redis.call('GET', lease) or '', 1, #prefix) == prefix
end

-- Whether another member has the shard.
local function taken()
  local owner = redis.call('GET', lease)
  return owner and string.sub(owner, 1, #member + 1) ~= member .. ' '
end

local function missing()
  return redis.pcall('XPENDING', log, group).err
end

-- Lets the next read have one entry. Returns 1 if the entry was deleted.
local function free(id, count)
  local res = redis.call('XCLAIM', log, group, '~free', 0, id, 'RETRYCOUNT', math.max(0, count), 'JUSTID')
  if #res > 0 then return 0 end
  redis.call('XACK', log, group, id)
  return 1
end

-- Lets the next owner have all that is out, and adds change to the counts.
local function free_all(change)
  local gone = 0
  while true do
    local p = redis.call('XPENDING', log, group, '-', '+', 500, 'owner')
    if #p == 0 then return gone end
    for _, e in ipairs(p) do gone = gone + free(e[1], e[4] + change) end
  end
end
