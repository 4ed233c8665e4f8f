#!lua flags=allow-oom
-- Sets the expiry of a record to its current value, for the WAIT that follows on this connection.
--
-- KEYS[1]  the record, see claim.lua
--
-- Returns 1, or 0 if the record does not exist.
--
-- WAIT covers only writes on its own connection, and another connection may have written the record. A replica that has
-- this write has all earlier writes too. The write allocates no memory, so Redis accepts it when it is out of memory.

local expiry = redis.call('PEXPIRETIME', KEYS[1])
if expiry < 0 then
  return 0
end
return redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', expiry))
