-- Takes a consumer out of its group. XGROUP DELCONSUMER throws away what the consumer still
-- has pending, so the check and the deed are one script. KEYS: log, retry. ARGV: group, consumer.
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then
    local p = redis.pcall('XPENDING', key, ARGV[1], '-', '+', 1, ARGV[2])
    if not p.err and #p == 0 then redis.pcall('XGROUP', 'DELCONSUMER', key, ARGV[1], ARGV[2]) end
  end
end
return 1
