//! `[store]` of the configuration file.

use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, OneOrMany, Setting};
use super::super::scalar::{
    FilePath, PasswordText, RedisUrl, Size, StorePrefix, Timeout, UserText, display_duration,
};

/// Largest allowed value of `lease`. After a crash of a gateway, the idempotency keys of its requests in flight stay
/// claimed until the lease expires.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_hours(1);

/// Where rate limit buckets and idempotency records (keys with their responses) are stored.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// Where data is stored.
    #[schemars(extend("default" = "memory"))]
    pub(crate) backend: Setting<BackendKind>,
    /// With `disk`, required: directory of the store. The gateway creates it if it does not exist.
    #[schemars(extend("examples" = ["/var/lib/tidegate"]))]
    pub(crate) path: Option<Located<FilePath>>,
    /// With `redis`, required: URL of a Redis server, or a list of URLs of some nodes of a Redis Cluster, such as
    /// `redis://user:password@host:6379/0`. Only scheme and host are required. `rediss://` uses TLS.
    pub(crate) url: Option<Located<OneOrMany<RedisUrl>>>,
    /// With `redis`: prefix of all Redis keys, 1 to 64 visible ASCII characters except `{}*?[]\`. Gateways with the
    /// same prefix share rate limit buckets and idempotency records.
    #[schemars(extend("default" = "tidegate"))]
    pub(crate) prefix: Setting<StorePrefix>,
    /// With `redis`: name of the Redis user, which requires a password. Default: the user in `url`, else the default
    /// user of Redis.
    pub(crate) user: Option<Located<UserText>>,
    /// With `redis`: password of the Redis user.
    #[schemars(extend("writeOnly" = true))]
    pub(crate) password: Option<Located<PasswordText>>,
    /// With `redis`: file that contains the password of the Redis user, instead of `password`.
    #[schemars(extend("examples" = ["/run/secrets/redis"]))]
    pub(crate) password_file: Option<Located<FilePath>>,
    /// With `rediss://`: PEM file of the CA certificates to trust instead of those of the system.
    #[schemars(extend("examples" = ["private-ca.pem"]))]
    pub(crate) ca_file: Option<Located<FilePath>>,
    /// With `redis`: timeout of a Redis operation on rate limit buckets.
    #[schemars(extend("default" = "50ms", "formatMaximum" = "10s"))]
    pub(crate) limits_timeout: Setting<Timeout>,
    /// With `redis`: timeout of a Redis operation on idempotency records.
    #[schemars(extend("default" = "500ms", "formatMaximum" = "10s"))]
    pub(crate) records_timeout: Setting<Timeout>,
    /// With `redis`: how long an idempotency key stays claimed for a request in flight after the gateway of this
    /// request has crashed. Default: 30s longer than the longest possible execution of a request with an idempotency
    /// key.
    #[schemars(extend(
        "examples" = ["95s"],
        "formatMinimum" = "1s",
        "formatMaximum" = display_duration(LONGEST_LEASE),
    ))]
    pub(crate) lease: Option<Located<Timeout>>,
    /// With `redis`: number of replicas that must confirm a write. The gateway waits for them before it sends a request
    /// with an idempotency key to the upstream. It waits again before it sends the stored response to the client.
    /// Default: none.
    #[schemars(extend("examples" = [1]))]
    pub(crate) wait_replicas: Option<Located<NonZeroU32>>,
    /// With `redis`: maximum number of stored idempotency keys of one client, over all its credentials. At this number,
    /// a request with a new key from this client gets 429. Default: no maximum.
    #[schemars(extend("examples" = [100_000]))]
    pub(crate) max_keys_per_client: Option<Located<NonZeroU32>>,
    /// Maximum number of rate limit buckets that the gateway tracks in its memory, over all rate limits. At this
    /// number, buckets that have all their tokens are evicted, which changes nothing for their clients.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(crate) max_clients: usize,
    /// With `memory` and `disk`: maximum number of stored idempotency keys. At this number, each new key replaces the
    /// oldest completed one that is older than `min_ttl`. If there is none, a request with a new key gets 503. While
    /// more than 80 % are in use, the same applies to a client with more than 10 % of this number, with 429 instead of
    /// 503.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(crate) max_keys: Setting<usize>,
    /// With `memory` and `disk`: how long the key of a completed request is stored at least, even if the store is full.
    /// With a value of at least `ttl` of a route, its keys are never forgotten early.
    #[schemars(extend("default" = "1h"))]
    pub(crate) min_ttl: Setting<Timeout>,
    /// With `memory` and `disk`: maximum total size of the stored responses. At this size, the oldest responses are
    /// evicted, and duplicate requests get 409 instead of these responses. Default: 256MiB in memory, 4GiB on disk.
    #[schemars(extend("examples" = ["256MiB"], "minimum" = 1))]
    pub(crate) max_bytes: Option<Located<Size>>,
}

/// Where data is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendKind {
    /// Memory of the process. The data is lost when the process ends.
    Memory,
    /// Directory on disk. Idempotency records survive a restart.
    Disk,
    /// Redis server or cluster, which several gateways can share.
    Redis,
}
