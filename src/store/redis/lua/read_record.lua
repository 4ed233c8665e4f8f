#!lua flags=no-writes
-- Reads an idempotency record.
--
-- KEYS[1]  the record, see claim.lua
-- ARGV[1]  number of bytes of the response to return: 0 for none, -1 for all
--
-- Returns an empty array if there is no record, otherwise
--   the state; unknown if the lease of a claim has expired
--   the token of the claim
--   the fingerprint of the request
--   the time since the record entered the state, in ms
--   the time until the record expires, in ms
--   the size of the response, in bytes
--   if completed and requested: the first bytes of the response

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'f', 't', 'l')
local state, owner, fingerprint, since, lease_ends = unpack(record)
if not state then
  return {}
end
since = tonumber(since)
if state == 'p' and tonumber(lease_ends) <= now then
  state = 'u'
  since = tonumber(lease_ends)
end
local reply = {
  state, owner, fingerprint, math.max(0, now - since),
  redis.call('PTTL', KEYS[1]), redis.call('HSTRLEN', KEYS[1], 'a'),
}
local bytes = tonumber(ARGV[1])
if state == 'c' and bytes ~= 0 then
  reply[7] = string.sub(redis.call('HGET', KEYS[1], 'a'), 1, bytes)
end
return reply
