#!lua flags=allow-oom
-- Writes the current expiry of an idempotency record again, so that the following WAIT on this connection covers it.
--
-- KEYS[1]  the record, see claim.lua
--
-- Returns 1, or 0 if the record does not exist.
--
-- WAIT covers only writes on its own connection, but another connection can have written the record. A replica that has
-- this write also has all earlier writes. The write allocates no memory, so Redis accepts it even without free memory.

local expiry = redis.call('PEXPIRETIME', KEYS[1])
if expiry < 0 then
  return 0
end
return redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', expiry))
