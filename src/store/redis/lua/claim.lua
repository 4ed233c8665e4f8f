-- Claims an idempotency key. For the other stores, the Rust function `idempotency::claim::decide_claim` makes the same
-- decision. A test compares it with this script.
--
-- KEYS[1]  the record: a hash of
--            s  the state: p in progress, c completed, u unknown, t tombstone
--            f  the fingerprint of the request: 16 bytes of the request, 16 of its credentials
--            o  the token of the claim
--            t  start of the state, in ms since 1970
--            l  in progress: expiry of the lease, in ms since 1970; the record is unknown from then on
--            x  in progress: how long the record is stored after the lease, in ms
--            c  the client that sent the request, 8 bytes; only if the keys of clients are counted
--            a  completed: the response
-- KEYS[2]  sorted set of the idempotency keys of the scope, each with the expiry of its record, in ms since 1970
-- KEYS[3]  marker that exists if this claim was cancelled before it arrived
-- ARGV[1]  the fingerprint of the request
-- ARGV[2]  the token of the claim
-- ARGV[3]  duration of the lease, in ms
-- ARGV[4]  how long the record is stored after the lease, in ms
-- ARGV[5]  1 if an idempotency key with the state unknown can be claimed again
-- ARGV[6]  maximum number of idempotency keys of the scope
-- ARGV[7]  the idempotency key, without its scope
-- ARGV[8]  the client that sends the request, 8 bytes; empty if the keys of clients are not counted
-- ARGV[9]  1 if the client has the maximum number of idempotency keys
--
-- Returns the result of the claim and its details:
--   0  the claim is won; with the client of the record that the claim replaces, if any
--   1  the response is replayed; with the response
--   2  an execution is in flight; with the token of its claim
--   3  the fingerprint differs; with 1 if only the credentials differ
--   4  the outcome of an earlier execution is unknown
--   5  an earlier execution completed, but its response is not stored (tombstone)
--   6  the scope has the maximum number of keys; with the time until the first of them expires, in ms
--   7  the claim was cancelled
--   8  the client has the maximum number of keys

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function format_ms(ms)
  return string.format('%.0f', ms)
end

if redis.call('EXISTS', KEYS[3]) == 1 then
  return {7}
end

local record = redis.call('HMGET', KEYS[1], 's', 'f', 'o', 'l', 'c')
local state, fingerprint, owner, lease_ends, client = unpack(record)
if state then
  if fingerprint ~= ARGV[1] then
    local same_request = string.sub(fingerprint, 1, 16) == string.sub(ARGV[1], 1, 16)
    return {3, same_request and 1 or 0}
  end
  if state == 'p' and owner == ARGV[2] then
    return {0}
  end
  if state == 'p' and tonumber(lease_ends) > now then
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
  -- Only idempotency keys that have not expired count against the maximum of the scope.
  local since = '(' .. format_ms(now)
  if redis.call('ZCOUNT', KEYS[2], since, '+inf') >= tonumber(ARGV[6]) then
    local first = redis.call('ZRANGEBYSCORE', KEYS[2], since, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    return {6, tonumber(first[2]) - now}
  end
  if ARGV[9] == '1' then
    return {8}
  end
end

-- The first write must allocate memory, so that Redis rejects the script if it is out of memory. After a first write
-- that allocates none, Redis would allow all later writes of the script.
local lease_end = now + tonumber(ARGV[3])
local expiry = lease_end + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 's', 'p', 'f', ARGV[1], 'o', ARGV[2], 't', format_ms(now), 'l', format_ms(lease_end), 'x', ARGV[4])
if ARGV[8] ~= '' then
  redis.call('HSET', KEYS[1], 'c', ARGV[8])
elseif client then
  redis.call('HDEL', KEYS[1], 'c')
end
redis.call('PEXPIREAT', KEYS[1], format_ms(expiry))
redis.call('ZADD', KEYS[2], format_ms(expiry), ARGV[7])
-- The sorted set expires together with its last idempotency key. Each claim removes up to 8 expired keys from the set.
if redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'NX') == 0 then
  redis.call('PEXPIREAT', KEYS[2], format_ms(expiry), 'GT')
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', format_ms(now), 'LIMIT', 0, 8)
if #expired > 0 then
  redis.call('ZREM', KEYS[2], unpack(expired))
end
return {0, client}
