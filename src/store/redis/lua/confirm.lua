#!lua flags=allow-oom
-- Writes the expiry of a record again, unchanged, for the WAIT that follows on this connection.
--
-- KEYS[1]  the record, see claim.lua
--
-- Returns 1, or 0 if there is no such record.
--
-- WAIT counts from the last write of its own connection, and the record may have been written on another. What
-- replicas have of this write they have of all writes before it. It takes no memory, so a full Redis accepts it.

local expiry = redis.call('PEXPIRETIME', KEYS[1])
if expiry < 0 then
  return 0
end
return redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', expiry))
