//! Counters of lingering HTTP/2 streams: their response is complete, but the client is still sending the request.

use super::{Count, Gauge};

#[derive(Debug, Default)]
pub(crate) struct Http2Metrics {
    pub(crate) lingering: Gauge,
    pub(crate) early_resets: [Count; EarlyReset::ALL.len()],
}

/// Guard that counts a stream until it is dropped.
#[derive(Debug)]
pub(crate) struct LingeringStream<'a>(&'a Gauge);

/// Why the gateway resets a lingering stream before the client has sent the complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyReset {
    /// Too many bytes of the request body were discarded.
    Bytes,
    Time,
    /// Too many streams of the connection linger.
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
    pub(crate) fn lingering(&self) -> LingeringStream<'_> {
        self.lingering.add(1);
        LingeringStream(&self.lingering)
    }

    pub(crate) fn reset_early(&self, reason: EarlyReset) {
        self.early_resets[reason as usize].inc();
    }
}

impl Drop for LingeringStream<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
