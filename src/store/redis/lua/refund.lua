-- Refunds the charges that one script made, for a request that another script rejected.
--
-- KEYS  a marker that this refund was made; then the buckets
-- ARGV  the TIME of the charge, in seconds and microseconds; then for each bucket
--         the charge, in seconds and nanoseconds
--         what it owed before the charge, in seconds and nanoseconds
--
-- Returns 1, or 0 if the refund was made before.
--
-- A bucket without a later charge gets its earlier state back. From a bucket with one, only what is left of our charge
-- is removed, which shrinks by one second per second: if the bucket would have been full without our charge, the later
-- charge began where ours ended, or when ours was paid off. A full refund would then admit more than the quota. The
-- client regains the rest with time.

local GIGA = 1000000000

local function ordered(s, ns)
  if ns >= GIGA then return s + 1, ns - GIGA end
  if ns < 0 then return s - 1, ns + GIGA end
  return s, ns
end

-- A gateway that gets no reply repeats the call. A second refund would admit more than the quota.
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', 60000) then
  return 0
end

local time = redis.call('TIME')
local now_s, now_ns = tonumber(time[1]), time[2] * 1000
local charged_s, charged_ns = tonumber(ARGV[1]), ARGV[2] * 1000
local passed_s, passed_ns = ordered(now_s - charged_s, now_ns - charged_ns)
if passed_s < 0 then passed_s, passed_ns = 0, 0 end

local kept = redis.call('MGET', unpack(KEYS, 2))
for i = 1, #KEYS - 1 do
  local full = kept[i] or ''
  local full_s, full_ns = tonumber(string.sub(full, 1, -10)), tonumber(string.sub(full, -9))
  if full_s and full_ns then
    local at = 4 * i - 1
    local cost_s, cost_ns = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    local s, ns = ordered(charged_s + ARGV[at + 2], charged_ns + ARGV[at + 3])
    local left_s, left_ns = ordered(s + cost_s, ns + cost_ns)
    if full ~= string.format('%d%09d', left_s, left_ns) then
      local back_s, back_ns = ordered(cost_s - passed_s, cost_ns - passed_ns)
      if back_s < 0 then back_s, back_ns = 0, 0 end
      s, ns = ordered(full_s - back_s, full_ns - back_ns)
    end
    if s < now_s or (s == now_s and ns <= now_ns) then
      redis.call('DEL', KEYS[i + 1])
    else
      local until_ms = s * 1000 + math.floor(ns / 1000000) + 1
      redis.call('SET', KEYS[i + 1], string.format('%d%09d', s, ns), 'PXAT', until_ms)
    end
  end
end

return 1
