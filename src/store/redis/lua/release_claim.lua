#!lua flags=allow-oom
-- Ends the claim of an idempotency key and deletes its record.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  sorted set of the idempotency keys of the scope
-- KEYS[3]  marker that cancels this claim if it arrives later
-- ARGV[1]  the token of the claim
-- ARGV[2]  the idempotency key, without its scope
-- ARGV[3]  how long a claim that is not in Redis can still arrive, in ms; 0 if it cannot
--
-- Returns 1 if the script ended a claim, otherwise 0.
--
-- A gateway that lost the reply to a claim cancels the claim by its token. The cancellation can arrive before the
-- claim, because Redis can still read the claim from the buffer of an abandoned connection. The marker cancels such a
-- late claim.

local record = redis.call('HMGET', KEYS[1], 's', 'o')
local state, owner = record[1], record[2]
if state == 'p' and owner == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[2])
  return 1
end
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[3])
end
return 0
