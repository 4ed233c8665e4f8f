//! `[store]`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, OneOrMany};
use super::super::scalar::{
    BackendWord, LeaseDuration, PasswordText, RedisUrl, Size, StorePrefix, StoreTimeout, UserText,
};

/// Store of the buckets and idempotency keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StoreSection {
    /// Backend: `memory` (lost when the process ends), `disk`, or `redis` (shared by several gateways).
    #[schemars(extend("default" = "memory"))]
    pub(in super::super) backend: Option<Located<BackendWord>>,
    /// With `disk`: directory of the store.
    pub(in super::super) path: Option<Located<PathBuf>>,
    /// With `redis`: URL of a server, or a list of URLs of cluster nodes.
    pub(in super::super) url: Option<Located<OneOrMany<RedisUrl>>>,
    /// With `redis`: prefix of all key names in Redis. Gateways with the same prefix share buckets and idempotency
    /// keys.
    #[schemars(extend("default" = "tidegate"))]
    pub(in super::super) prefix: Option<Located<StorePrefix>>,
    /// With `redis`: user name. Default: the default user of Redis.
    pub(in super::super) user: Option<Located<UserText>>,
    /// With `redis`: password of the user.
    pub(in super::super) password: Option<Located<PasswordText>>,
    /// With `redis`: file that contains the password.
    pub(in super::super) password_file: Option<Located<PathBuf>>,
    /// With `rediss://`: PEM file of the CA certificates to trust instead of those of the system.
    pub(in super::super) ca_file: Option<Located<PathBuf>>,
    /// With `redis`: time limit of an operation on buckets.
    #[schemars(extend("default" = "50ms"))]
    pub(in super::super) limits_timeout: Option<Located<StoreTimeout>>,
    /// With `redis`: time limit of an operation on idempotency keys.
    #[schemars(extend("default" = "500ms"))]
    pub(in super::super) records_timeout: Option<Located<StoreTimeout>>,
    /// With `redis`: time that the claim on a key remains after its gateway has crashed. Default: 30s longer than the
    /// longest execution of a request with a key.
    pub(in super::super) lease: Option<Located<LeaseDuration>>,
    /// With `redis`: number of replicas that must confirm a claim before its request is sent, and a stored response
    /// before it is delivered. Default: none.
    #[schemars(range(min = 1))]
    pub(in super::super) wait_replicas: Option<Located<u32>>,
    /// With `redis`: maximum number of stored idempotency keys of one client, over all its credentials. At the maximum,
    /// the client gets 429 for new keys. Default: no bound.
    #[schemars(range(min = 1))]
    pub(in super::super) max_keys_per_client: Option<Located<u32>>,
    /// Maximum number of tracked buckets, all limits together.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_clients: Option<Located<usize>>,
    /// With `memory` and `disk`: maximum number of stored idempotency keys. Above 80 % of it, a client that holds more
    /// than 10 % of it gets 429 for new keys.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_keys: Option<Located<usize>>,
    /// With `memory` and `disk`: maximum total size of the stored responses. Default: 256MiB in memory, 4GiB on disk.
    #[schemars(extend("minimum" = 1))]
    pub(in super::super) max_bytes: Option<Located<Size>>,
}
