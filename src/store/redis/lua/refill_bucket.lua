-- Refills the bucket of a rate limit.
--
-- KEYS  the bucket
--
-- Returns the number of deleted Redis keys. A full bucket is not stored.

return redis.call('DEL', KEYS[1])
