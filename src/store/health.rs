//! Health of a store, as `/readyz` and the metrics report it.

use std::sync::Arc;

/// A part of a store that can fail while the other part works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Buckets of rate limits. `on_store_error` applies while they are degraded.
    Limits,
    /// Records of idempotency keys.
    Records,
}

impl Part {
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
    /// The part of the store: rate limits or idempotency records.
    pub part: Part,
    /// The reason why the part is degraded; `None` if it works.
    pub degraded: Option<Arc<str>>,
    /// Number of failed operations, including failed attempts to recover.
    pub failures: u64,
}
