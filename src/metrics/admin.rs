//! Counters of the admin listener.

use super::{Count, Gauge};

/// Counters of the connections of the admin listener.
#[derive(Debug, Default)]
pub(crate) struct AdminMetrics {
    /// Number of open connections.
    pub(crate) connections: Gauge,
    /// Number of connections that were closed because a new connection replaced them.
    pub(crate) replaced: Count,
}
