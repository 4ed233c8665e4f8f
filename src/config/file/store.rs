//! `[store]`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::Located;
use super::super::scalar::{BackendWord, Size};

/// Where buckets and idempotency keys are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StoreSection {
    /// What keeps them: `memory`, gone with the process, or `disk`.
    #[schemars(extend("default" = "memory"))]
    pub(in super::super) backend: Option<Located<BackendWord>>,
    /// With `disk`: the directory they are kept in.
    pub(in super::super) path: Option<Located<PathBuf>>,
    /// Buckets tracked at once, all limits together.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_clients: Option<Located<usize>>,
    /// Idempotency keys remembered at once.
    #[schemars(range(min = 1), extend("default" = 1_000_000))]
    pub(in super::super) max_keys: Option<Located<usize>>,
    /// Bytes the answers of these keys may take. Default: 256MiB in memory, 4GiB on disk.
    #[schemars(extend("minimum" = 1))]
    pub(in super::super) max_bytes: Option<Located<Size>>,
}
