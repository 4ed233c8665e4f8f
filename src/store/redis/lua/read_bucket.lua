-- Reads the bucket of a rate limit without charging it.
--
-- KEYS  the bucket
--
-- Returns its debt and the refill time of its last charge, each in seconds and nanoseconds. All are 0 if it is full.

local GIGA = 1000000000

local value = redis.call('GET', KEYS[1]) or ''
local full, refill = string.match(value, '^(%d+):(%d+):%d+$')
if not full then return {0, 0, 0, 0} end
local time = redis.call('TIME')
local s = string.sub(full, 1, -10) - time[1]
local ns = string.sub(full, -9) - time[2] * 1000
if ns < 0 then s, ns = s - 1, ns + GIGA end
if s < 0 then return {0, 0, 0, 0} end
return {s, ns, tonumber(string.sub(refill, 1, -10)) or 0, tonumber(string.sub(refill, -9))}
