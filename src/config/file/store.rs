//! `[store]` of the configuration file.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, OneOrMany};
use super::super::scalar::{
    BackendWord, LeaseDuration, PasswordText, RedisUrl, Size, StorePrefix, StoreTimeout, UserText,
};

/// Where rate limit buckets and idempotency records (keys with their responses) are stored.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StoreSection {
    /// Where data is stored: `memory` (lost when the process ends), `disk` (survives a restart), or `redis` (shared by
    /// several gateways).
    #[schemars(extend("default" = "memory"))]
    pub(in super::super) backend: Option<Located<BackendWord>>,
    /// With `disk`: directory of the store. The gateway creates it if it does not exist.
    pub(in super::super) path: Option<Located<PathBuf>>,
    /// With `redis`: URL of a Redis server, or a list of URLs of nodes of a Redis Cluster.
    pub(in super::super) url: Option<Located<OneOrMany<RedisUrl>>>,
    /// With `redis`: prefix of all Redis keys. Gateways with the same prefix share rate limit buckets and idempotency
    /// records.
    #[schemars(extend("default" = "tidegate"))]
    pub(in super::super) prefix: Option<Located<StorePrefix>>,
    /// With `redis`: name of the Redis user. Default: the user in `url`, else the default user of Redis.
    pub(in super::super) user: Option<Located<UserText>>,
    /// With `redis`: password of the Redis user.
    pub(in super::super) password: Option<Located<PasswordText>>,
    /// With `redis`: file that contains the password of the Redis user, instead of `password`.
    pub(in super::super) password_file: Option<Located<PathBuf>>,
    /// With `rediss://`: PEM file of the CA certificates to trust instead of those of the system.
    pub(in super::super) ca_file: Option<Located<PathBuf>>,
    /// With `redis`: timeout of a Redis operation on rate limit buckets.
    #[schemars(extend("default" = "50ms"))]
    pub(in super::super) limits_timeout: Option<Located<StoreTimeout>>,
    /// With `redis`: timeout of a Redis operation on idempotency records.
    #[schemars(extend("default" = "500ms"))]
    pub(in super::super) records_timeout: Option<Located<StoreTimeout>>,
    /// With `redis`: how long an idempotency key stays claimed for a request in flight after the gateway of this
    /// request has crashed. Default: 30s longer than the longest possible execution of a request with an idempotency
    /// key.
    pub(in super::super) lease: Option<Located<LeaseDuration>>,
    /// With `redis`: number of replicas that must confirm a write. The gateway waits for them before it sends a request
    /// with an idempotency key to the upstream. It waits again before it sends the stored response to the client.
    /// Default: none.
    #[schemars(range(min = 1))]
    pub(in super::super) wait_replicas: Option<Located<u32>>,
    /// With `redis`: maximum number of stored idempotency keys of one client, over all its credentials. At this number,
    /// a request with a new key from this client gets 429. Default: no maximum.
    #[schemars(range(min = 1))]
    pub(in super::super) max_keys_per_client: Option<Located<u32>>,
    /// Maximum number of rate limit buckets that the gateway tracks, over all rate limits.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_clients: Option<Located<usize>>,
    /// With `memory` and `disk`: maximum number of stored idempotency keys. While more than 80 % are in use, a client
    /// with more than 10 % of this number gets 429 for requests with new keys.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_keys: Option<Located<usize>>,
    /// With `memory` and `disk`: maximum total size of the stored responses. Default: 256MiB in memory, 4GiB on disk.
    #[schemars(extend("minimum" = 1))]
    pub(in super::super) max_bytes: Option<Located<Size>>,
}
