-- Adds an idempotency key to the key count of a client, unless the client has the maximum number of keys.
--
-- KEYS[1]  sorted set of the idempotency keys of the client, each with the expiry of its record, in ms since 1970
-- ARGV[1]  the entry of the set: scope and idempotency key of the record
-- ARGV[2]  time until the record of a claim expires, in ms
-- ARGV[3]  maximum number of idempotency keys of the client
--
-- Returns a result code and a time in ms
--   0  if the set already has the key
--   1  if the script has added the key
--   2  if the client has the maximum number of keys; with the time until the first of them expires, in ms

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function format_ms(ms)
  return string.format('%.0f', ms)
end

local counted = redis.call('ZSCORE', KEYS[1], ARGV[1])
if counted and tonumber(counted) > now then
  return {0, 0}
end
local since = '(' .. format_ms(now)
if redis.call('ZCOUNT', KEYS[1], since, '+inf') >= tonumber(ARGV[3]) then
  local first = redis.call('ZRANGEBYSCORE', KEYS[1], since, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {2, tonumber(first[2]) - now}
end

-- The first write must allocate memory, so that Redis rejects the script if it is out of memory.
local expiry = format_ms(now + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], expiry, ARGV[1])
if redis.call('PEXPIREAT', KEYS[1], expiry, 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[1], expiry, 'GT')
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', format_ms(now), 'LIMIT', 0, 8)
if #expired > 0 then
  redis.call('ZREM', KEYS[1], unpack(expired))
end
return {1, 0}
