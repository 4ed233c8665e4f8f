//! Limits on the memory for buffered bodies.
//!
//! The gateway buffers five kinds of bodies:
//!
//! - bodies of requests with an idempotency key, and the starts of other request bodies (`request_buffer`),
//! - copies of request bodies for retries,
//! - responses to be stored, and copies of stored responses for replays.
//!
//! Before the gateway allocates memory for a body, it charges the bytes to two counts: that of all clients together and
//! that of the client.
//!
//! `max_buffered` limits the first count at all times. `max_buffered_per_client` limits the second count, but only
//! while more than half of `max_buffered` is in use. So a single client can use free memory, but cannot take the memory
//! that other clients need. A limit per request would not suffice, because a client can open many HTTP/2 streams.
//!
//! A body of up to 1 KiB is not charged. Such a body is smaller than most request heads, and updating the two counts
//! would take longer than handling the body. Heads, read buffers, HTTP/2 windows and streamed bodies are not charged
//! either, because their size is limited per connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use thiserror::Error;

use super::client::ClientId;

/// The configuration keys `max_buffered` and `max_buffered_per_client` of `[server]`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferBounds {
    /// Maximum number of bytes that are buffered for all clients together.
    pub total: usize,
    /// Maximum number of bytes that are buffered for one client while more than half of `total` is in use.
    pub per_client: usize,
}

impl Default for BufferBounds {
    fn default() -> Self {
        Self {
            total: 256 << 20,
            per_client: 16 << 20,
        }
    }
}

/// Kind of a buffered body. It determines what happens when the memory is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffered {
    /// Body of a request with an idempotency key. If the memory is exhausted, the gateway rejects the request.
    Request,
    /// Start of the body of another request, which is buffered before a server is contacted. If the memory is exhausted,
    /// the gateway contacts a server earlier and streams the rest.
    Upload,
    /// Body of a response to be stored. If the memory is exhausted, the gateway streams the response and stores a
    /// tombstone, which is a record without a response.
    Response,
    /// Copy of a stored response for a replay. If the memory is exhausted, the gateway rejects the request.
    Replay,
    /// Copy of a request body for retries. If the memory is exhausted, the gateway drops the copy and does not retry
    /// the request.
    Retry,
}

impl Buffered {
    /// All kinds, in the order in which the metrics report them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Request,
        Self::Upload,
        Self::Response,
        Self::Replay,
        Self::Retry,
    ];

    /// Returns the value of the metric label `kind`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Upload => "upload",
            Self::Response => "response",
            Self::Replay => "replay",
            Self::Retry => "retry",
        }
    }
}

/// Count of the bytes that all worker threads buffer. Clones share the count and are cheap.
#[derive(Clone)]
pub(crate) struct Buffers(Arc<BufferCounts>);

struct BufferCounts {
    bounds: BufferBounds,
    /// Size of the largest body that is not charged, in bytes.
    free: usize,
    /// Number of bytes charged for all clients together.
    total: AtomicUsize,
    /// Number of bytes charged for each client. A client with zero bytes has no entry.
    clients: DashMap<ClientId, usize>,
    /// Number of charges that failed because the memory was exhausted, indexed by [`Buffered`].
    exceeded: [AtomicU64; Buffered::ALL.len()],
}

/// The bytes that are charged for one body. Dropping the value releases them.
#[derive(Debug)]
#[must_use = "a dropped charge is released"]
pub(crate) struct BufferCharge {
    /// Each worker thread has its own `Arc`, so that worker threads do not contend on one reference count.
    buffers: Arc<Buffers>,
    client: ClientId,
    kind: Buffered,
    /// Number of bytes that the body occupies in memory, charged or not.
    bytes: usize,
    /// Number of bytes that are charged: `bytes`, or zero if the body is small.
    charged: usize,
}

/// Size of the largest body that is not charged, in bytes. If `max_buffered_per_client` is below 1 MiB, 1/1024 of
/// `max_buffered_per_client` is used instead.
const MAX_FREE: usize = 1 << 10;

/// Error of a charge that exceeds `max_buffered` or `max_buffered_per_client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the memory for buffered bodies is exhausted; retry later, or raise `max_buffered` or `max_buffered_per_client` in \
     [server]"
)]
pub(crate) struct Exceeded;

