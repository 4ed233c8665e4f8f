#!lua flags=allow-oom
-- Frees a key whose outcome is unknown.
--
-- KEYS[1]  the record, see claim.lua
-- KEYS[2]  the keys of its scope
-- ARGV[1]  the key, as its scope knows it
--
-- Returns 1, or 0 if it is not unknown.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local record = redis.call('HMGET', KEYS[1], 's', 'l')
local state, lapses = record[1], record[2]
if state == 'u' or (state == 'p' and tonumber(lapses) <= now) then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 1
end
return 0
