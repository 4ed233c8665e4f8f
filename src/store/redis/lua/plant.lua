-- Shows that scripts run here and can write. Plants the fleet's secret and the format of its records if there is no
-- secret.
--
-- KEYS[1]  the secret
-- KEYS[2]  a mark that a gateway was here
-- KEYS[3]  the format of the records
-- ARGV[1]  the secret to plant
-- ARGV[2]  how long the mark stays, in ms
-- ARGV[3]  the format to plant
--
-- Returns the stored secret and the stored format. Only format 1 had a secret without a format. The script calls TIME
-- because all other scripts do.

redis.call('TIME')
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  redis.call('SET', KEYS[3], ARGV[3])
end
return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])}
