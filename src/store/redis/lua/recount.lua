#!lua flags=allow-oom
-- Counts a key of a client with another expiry, or no longer.
--
-- KEYS[1]  the keys of the client, see admit.lua
-- ARGV[1]  the key: the record's name
-- ARGV[2]  how long until its record expires, in ms; 0 to count it no longer
-- ARGV[3]  with 0: empty, or how long the record is to be stored, in ms, if only a claim is to be removed
--
-- Returns 1.
--
-- A claim that is not won must not remove the key of a record that another request has stored meanwhile. A record
-- expires within the time that it is stored; a claim is counted with its lease in addition.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if ARGV[2] == '0' then
  local counted = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if counted and (ARGV[3] == '' or tonumber(counted) > now + tonumber(ARGV[3])) then
    redis.call('ZREM', KEYS[1], ARGV[1])
  end
  return 1
end
local expiry = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], expiry, ARGV[1])
if redis.call('PEXPIREAT', KEYS[1], expiry, 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[1], expiry, 'GT')
end
return 1
