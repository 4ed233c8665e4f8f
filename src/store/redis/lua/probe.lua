-- Checks that scripts can run and write. Stores the secret of the fleet and the record format if there is no secret.
--
-- KEYS[1]  the secret
-- KEYS[2]  a key that only tests the write
-- KEYS[3]  the record format
-- ARGV[1]  the secret to store
-- ARGV[2]  expiry of the test key, in ms
-- ARGV[3]  the format to store
--
-- Returns the stored secret and the stored format. Only format 1 had a secret without a format. The script calls TIME
-- because the other scripts need the permission for it.

redis.call('TIME')
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  redis.call('SET', KEYS[3], ARGV[3])
end
return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])}
