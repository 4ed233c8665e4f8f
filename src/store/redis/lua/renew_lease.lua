#!lua flags=allow-oom
-- Extends the lease of a claim of an idempotency key.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  sorted set of the idempotency keys of the scope
-- ARGV[1]  the token of the claim
-- ARGV[2]  duration of the lease from now, in ms
-- ARGV[3]  the idempotency key, without its scope
--
-- Returns 1, or 0 if the claim no longer exists.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function format_ms(ms)
  return string.format('%.0f', ms)
end

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'x')
local state, owner, ttl = record[1], record[2], record[3]
if state ~= 'p' or owner ~= ARGV[1] then
  return 0
end
local lease_end = now + tonumber(ARGV[2])
local expiry = lease_end + tonumber(ttl)
redis.call('HSET', KEYS[1], 'l', format_ms(lease_end))
redis.call('PEXPIREAT', KEYS[1], format_ms(expiry))
redis.call('ZADD', KEYS[2], format_ms(expiry), ARGV[3])
if redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'GT')
end
return 1
