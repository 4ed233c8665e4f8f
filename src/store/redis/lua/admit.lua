-- Counts a key of a client, unless the client has as many keys as it may have.
--
-- KEYS[1]  the keys of the client, each with the time its record expires, in ms
-- ARGV[1]  the key: the record's name
-- ARGV[2]  how long until the record of a claim expires, in ms
-- ARGV[3]  how many keys the client may have
--
-- Returns
--   0  the key was counted before
--   1  the key is counted now
--   2  the client has as many keys as it may have; with the time until one of them expires, in ms

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function written(ms)
  return string.format('%.0f', ms)
end

local counted = redis.call('ZSCORE', KEYS[1], ARGV[1])
if counted and tonumber(counted) > now then
  return {0}
end
local since = '(' .. written(now)
if redis.call('ZCOUNT', KEYS[1], since, '+inf') >= tonumber(ARGV[3]) then
  local first = redis.call('ZRANGEBYSCORE', KEYS[1], since, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {2, tonumber(first[2]) - now}
end

-- The first write takes memory, so that a full Redis rejects the script.
local expiry = written(now + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], expiry, ARGV[1])
if redis.call('PEXPIREAT', KEYS[1], expiry, 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[1], expiry, 'GT')
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', written(now), 'LIMIT', 0, 8)
if #expired > 0 then
  redis.call('ZREM', KEYS[1], unpack(expired))
end
return {1}
