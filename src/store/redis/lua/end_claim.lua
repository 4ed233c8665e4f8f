#!lua flags=allow-oom
-- Ends a claim and stores its record. Redis accepts the script when it is out of memory, because an executed request
-- must have a record.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  sorted set of the keys of the scope
-- ARGV[1]  the token of the claim
-- ARGV[2]  the state of the record: c completed, u unknown, t tombstone
-- ARGV[3]  how long the record is stored, in ms
-- ARGV[4]  the fingerprint of the request
-- ARGV[5]  the key, without its scope
-- ARGV[6]  the channel that notifies requests waiting on other gateways
-- ARGV[7]  the message: scope and key of the record
-- ARGV[8]  completed: the response
-- ARGV[9]  the client that sent the request, 8 bytes; empty if the keys of clients are not counted
--
-- Returns 1, also if the record was already stored; or 0 if another claim has the key.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function format_ms(ms)
  return string.format('%.0f', ms)
end

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'w')
local state, owner, waited = record[1], record[2], record[3]
if state then
  if owner ~= ARGV[1] then
    return 0
  end
  if state == ARGV[2] then
    return 1
  end
  -- The claim whose outcome is unknown can still store it. Other records do not change.
  if state ~= 'p' and state ~= 'u' then
    return 0
  end
end

-- A record that Redis has lost in a restart is written too, because the request was executed.
local expiry = now + tonumber(ARGV[3])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 's', ARGV[2], 'f', ARGV[4], 'o', ARGV[1], 't', format_ms(now))
if ARGV[9] ~= '' then
  redis.call('HSET', KEYS[1], 'c', ARGV[9])
end
if ARGV[2] == 'c' then
  redis.call('HSET', KEYS[1], 'a', ARGV[8])
end
redis.call('PEXPIREAT', KEYS[1], format_ms(expiry))
redis.call('ZADD', KEYS[2], format_ms(expiry), ARGV[5])
if redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'GT')
end
if waited then
  -- The Redis user may have no permission for the channel. The record is written, and other gateways poll it.
  redis.pcall('PUBLISH', ARGV[6], ARGV[7])
end
return 1
