-- Charges the rate limit buckets of one request. Enforced buckets are charged all or none. Each bucket of a shadow
-- limit is charged independently.
--
-- KEYS  the buckets, the enforced ones first
-- ARGV  the number of enforced buckets; then for each bucket
--         the maximum debt after a charge, in seconds and nanoseconds: the refill time of an empty bucket plus the
--         longest delay of a request
--         the charge, in seconds and nanoseconds
--       then, only if the gateway charged some of these buckets without Redis, for each bucket
--         the minimum debt before the charge, in seconds and nanoseconds
--
-- Returns whether the enforced buckets were charged (1 or 0), the reply of TIME in seconds and microseconds, and for
-- each bucket its debt before the charge, in seconds and nanoseconds.
--
-- The value of a bucket is the time at which it is full, in nanoseconds since 1970. Its debt is the time until then. A
-- full bucket is not stored. The script computes with separate seconds and nanoseconds, because Lua numbers are exact
-- only up to 2^53, which is less than these times. The Redis key of a bucket includes its quota, so all gateways pass
-- the same maximum debt for it.

local GIGA = 1000000000
local call, sub = redis.call, string.sub

local time = call('TIME')
local now_s, now_ns = tonumber(time[1]), time[2] * 1000
local enforced = tonumber(ARGV[1])
local stored = call('MGET', unpack(KEYS))

local reply = {1, now_s, tonumber(time[2])}
local after_s, after_ns = {}, {}
local charged_s, charged_ns = {}, {}
for i = 1, #KEYS do
  local at = 4 * i - 2
  local most_s, most_ns = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local s, ns = 0, 0
  local full = stored[i] or ''
  local full_s, full_ns = tonumber(sub(full, 1, -10)), tonumber(sub(full, -9))
  if full_s and full_ns then
    s, ns = full_s - now_s, full_ns - now_ns
    if ns < 0 then s, ns = s - 1, ns + GIGA end
    if s < 0 then s, ns = 0, 0 end
  end
  local least_s, least_ns = tonumber(ARGV[4 * #KEYS + 2 * i]), tonumber(ARGV[4 * #KEYS + 2 * i + 1])
  if least_s and (least_s > s or (least_s == s and least_ns > ns)) then
    -- The reported debt is written even if the request is rejected, because the gateway reports it only once.
    s, ns = least_s, least_ns
    after_s[i], after_ns[i] = s, ns
  end
  if s > most_s or (s == most_s and ns > most_ns) then
    -- The debt is reduced to the maximum: a larger debt means that the clock of Redis was set back. It is written even
    -- if the request is rejected. Otherwise the bucket would reject requests until the clock has caught up.
    s, ns = most_s, most_ns
    after_s[i], after_ns[i] = s, ns
  end
  reply[2 * i + 2], reply[2 * i + 3] = s, ns

  s, ns = s + ARGV[at + 2], ns + ARGV[at + 3]
  if ns >= GIGA then s, ns = s + 1, ns - GIGA end
  if s < most_s or (s == most_s and ns <= most_ns) then
    charged_s[i], charged_ns[i] = s, ns
  elseif i <= enforced then
    reply[1] = 0
  end
end

for i = 1, #KEYS do
  if charged_s[i] and (reply[1] == 1 or i > enforced) then
    after_s[i], after_ns[i] = charged_s[i], charged_ns[i]
  end
  if after_s[i] then
    local s, ns = now_s + after_s[i], now_ns + after_ns[i]
    if ns >= GIGA then s, ns = s + 1, ns - GIGA end
    -- The Redis key expires in the first millisecond in which the bucket is full.
    local until_ms = s * 1000 + math.floor(ns / 1000000) + 1
    call('SET', KEYS[i], string.format('%d%09d', s, ns), 'PXAT', until_ms)
  end
end

return reply
