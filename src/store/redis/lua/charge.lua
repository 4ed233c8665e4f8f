-- Charges the buckets of one request: the enforced ones all or none, each watched one by itself.
--
-- KEYS  the buckets, the enforced ones first
-- ARGV  how many of them are enforced; then for each bucket
--         the most it may owe after a charge, in seconds and nanoseconds: what an empty one does, plus the
--         longest that a request may be made to wait for it
--         what it is charged, in seconds and nanoseconds
--
-- Answers whether the enforced ones were charged (1 or 0), the TIME in seconds and microseconds, and for
-- each bucket what it owed before, in seconds and nanoseconds.
--
-- A bucket holds the moment at which it will be full again, in nanoseconds since 1970; what it owes is the
-- time until then. One that is full is not kept. Numbers here are exact only up to 2^53, which these
-- moments are beyond, so they are taken apart into seconds and nanoseconds.

local GIGA = 1000000000
local call, sub = redis.call, string.sub

local time = call('TIME')
local now_s, now_ns = tonumber(time[1]), time[2] * 1000
local enforced = tonumber(ARGV[1])
local kept = call('MGET', unpack(KEYS))

local reply = {1, now_s, tonumber(time[2])}
local after_s, after_ns = {}, {}
local charged_s, charged_ns = {}, {}
for i = 1, #KEYS do
  local at = 4 * i - 2
  local most_s, most_ns = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local s, ns = 0, 0
  local full = kept[i] or ''
  local full_s, full_ns = tonumber(sub(full, 1, -10)), tonumber(sub(full, -9))
  if full_s and full_ns then
    s, ns = full_s - now_s, full_ns - now_ns
    if ns < 0 then s, ns = s - 1, ns + GIGA end
    if s < 0 then
      s, ns = 0, 0
    elseif s > most_s or (s == most_s and ns > most_ns) then
      -- No charge can have led there: the clock was set back, or the quota was another one. Written down even
      -- if nothing is charged: time must bring it nearer.
      s, ns = most_s, most_ns
      after_s[i], after_ns[i] = s, ns
    end
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
    -- Kept until the first millisecond at which it is certainly full.
    local until_ms = s * 1000 + math.floor(ns / 1000000) + 1
    call('SET', KEYS[i], string.format('%d%09d', s, ns), 'PXAT', until_ms)
  end
end

return reply
