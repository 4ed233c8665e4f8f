#!lua flags=allow-oom
-- Ends a claim as if it had never been.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  the keys of its scope
-- KEYS[3]  what keeps this claim from being made, if it comes here later
-- ARGV[1]  the token of the claim
-- ARGV[2]  the key, as its scope knows it
-- ARGV[3]  the channel on which those who wait elsewhere are told
-- ARGV[4]  what they are told: the record's name
-- ARGV[5]  how long a claim that is not here may still come, in ms; 0 if it cannot
--
-- Returns 1 if it ended a claim.
--
-- A claim whose answer was lost is called off by its token. That may overtake the claim itself, which can
-- sit in a connection that nobody listens to any more until Redis gets round to it: hence the mark.

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'w')
local state, owner, waited = record[1], record[2], record[3]
if state == 'p' and owner == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[2])
  if waited then
    redis.call('PUBLISH', ARGV[3], ARGV[4])
  end
  return 1
end
if ARGV[5] ~= '0' then
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[5])
end
return 0
