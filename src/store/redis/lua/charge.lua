-- Charges the rate limit buckets of one request. Enforced buckets are charged all or none. Each bucket of a shadow
-- limit is charged independently.
--
-- KEYS  the buckets, the enforced ones first
-- ARGV  the number of enforced buckets; then for each bucket
--         the refill time of an empty bucket, in seconds and nanoseconds
--         the time since the gateway got this quota, in seconds and nanoseconds
--         the maximum debt after a charge, in seconds and nanoseconds: the refill time plus the longest delay of a
--         request
--         the charge, in seconds and nanoseconds
--       then, only if the gateway charged some of these buckets without Redis, for each bucket
--         the minimum debt before the charge, in seconds and nanoseconds
--
-- Returns whether the enforced buckets were charged (1 or 0), the reply of TIME in seconds and microseconds, and for
-- each bucket its debt before the charge, in seconds and nanoseconds.
--
-- The value of a bucket is three numbers of nanoseconds with colons between them: the time at which it is full, its
-- refill time, and the time of its last charge. Its debt is the time until it is full. A full bucket is not stored. If
-- the refill time has changed, the debt is scaled as by `full_at_under` of the gateway. The script computes with
-- separate seconds and nanoseconds, because Lua numbers are exact only up to 2^53, which is less than these times.

local GIGA = 1000000000
local VALUE = string.gsub('^(%d+)N:(%d+)N:(%d+)N$', 'N', '(%%d%%d%%d%%d%%d%%d%%d%%d%%d)')
local call = redis.call

-- Returns the debt, which was added up for the refill time `from`, for the refill time `to`. A faster quota counts from
-- `ago`. Scaling rounds up, so a bucket never gains tokens. The factor is larger than the error of the floating-point
-- numbers.
local function scale(s, ns, from, to, ago)
  if to > from then ago = 0 end
  local scaled = math.max(0, (s + ns / GIGA + ago) * (to / from) * (1 + 1e-15) - ago)
  s = math.floor(scaled)
  ns = math.ceil((scaled - s) * GIGA)
  if ns >= GIGA then s, ns = s + 1, ns - GIGA end
  return s, ns
end

local time = call('TIME')
local now_s, now_ns = tonumber(time[1]), time[2] * 1000
local enforced = tonumber(ARGV[1])
local stored = call('MGET', unpack(KEYS))

local reply = {1, now_s, tonumber(time[2])}
local after_s, after_ns = {}, {}
local charged_s, charged_ns = {}, {}
for i = 1, #KEYS do
  local at = 8 * i - 6
  local most_s, most_ns = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local s, ns = 0, 0
  local full_s, full_ns, refill_s, refill_ns, last_s, last_ns = string.match(stored[i] or '', VALUE)
  if full_s then
    s, ns = full_s - now_s, full_ns - now_ns
    if ns < 0 then s, ns = s - 1, ns + GIGA end
    if s < 0 then
      s, ns = 0, 0
    else
      local from, to = refill_s + refill_ns / GIGA, ARGV[at] + ARGV[at + 1] / GIGA
      if from ~= to then
        -- The scaled debt is written even if the request is rejected, because it must not be scaled again. If it is zero,
        -- the bucket stays full under this quota.
        local charged = math.max(0, now_s - last_s + (now_ns - last_ns) / GIGA)
        s, ns = scale(s, ns, from, to, math.min(charged, ARGV[at + 2] + ARGV[at + 3] / GIGA))
        if s > 0 or ns > 0 then after_s[i], after_ns[i] = s, ns end
      end
    end
  end
  local least_s, least_ns = tonumber(ARGV[8 * #KEYS + 2 * i]), tonumber(ARGV[8 * #KEYS + 2 * i + 1])
  if least_s and (least_s > s or (least_s == s and least_ns > ns)) then
    -- The reported debt is written even if the request is rejected, because the gateway reports it only once.
    s, ns = least_s, least_ns
    after_s[i], after_ns[i] = s, ns
  end
  if s > most_s or (s == most_s and ns > most_ns) then
    -- The debt is reduced to the maximum: a larger debt means that the clock of Redis was set back, or that the longest
    -- delay was shortened. It is written even if the request is rejected. Otherwise the bucket would reject requests
    -- until the clock has caught up.
    s, ns = most_s, most_ns
    after_s[i], after_ns[i] = s, ns
  end
  reply[2 * i + 2], reply[2 * i + 3] = s, ns

  s, ns = s + ARGV[at + 6], ns + ARGV[at + 7]
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
    local at = 8 * i - 6
    local value = string.format('%d%09d:%d%09d:%d%09d', s, ns, ARGV[at], ARGV[at + 1], now_s, now_ns)
    call('SET', KEYS[i], value, 'PXAT', until_ms)
  end
end

return reply