impl Buffers {
    /// Creates a count of zero bytes with the memory limits `bounds`.
    pub(crate) fn new(bounds: BufferBounds) -> Self {
        Self(Arc::new(BufferCounts {
            bounds,
            free: MAX_FREE.min(bounds.per_client / 1024),
            total: AtomicUsize::new(0),
            clients: DashMap::new(),
            exceeded: Default::default(),
        }))
    }

    /// Creates a charge of zero bytes for a body of `client`. [`BufferCharge::grow`] adds bytes.
    pub(crate) fn charge(self: &Arc<Self>, client: ClientId, kind: Buffered) -> BufferCharge {
        BufferCharge {
            buffers: Arc::clone(self),
            client,
            kind,
            bytes: 0,
            charged: 0,
        }
    }

    /// Returns the configured memory limits, in bytes.
    pub(crate) fn bounds(&self) -> BufferBounds {
        self.0.bounds
    }

    /// Returns the number of bytes that are charged now, for all clients together.
    pub(crate) fn in_use(&self) -> usize {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Returns the number of charges of this kind that failed because the memory was exhausted.
    pub(crate) fn exceeded(&self, kind: Buffered) -> u64 {
        self.0.exceeded[kind as usize].load(Ordering::Relaxed)
    }
}

impl BufferCounts {
    fn take(&self, client: ClientId, bytes: usize) -> Result<(), Exceeded> {
        let BufferBounds { total, per_client } = self.bounds;
        let grown = |used: usize| used.checked_add(bytes).filter(|&used| used <= total);
        let used = self
            .total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .map_err(|_full| Exceeded)?;
        let of_client = if used + bytes > total / 2 {
            per_client
        } else {
            total
        };
        let fits = match self.clients.entry(client) {
            Entry::Occupied(mut entry) if entry.get() + bytes <= of_client => {
                *entry.get_mut() += bytes;
                true
            }
            Entry::Vacant(entry) if bytes <= of_client => {
                entry.insert(bytes);
                true
            }
            _ => false,
        };
        if fits {
            return Ok(());
        }
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        Err(Exceeded)
    }

    fn release(&self, client: ClientId, bytes: usize) {
        self.clients.remove_if_mut(&client, |_, held| {
            *held -= bytes;
            *held == 0
        });
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl BufferCharge {
    /// Adds `bytes` bytes to the charge. If the new total would exceed a memory limit, fails and adds nothing.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Exceeded> {
        let shared = &self.buffers.0;
        let grown = self.bytes.checked_add(bytes).ok_or(Exceeded)?;
        if bytes == 0 || grown <= shared.free {
            self.bytes = grown;
            return Ok(());
        }
        let taken = shared.take(self.client, grown - self.charged);
        match taken {
            Ok(()) => (self.bytes, self.charged) = (grown, grown),
            Err(Exceeded) => {
                shared.exceeded[self.kind as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        taken
    }

    /// Reserves capacity for `more` additional bytes in `buffer`. Charges the capacity of the buffer, not its length.
    /// If the capacity is not sufficient, it is doubled, up to `most` bytes. So a body that arrives in many parts is
    /// copied only a few times.
    pub(crate) fn reserve(
        &mut self,
        buffer: &mut Vec<u8>,
        more: usize,
        most: usize,
    ) -> Result<(), Exceeded> {
        let (length, capacity) = (buffer.len(), buffer.capacity());
        let needed = length.saturating_add(more);
        if needed > capacity {
            let grown = capacity.saturating_mul(2).min(most).max(needed);
            self.grow(grown - capacity)?;
            buffer.reserve_exact(grown - length);
        }
        Ok(())
    }

    /// Returns `bytes` with the charge attached. The charge is released when the last reference to the bytes is
    /// dropped.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        if self.charged == 0 {
            return bytes;
        }
        Bytes::from_owner(ChargedBytes {
            bytes,
            _charge: self,
        })
    }
}

impl Drop for BufferCharge {
    fn drop(&mut self) {
        if self.charged > 0 {
            self.buffers.0.release(self.client, self.charged);
        }
    }
}

/// Bytes with their charge. The field order matters: the bytes are freed before the charge is released.
struct ChargedBytes {
    bytes: Bytes,
    _charge: BufferCharge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers")
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
