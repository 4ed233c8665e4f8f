#!lua flags=allow-oom
-- Makes a claim hold longer.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  the keys of its scope
-- ARGV[1]  the token of the claim
-- ARGV[2]  how long it holds from now, in ms
-- ARGV[3]  the key, as its scope knows it
--
-- Returns 1, or 0 if there is no such claim any more.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function written(ms)
  return string.format('%.0f', ms)
end

local record = redis.call('HMGET', KEYS[1], 's', 'o', 'x')
local state, owner, keep = record[1], record[2], record[3]
if state ~= 'p' or owner ~= ARGV[1] then
  return 0
end
local lapse = now + tonumber(ARGV[2])
local expiry = lapse + tonumber(keep)
redis.call('HSET', KEYS[1], 'l', written(lapse))
redis.call('PEXPIREAT', KEYS[1], written(expiry))
redis.call('ZADD', KEYS[2], written(expiry), ARGV[3])
if redis.call('PEXPIREAT', KEYS[2], written(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], written(expiry), 'GT')
end
return 1
