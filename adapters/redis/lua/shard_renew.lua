-- Renews a lease that has not ended. PEXPIRE works also where the server has no memory left: the
-- owners must go on then, for only consuming makes room. ARGV: lease in ms.
-- Returns 1 done, 0 it is not ours any more, -1 the stream or the group is gone.
if not mine() then return 0 end
if missing() then return -1 end
redis.call('PEXPIRE', lease, ARGV[4])
return 1
