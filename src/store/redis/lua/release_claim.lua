#!lua flags=allow-oom
-- Ends a claim without a record.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  sorted set of the keys of the scope
-- KEYS[3]  marker that cancels this claim if it arrives later
-- ARGV[1]  the token of the claim
-- ARGV[2]  the key, without its scope
-- ARGV[3]  the channel that notifies requests waiting on other gateways
-- ARGV[4]  the message: scope and key of the record
-- ARGV[5]  how long a claim that Redis does not have can still arrive, in ms; 0 if it cannot
--
-- Returns 1 if the script ended a claim, otherwise 0.
--
-- A gateway that lost the reply to a claim cancels the claim by its token. The cancellation can arrive before the
-- claim, which Redis may still read from the buffer of an abandoned connection. The marker cancels such a late claim.

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'w')
local state, owner, waited = record[1], record[2], record[3]
if state == 'p' and owner == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[2])
  if waited then
    -- The Redis user may have no permission for the channel. The claim has ended, and other gateways poll it.
    redis.pcall('PUBLISH', ARGV[3], ARGV[4])
  end
  return 1
end
if ARGV[5] ~= '0' then
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[5])
end
return 0
