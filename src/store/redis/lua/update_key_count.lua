#!lua flags=allow-oom
-- Changes the expiry of a key in the count of a client, or removes the key.
--
-- KEYS[1]  sorted set of the keys of the client, see admit.lua
-- ARGV[1]  the key: scope and key of the record
-- ARGV[2]  time until the record expires, in ms; 0 to remove the key
-- ARGV[3]  with 0: empty, or how long the record is stored, in ms, to remove the key only if it is that of a claim
--
-- Returns 1.
--
-- A claim that is not won must not remove the key of a record that another request has stored in the meantime. The
-- expiry distinguishes them: that of a record is at most ARGV[3] from now, and that of a claim also includes the lease.

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
