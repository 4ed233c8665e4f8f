#!lua flags=no-writes
-- Says what there is under a key.
--
-- KEYS[1]  the record, see claim.lua
-- ARGV[1]  how many bytes of its response to return: 0 for none, -1 for all
--
-- Returns nothing if there is none, or
--   its state, a claim that has lapsed being unknown
--   the token of the claim that led to it
--   the fingerprint of the request
--   for how long it has been in that state, in ms
--   how long until it expires, in ms
--   the size of its answer
--   completed, and requested: the first bytes of the response

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'f', 't', 'l')
local state, owner, fingerprint, since, lapses = unpack(record)
if not state then
  return {}
end
since = tonumber(since)
if state == 'p' and tonumber(lapses) <= now then
  state = 'u'
  since = tonumber(lapses)
end
local peeked = {
  state, owner, fingerprint, math.max(0, now - since),
  redis.call('PTTL', KEYS[1]), redis.call('HSTRLEN', KEYS[1], 'a'),
}
local bytes = tonumber(ARGV[1])
if state == 'c' and bytes ~= 0 then
  peeked[7] = string.sub(redis.call('HGET', KEYS[1], 'a'), 1, bytes)
end
return peeked
