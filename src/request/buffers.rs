//! Limits on the memory for buffered bodies.
//!
//! Before the gateway allocates memory for a body, it charges the bytes to the count of all clients and to that of the
//! client. `max_buffered` limits the first count. `max_buffered_per_client` limits the second, but only while more than
//! half of `max_buffered` is in use. So a single client can use free memory, but cannot take the memory that other
//! clients need. A limit per request would not suffice, because a client can open many HTTP/2 streams.
//!
//! A body of up to 1 KiB is not charged: it is smaller than most request heads, and the two counts would take longer to
//! update than the body takes to handle. Heads, read buffers, HTTP/2 windows and streamed bodies are limited per
//! connection.

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

/// The kind determines what happens when the memory is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffered {
    /// Body of a request with an idempotency key. The request is rejected.
    Request,
    /// Start of another request body, before a server is contacted. The server is contacted earlier, and the rest is
    /// streamed.
    Upload,
    /// Body of a response to be stored. The gateway streams the response and stores a tombstone.
    Response,
    /// Copy of a stored response. The request is rejected.
    Replay,
    /// Copy of a request body. It is dropped, and the request is not retried.
    Retry,
}

impl Buffered {
    /// In the order in which the metrics report them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Request,
        Self::Upload,
        Self::Response,
        Self::Replay,
        Self::Retry,
    ];

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

/// Shared by all worker threads. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Buffers(Arc<BufferCounts>);

struct BufferCounts {
    bounds: BufferBounds,
    free: usize,
    total: AtomicUsize,
    /// A client with zero bytes has no entry.
    clients: DashMap<ClientId, usize>,
    /// Failed charges, indexed by [`Buffered`].
    exceeded: [AtomicU64; Buffered::ALL.len()],
}

/// Dropping the value releases the bytes.
#[derive(Debug)]
#[must_use = "a dropped charge is released"]
pub(crate) struct BufferCharge {
    /// Each worker thread has its own `Arc`, so that threads do not contend on one reference count.
    buffers: Arc<Buffers>,
    client: ClientId,
    kind: Buffered,
    /// Size in memory, charged or not.
    bytes: usize,
    /// `bytes`, or zero if the body is small.
    charged: usize,
}

/// Largest body that is not charged, in bytes; 1/1024 of `max_buffered_per_client` if that is below 1 MiB.
const MAX_FREE: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the memory for buffered bodies is exhausted; retry later, or raise `max_buffered` or `max_buffered_per_client` in \
     [server]"
)]
pub(crate) struct Exceeded;

impl Buffers {
    pub(crate) fn new(bounds: BufferBounds) -> Self {
        Self(Arc::new(BufferCounts {
            bounds,
            free: MAX_FREE.min(bounds.per_client / 1024),
            total: AtomicUsize::new(0),
            clients: DashMap::new(),
            exceeded: Default::default(),
        }))
    }

    pub(crate) fn charge(self: &Arc<Self>, client: ClientId, kind: Buffered) -> BufferCharge {
        BufferCharge {
            buffers: Arc::clone(self),
            client,
            kind,
            bytes: 0,
            charged: 0,
        }
    }

    pub(crate) fn bounds(&self) -> BufferBounds {
        self.0.bounds
    }

    pub(crate) fn in_use(&self) -> usize {
        self.0.total.load(Ordering::Relaxed)
    }

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
    /// Fails and adds nothing if a memory limit would be exceeded.
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

    /// Reserves capacity for `more` bytes in `buffer`, and charges the capacity instead of the length. The capacity is
    /// doubled, up to `most` bytes, so a body that arrives in many parts is copied only a few times.
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

    /// The charge is released with the last reference to the bytes.
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

/// The field order matters: the bytes are freed before the charge is released.
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
