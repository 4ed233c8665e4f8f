-- Checks that scripts can run and write. If Redis has no fleet secret, stores a secret and the record format.
--
-- KEYS[1]  the fleet secret
-- KEYS[2]  a Redis key that the script writes only as a test
-- KEYS[3]  the record format
-- ARGV[1]  the secret to store
-- ARGV[2]  expiry of the test key, in ms
-- ARGV[3]  the record format to store
--
-- Returns the stored secret and the stored format. A secret without a format means format 1. The script calls TIME,
-- because the other scripts need the permission for this command.

redis.call('TIME')
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  redis.call('SET', KEYS[3], ARGV[3])
end
return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])}
