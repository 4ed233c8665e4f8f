-- Refunds the charges that one call of charge.lua made, because another call rejected the same request.
--
-- KEYS  a marker that exists if this refund was made; then the rate limit buckets
-- ARGV  the reply of TIME at the charge, in seconds and microseconds; then for each bucket
--         the refill time at the charge, in seconds and nanoseconds
--         the charge, in seconds and nanoseconds
--         its debt before the charge, in seconds and nanoseconds
--
-- Returns 1, or 0 if the refund was already made.
--
-- A bucket without a later charge gets its state before the charge back. From a bucket with a later charge, the script
-- removes only the rest of the refunded charge, which shrinks by one second per second. Without the refunded charge,
-- the bucket could have been full in the meantime, and a full bucket gains no tokens. A refund of the entire charge
-- would then admit more than the quota. The client regains the difference as the bucket refills. A bucket that was
-- charged under another quota since then is not refunded.

local GIGA = 1000000000

local function normalize(s, ns)
  if ns >= GIGA then return s + 1, ns - GIGA end
  if ns < 0 then return s - 1, ns + GIGA end
  return s, ns
end

-- The refund is made only once, because a gateway repeats a call without a reply. A second refund would admit more than
-- the quota.
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', 60000) then
  return 0
end

local time = redis.call('TIME')
local now_s, now_ns = tonumber(time[1]), time[2] * 1000
local charged_s, charged_ns = tonumber(ARGV[1]), ARGV[2] * 1000
local passed_s, passed_ns = normalize(now_s - charged_s, now_ns - charged_ns)
if passed_s < 0 then passed_s, passed_ns = 0, 0 end

local stored = redis.call('MGET', unpack(KEYS, 2))
for i = 1, #KEYS - 1 do
  local at = 6 * i - 3
  local refill = string.format('%d%09d', ARGV[at], ARGV[at + 1])
  local full, of, last = string.match(stored[i] or '', '^(%d+):(%d+):(%d+)$')
  if of == refill then
    local full_s, full_ns = string.sub(full, 1, -10), string.sub(full, -9)
    local cost_s, cost_ns = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local s, ns = normalize(charged_s + ARGV[at + 4], charged_ns + ARGV[at + 5])
    local left_s, left_ns = normalize(s + cost_s, ns + cost_ns)
    if full ~= string.format('%d%09d', left_s, left_ns) then
      local back_s, back_ns = normalize(cost_s - passed_s, cost_ns - passed_ns)
      if back_s < 0 then back_s, back_ns = 0, 0 end
      s, ns = normalize(full_s - back_s, full_ns - back_ns)
    end
    if s < now_s or (s == now_s and ns <= now_ns) then
      redis.call('DEL', KEYS[i + 1])
    else
      local until_ms = s * 1000 + math.floor(ns / 1000000) + 1
      local value = string.format('%d%09d:%s:%s', s, ns, of, last)
      redis.call('SET', KEYS[i + 1], value, 'PXAT', until_ms)
    end
  end
end

return 1
