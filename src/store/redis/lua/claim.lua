-- Claims a key. Decides what `idempotency::claim::decide_claim` decides for the other stores; a test compares both.
--
-- KEYS[1]  the record: a hash of
--            s  its state: p in progress, c completed, u unknown, t tombstone
--            f  the fingerprint of the request: 16 bytes of the request, 16 of its credentials
--            o  the token of the claim that led to it
--            t  since when it is in that state, in ms
--            l  in progress: when the claim lapses, in ms; from then on it is unknown
--            x  in progress: how long the record is to be kept after that, in ms
--            w  in progress: whether somebody on another gateway waits
--            c  the client that sent the request, 8 bytes; only if its keys are counted
--            a  completed: the answer
-- KEYS[2]  the keys of its scope, each with the time its record expires, in ms
-- KEYS[3]  there if this claim was called off before it came here
-- ARGV[1]  the fingerprint of the request
-- ARGV[2]  the token of the claim
-- ARGV[3]  how long it holds, in ms
-- ARGV[4]  how long its record is to be kept, in ms
-- ARGV[5]  1 if an unknown key can be claimed again
-- ARGV[6]  how many keys its scope may have
-- ARGV[7]  the key, as its scope knows it
-- ARGV[8]  the client that sends the request, 8 bytes; empty if its keys are not counted
-- ARGV[9]  1 if the client may claim no new key
--
-- Returns the result of the claim and its details:
--   0  won, the client of the record it replaces or nothing
--   1  replay, the answer       2  in flight, the token
--   3  mismatch, 1 if only the credentials differ
--   4  unknown         5  tombstone
--   6  scope full, how long until a key of it expires, in ms
--   7  called off      8  the client may claim no new key

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function written(ms)
  return string.format('%.0f', ms)
end

if redis.call('EXISTS', KEYS[3]) == 1 then
  return {7}
end

local record = redis.call('HMGET', KEYS[1], 's', 'f', 'o', 'l', 'c')
local state, fingerprint, owner, lapses, client = unpack(record)
if state then
  if fingerprint ~= ARGV[1] then
    local same_request = string.sub(fingerprint, 1, 16) == string.sub(ARGV[1], 1, 16)
    return {3, same_request and 1 or 0}
  end
  if state == 'p' and owner == ARGV[2] then
    return {0}
  end
  if state == 'p' and tonumber(lapses) > now then
    -- A full Redis takes no note of it; whoever waits asks again now and then.
    redis.pcall('HSET', KEYS[1], 'w', '1')
    return {2, owner}
  end
  if state == 'c' then
    return {1, redis.call('HGET', KEYS[1], 'a')}
  end
  if state == 't' then
    return {5}
  end
  if ARGV[5] ~= '1' then
    return {4}
  end
else
  -- What has expired no longer counts.
  local since = '(' .. written(now)
  if redis.call('ZCOUNT', KEYS[2], since, '+inf') >= tonumber(ARGV[6]) then
    local first = redis.call('ZRANGEBYSCORE', KEYS[2], since, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    return {6, tonumber(first[2]) - now}
  end
  if ARGV[9] == '1' then
    return {8}
  end
end

-- The first thing written is one that takes memory: after any other a script is let go on in a full Redis.
local lapse = now + tonumber(ARGV[3])
local expiry = lapse + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 's', 'p', 'f', ARGV[1], 'o', ARGV[2], 't', written(now), 'l', written(lapse), 'x', ARGV[4])
if ARGV[8] ~= '' then
  redis.call('HSET', KEYS[1], 'c', ARGV[8])
elseif client then
  redis.call('HDEL', KEYS[1], 'c')
end
redis.call('PEXPIREAT', KEYS[1], written(expiry))
redis.call('ZADD', KEYS[2], written(expiry), ARGV[7])
-- The list of a scope's keys is kept for as long as the last of them, and sheds those that have expired.
if redis.call('PEXPIREAT', KEYS[2], written(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], written(expiry), 'GT')
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', written(now), 'LIMIT', 0, 8)
if #expired > 0 then
  redis.call('ZREM', KEYS[2], unpack(expired))
end
return {0, client}
