#!lua flags=allow-oom
-- Ends the claim of an idempotency key and stores its record. The flag allow-oom lets the script write when Redis is
-- out of memory, because an executed request must have a record.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  sorted set of the idempotency keys of the scope
-- ARGV[1]  the token of the claim
-- ARGV[2]  the new state of the record: c completed, u unknown, t tombstone
-- ARGV[3]  how long the record is stored, in ms
-- ARGV[4]  the fingerprint of the request
-- ARGV[5]  the idempotency key, without its scope
-- ARGV[6]  completed: the response
-- ARGV[7]  the client that sent the request, 8 bytes; empty if the keys of clients are not counted
--
-- Returns 1 if the record is stored, also by an earlier call; or 0 if another claim has the idempotency key.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function format_ms(ms)
  return string.format('%.0f', ms)
end

local record = redis.call('HMGET', KEYS[1], 's', 'o')
local state, owner = record[1], record[2]
if state then
  if owner ~= ARGV[1] then
    return 0
  end
  if state == ARGV[2] then
    return 1
  end
  -- Only a record in progress or unknown is replaced. A claim that became unknown can thus still store its outcome.
  if state ~= 'p' and state ~= 'u' then
    return 0
  end
end

-- The record is also written if Redis has none, for example after a restart without data, because the request was
-- executed.
local expiry = now + tonumber(ARGV[3])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 's', ARGV[2], 'f', ARGV[4], 'o', ARGV[1], 't', format_ms(now))
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'c', ARGV[7])
end
if ARGV[2] == 'c' then
  redis.call('HSET', KEYS[1], 'a', ARGV[6])
end
redis.call('PEXPIREAT', KEYS[1], format_ms(expiry))
redis.call('ZADD', KEYS[2], format_ms(expiry), ARGV[5])
if redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'GT')
end
return 1
