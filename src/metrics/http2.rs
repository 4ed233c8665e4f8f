//! Counters of lingering HTTP/2 streams: the response is complete, and the client is still sending its request.

use super::{Count, Gauge};

/// Counters of HTTP/2 streams.
#[derive(Debug, Default)]
pub(crate) struct Http2Metrics {
    pub(crate) lingering: Gauge,
    pub(crate) early_resets: [Count; EarlyReset::ALL.len()],
}

/// Guard that counts a stream as lingering until it is dropped.
#[derive(Debug)]
pub(crate) struct LingeringStream<'a>(&'a Gauge);

/// The bound that a lingering stream reached. The gateway then resets the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyReset {
    /// Discarded bytes of the request body.
    Bytes,
    /// Time since the response was sent.
    Time,
    /// Number of lingering streams on the connection.
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
    /// Counts a stream as lingering until the returned guard is dropped.
    pub(crate) fn lingering(&self) -> LingeringStream<'_> {
        self.lingering.add(1);
        LingeringStream(&self.lingering)
    }

    /// Counts a stream that the gateway resets because it reached a bound.
    pub(crate) fn reset_early(&self, reason: EarlyReset) {
        self.early_resets[reason as usize].inc();
    }
}

impl Drop for LingeringStream<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
