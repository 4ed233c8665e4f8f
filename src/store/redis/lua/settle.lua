#!lua flags=allow-oom
-- Ends a claim with a record. A full Redis accepts it: what was executed must be on record.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  the keys of its scope
-- ARGV[1]  the token of the claim
-- ARGV[2]  the state of the record: c completed, u unknown, t tombstone
-- ARGV[3]  how long the record is stored, in ms
-- ARGV[4]  the fingerprint of the request
-- ARGV[5]  the key, as its scope knows it
-- ARGV[6]  the channel that notifies requests waiting on other gateways
-- ARGV[7]  the message: the record's name
-- ARGV[8]  completed: the response
-- ARGV[9]  the client that sent the request, 8 bytes; empty if its keys are not counted
--
-- Returns 1, also if it was done before; or 0 if another claim has the key.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function written(ms)
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
  -- An unknown outcome can still become known to its own claim. No other record changes.
  if state ~= 'p' and state ~= 'u' then
    return 0
  end
end

-- A record that a restart of Redis has lost is written too: the request was executed.
local expiry = now + tonumber(ARGV[3])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 's', ARGV[2], 'f', ARGV[4], 'o', ARGV[1], 't', written(now))
if ARGV[9] ~= '' then
  redis.call('HSET', KEYS[1], 'c', ARGV[9])
end
if ARGV[2] == 'c' then
  redis.call('HSET', KEYS[1], 'a', ARGV[8])
end
redis.call('PEXPIREAT', KEYS[1], written(expiry))
redis.call('ZADD', KEYS[2], written(expiry), ARGV[5])
if redis.call('PEXPIREAT', KEYS[2], written(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], written(expiry), 'GT')
end
if waited then
  -- The user may have no right to the channel. The record is written, and other gateways poll it.
  redis.pcall('PUBLISH', ARGV[6], ARGV[7])
end
return 1
