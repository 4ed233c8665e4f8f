#!lua flags=allow-oom
-- Deletes the record of an idempotency key whose outcome is unknown, so that the key can be claimed again.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  sorted set of the idempotency keys of the scope
-- ARGV[1]  the idempotency key, without its scope
--
-- Returns 1 and the client whose count includes the key, if any; or 0 and nil if the outcome is not unknown.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local record = redis.call('HMGET', KEYS[1], 's', 'l', 'c')
local state, lease_ends, client = unpack(record)
if state == 'u' or (state == 'p' and tonumber(lease_ends) <= now) then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  return {1, client}
end
return {0, false}
