-- Moves a group in one shard. ARGV: id. Returns 1 done, 0 the shard has an owner, -1 no such group.
if redis.call('EXISTS', lease) == 1 then return 0 end
if missing() then return -1 end
redis.call('XGROUP', 'DESTROY', log, group)
redis.call('XGROUP', 'CREATE', log, group, ARGV[4])
return 1
