//! Bounds on the memory that held bodies take.
//!
//! Keyed request bodies, copies for retries, responses being recorded and copies of stored responses are held in memory.
//! Each is charged by the bytes allocated for it, in total and per client, before the allocation. `max_buffered` always
//! applies. `max_buffered_per_client` applies while more than half of `max_buffered` is in use: a client alone is not
//! limited without need, and one client cannot fill what others need. A bound per request would not do: HTTP/2
//! multiplies it.
//!
//! A body of up to 1 KiB is not charged: it is smaller than most heads, and a charge would cost every keyed request more
//! than the body does. Heads, read buffers, HTTP/2 windows and parts that pass through are not charged either: each
//! connection bounds its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use thiserror::Error;

use crate::client::ClientId;

/// `[server] max_buffered` and `max_buffered_per_client`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferBounds {
    /// Bytes held at once for all clients together.
    pub total: usize,
    /// Bytes held at once for one client, while more than half of `total` is in use.
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

/// The body that bytes are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffered {
    /// A keyed request body. Beyond a bound the request is rejected.
    Request,
    /// A response being recorded. Beyond a bound it is streamed and not stored.
    Response,
    /// The copy of a stored response that is replayed. Beyond a bound the request is rejected.
    Replay,
    /// The copy of a request body for retries. Beyond a bound it is dropped, and the request is sent once.
    Retry,
}

impl Buffered {
    /// All kinds of bodies.
    pub(crate) const ALL: [Self; 4] = [Self::Request, Self::Response, Self::Replay, Self::Retry];

    /// The value of the metric label `kind`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
            Self::Replay => "replay",
            Self::Retry => "retry",
        }
    }
}

/// Bytes held by all workers. Cheap to clone; all clones count together.
#[derive(Clone)]
pub(crate) struct Buffers(Arc<Shared>);

struct Shared {
    bounds: BufferBounds,
    /// The largest body that is not charged, in bytes.
    free: usize,
    total: AtomicUsize,
    /// Bytes charged per client, for clients that hold at least one.
    clients: DashMap<ClientId, usize>,
    /// Bodies that would have exceeded a bound, by [`Buffered`].
    exceeded: [AtomicU64; Buffered::ALL.len()],
}

/// Bytes charged for one body, released on drop.
#[derive(Debug)]
#[must_use = "a dropped charge is released"]
pub(crate) struct BufferCharge {
    /// A worker's own clone, so that workers share no reference count.
    buffers: Arc<Buffers>,
    client: ClientId,
    kind: Buffered,
    /// Bytes of the body.
    bytes: usize,
    /// Bytes that are charged: all, or none of a small body.
    charged: usize,
}

/// The largest body that is not charged, in bytes; less if `max_buffered_per_client` is small.
const MAX_FREE: usize = 1 << 10;

/// More bytes would exceed a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the memory for held bodies is exhausted")]
pub(crate) struct Exceeded;

impl Buffers {
    /// Creates a count of zero bytes with these bounds.
    pub(crate) fn new(bounds: BufferBounds) -> Self {
        Self(Arc::new(Shared {
            bounds,
            free: MAX_FREE.min(bounds.per_client / 1024),
            total: AtomicUsize::new(0),
            clients: DashMap::new(),
            exceeded: Default::default(),
        }))
    }

    /// Starts a charge of zero bytes for a body of `client`.
    pub(crate) fn charge(self: &Arc<Self>, client: ClientId, kind: Buffered) -> BufferCharge {
        BufferCharge {
            buffers: Arc::clone(self),
            client,
            kind,
            bytes: 0,
            charged: 0,
        }
    }

    /// The configured bounds, in bytes.
    pub(crate) fn bounds(&self) -> BufferBounds {
        self.0.bounds
    }

    /// Bytes charged at present, for all clients together.
    pub(crate) fn in_use(&self) -> usize {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Bodies of this kind that would have exceeded a bound.
    pub(crate) fn exceeded(&self, kind: Buffered) -> u64 {
        self.0.exceeded[kind as usize].load(Ordering::Relaxed)
    }
}

impl Shared {
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
    /// Charges `bytes` more, all or nothing.
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

    /// Charges for capacity for `more` bytes in `buffer` and allocates it. The capacity doubles, up to `most`, so that
    /// a body in many parts is copied a few times only. The charge is the capacity, not the length.
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

    /// Returns `bytes` such that the charge is released when the last reference to them is dropped.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        if self.charged == 0 {
            return bytes;
        }
        Bytes::from_owner(Held {
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

/// Bytes and the charge for them. The bytes are dropped first.
struct Held {
    bytes: Bytes,
    _charge: BufferCharge,
}

impl AsRef<[u8]> for Held {
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
