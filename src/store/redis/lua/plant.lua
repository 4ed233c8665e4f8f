-- Shows that scripts run here and may write, and plants the fleet's secret if there is none.
--
-- KEYS[1]  the secret
-- KEYS[2]  a mark that somebody was here
-- ARGV[1]  the secret to be planted
-- ARGV[2]  how long the mark stays, in ms
--
-- Returns the secret there is. The time is asked for because all other scripts do.

redis.call('TIME')
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
