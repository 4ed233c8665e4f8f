//! Health of a store, as `/readyz` and the metrics report it.

use std::sync::Arc;

/// A part of a store that can fail while the other part works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Buckets of limits. `on_store_error` applies while they are degraded.
    Limits,
    /// Records of idempotency keys.
    Records,
}

impl Part {
    /// Name in `/readyz` and in labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Records => "records",
        }
    }
}

/// Health of one part of a store.
#[derive(Clone, Debug)]
pub struct Health {
    /// The part of the store: limits or records.
    pub part: Part,
    /// The reason why the part is degraded; `None` if it works.
    pub degraded: Option<Arc<str>>,
    /// Number of failed operations, attempts to recover included.
    pub failures: u64,
}
