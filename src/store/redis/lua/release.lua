#!lua flags=allow-oom
-- Ends a claim without a record.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  the keys of its scope
-- KEYS[3]  a mark that cancels this claim if it arrives later
-- ARGV[1]  the token of the claim
-- ARGV[2]  the key, as its scope knows it
-- ARGV[3]  the channel that notifies requests waiting on other gateways
-- ARGV[4]  the message: the record's name
-- ARGV[5]  how long a claim that is not here can still arrive, in ms; 0 if it cannot
--
-- Returns 1 if it ended a claim.
--
-- A claim whose reply was lost is cancelled by its token. The cancellation can overtake the claim itself, which
-- Redis may still read from the buffer of an abandoned connection: hence the mark.

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'w')
local state, owner, waited = record[1], record[2], record[3]
if state == 'p' and owner == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[2])
  if waited then
    -- The user may have no right to the channel. The claim has ended, and other gateways poll it.
    redis.pcall('PUBLISH', ARGV[3], ARGV[4])
  end
  return 1
end
if ARGV[5] ~= '0' then
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[5])
end
return 0
