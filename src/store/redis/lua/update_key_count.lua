#!lua flags=allow-oom
-- Changes the expiry of an idempotency key in the key count of a client, or removes the key from the count.
--
-- KEYS[1]  sorted set of the idempotency keys of the client, see count_key.lua
-- ARGV[1]  the entry of the set: scope and idempotency key of the record
-- ARGV[2]  time until the record expires, in ms; 0 to remove the entry
-- ARGV[3]  if ARGV[2] is 0: empty to remove any entry; or how long a record is stored, in ms, to remove only the
--          entry of a claim
--
-- Returns 1.
--
-- A claim that is not won must not remove the entry of a record that another request has stored in the meantime. The
-- expiry distinguishes the two. A record expires at most ARGV[3] from now. A claim expires later, because its expiry
-- also includes the lease.

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
