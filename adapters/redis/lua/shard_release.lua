-- Gives a shard back. What is out goes to the next owner and was not tried.
-- Returns the number of deleted entries; -1 if the shard is not ours.
if not mine() then return -1 end
local gone = 0
if not missing() then gone = free_all(-1) end
redis.call('DEL', lease)
return gone
