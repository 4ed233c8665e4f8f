//! Counters of HTTP/2 streams whose response is complete before the request.

use super::{Count, Gauge};

/// Counters of HTTP/2 streams.
#[derive(Debug, Default)]
pub(crate) struct Http2Metrics {
    pub(crate) lingering: Gauge,
    pub(crate) early_resets: [Count; EarlyReset::ALL.len()],
}

/// A stream that lingers, until dropped.
#[derive(Debug)]
pub(crate) struct LingeringStream<'a>(&'a Gauge);

/// The bound that ended the lingering of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyReset {
    /// Bytes of the request body, per stream.
    Bytes,
    /// Time since the response.
    Time,
    /// Lingering streams, per connection.
    Streams,
}

impl EarlyReset {
    pub(crate) const ALL: [Self; 3] = [Self::Bytes, Self::Time, Self::Streams];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Time => "time",
            Self::Streams => "streams",
        }
    }
}

impl Http2Metrics {
    /// Counts a stream as lingering until the result is dropped.
    pub(crate) fn lingering(&self) -> LingeringStream<'_> {
        self.lingering.add(1);
        LingeringStream(&self.lingering)
    }

    /// Counts a stream that the gateway resets after its response.
    pub(crate) fn reset_early(&self, reason: EarlyReset) {
        self.early_resets[reason as usize].inc();
    }
}

impl Drop for LingeringStream<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
