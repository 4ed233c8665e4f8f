//! `[store]`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, OneOrMany};
use super::super::scalar::{
    BackendWord, Lease, PasswordText, RedisUrl, Size, StorePrefix, StoreTimeout, UserText,
};

/// Where buckets and idempotency keys are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StoreSection {
    /// What keeps them: `memory`, gone with the process, `disk`, or `redis`, which gateways share.
    #[schemars(extend("default" = "memory"))]
    pub(in super::super) backend: Option<Located<BackendWord>>,
    /// With `disk`: the directory they are kept in.
    pub(in super::super) path: Option<Located<PathBuf>>,
    /// With `redis`: where it is. One URL is a server, a list is some nodes of a cluster.
    pub(in super::super) url: Option<Located<OneOrMany<RedisUrl>>>,
    /// With `redis`: what every name in it begins with. Gateways with one prefix are one fleet.
    #[schemars(extend("default" = "tidegate"))]
    pub(in super::super) prefix: Option<Located<StorePrefix>>,
    /// With `redis`: who the gateway is to it. Default: its default user.
    pub(in super::super) user: Option<Located<UserText>>,
    /// With `redis`: the password.
    pub(in super::super) password: Option<Located<PasswordText>>,
    /// With `redis`: a file that holds the password.
    pub(in super::super) password_file: Option<Located<PathBuf>>,
    /// With `rediss://`: certificates to trust instead of the system's, PEM.
    pub(in super::super) ca_file: Option<Located<PathBuf>>,
    /// With `redis`: how long the decision on a limit may take.
    #[schemars(extend("default" = "50ms"))]
    pub(in super::super) limits_timeout: Option<Located<StoreTimeout>>,
    /// With `redis`: how long a step in the life of an idempotency key may take.
    #[schemars(extend("default" = "500ms"))]
    pub(in super::super) records_timeout: Option<Located<StoreTimeout>>,
    /// With `redis`: how long a key stays claimed if its gateway dies. Default: 30s more than a request with
    /// a key may take upstream.
    pub(in super::super) lease: Option<Located<Lease>>,
    /// With `redis`: replicas that must have a claim before its request is sent, and an answer before it is
    /// given out. Default: none.
    #[schemars(range(min = 1))]
    pub(in super::super) wait_replicas: Option<Located<u32>>,
    /// With `redis`: idempotency keys that one client may hold, over all its credentials. A client with as many gets
    /// 429 for new keys. Default: no bound.
    #[schemars(range(min = 1))]
    pub(in super::super) max_keys_per_client: Option<Located<u32>>,
    /// Buckets tracked at once, all limits together.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_clients: Option<Located<usize>>,
    /// In memory and on disk: idempotency keys stored at once. Above 80 % of it, a client that holds more than 10 % of
    /// it gets 429 for new keys.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_keys: Option<Located<usize>>,
    /// Bytes the answers of these keys may take. Default: 256MiB in memory, 4GiB on disk.
    #[schemars(extend("minimum" = 1))]
    pub(in super::super) max_bytes: Option<Located<Size>>,
}
