//! Copies of request bodies, so that a retry can send a body again.
//!
//! A body is copied while it is forwarded, so no attempt waits until it is complete. If the copy would exceed
//! `max_body` or the limits on all bodies in memory, or if the client aborts the body, the copy is dropped and the
//! request is not retried. All attempts share the client's body, but only the latest reads from it, after the copy.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use crate::request::body::{RequestBody, RequestBodyError};
use crate::request::buffers::BufferCharge;

/// Parts of a copy are small, because they do not count towards the limits on bodies in memory.
const PART: usize = 64 * 1024;

/// Shared by all attempts of a request.
#[derive(Clone, Debug)]
pub(super) struct ReplayBuffer(Arc<Mutex<ReplayState>>);

#[derive(Debug)]
struct ReplayState {
    body: RequestBody,
    /// All bytes that were forwarded so far. `None` if the copy was dropped, which excludes a retry.
    copy: Option<BodyCopy>,
    ended: bool,
    /// As declared by the client.
    length: SizeHint,
    /// The latest attempt, which alone reads from the client.
    attempt: u32,
}

/// Contains no references to the forwarded parts, because a reference to one byte can keep a read buffer of several KiB
/// in memory.
#[derive(Debug)]
struct BodyCopy {
    bytes: Vec<u8>,
    charge: BufferCharge,
    cap: usize,
}

#[derive(Debug)]
pub(crate) struct ReplayBody {
    buffer: ReplayBuffer,
    attempt: u32,
    forwarded: usize,
}

impl ReplayBuffer {
    pub(super) fn new(body: RequestBody, cap: usize, charge: BufferCharge) -> Self {
        let length = body.size_hint();
        let upper = length.upper().and_then(|upper| usize::try_from(upper).ok());
        let copy = BodyCopy {
            bytes: Vec::new(),
            charge,
            cap: upper.map_or(cap, |upper| upper.min(cap)),
        };
        Self(Arc::new(Mutex::new(ReplayState {
            body,
            copy: Some(copy),
            ended: false,
            length,
            attempt: 0,
        })))
    }

    /// Earlier attempts then receive no further parts. `None` if the copy was dropped.
    pub(super) fn replay(&self) -> Option<ReplayBody> {
        let mut state = self.0.lock();
        state.copy.as_ref()?;
        state.attempt += 1;
        Some(ReplayBody {
            buffer: self.clone(),
            attempt: state.attempt,
            forwarded: 0,
        })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.0.lock().copy.is_some()
    }
}

impl ReplayState {
    fn copy_part(&mut self, part: &[u8]) {
        if self.copy.as_mut().is_some_and(|copy| !copy.add(part)) {
            self.copy = None;
        }
    }

    /// `None` if the copy ends there or was dropped.
    fn copied_after(&self, offset: usize) -> Option<Bytes> {
        let rest = self.copy.as_ref()?.bytes.get(offset..)?;
        let part = &rest[..rest.len().min(PART)];
        (!part.is_empty()).then(|| Bytes::copy_from_slice(part))
    }
}

impl BodyCopy {
    /// Returns `false` and adds nothing if the copy would exceed a size limit.
    fn add(&mut self, part: &[u8]) -> bool {
        let Self { bytes, charge, cap } = self;
        let fits =
            part.len() <= *cap - bytes.len() && charge.reserve(bytes, part.len(), *cap).is_ok();
        if fits {
            bytes.extend_from_slice(part);
        }
        fits
    }
}

impl ReplayBody {
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let mut state = self.buffer.0.lock();
        if state.attempt != self.attempt {
            // A later attempt reads the body. The connection of this attempt is being closed.
            return Poll::Pending;
        }
        let part = if let Some(part) = state.copied_after(self.forwarded) {
            part
        } else if state.ended {
            return Poll::Ready(None);
        } else {
            match std::task::ready!(Pin::new(&mut state.body).poll_frame(cx)) {
                None => {
                    state.ended = true;
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    // The body can report its end after an error. A replay of the copy would then look complete.
                    state.copy = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(frame)) => {
                    let part = frame.into_data().unwrap_or_default();
                    state.copy_part(&part);
                    part
                }
            }
        };
        self.forwarded += part.len();
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.buffer.0.lock();
        let replayed = state
            .copy
            .as_ref()
            .is_none_or(|copy| copy.bytes.len() <= self.forwarded);
        replayed && (state.ended || state.body.is_end_stream())
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let length = self.buffer.0.lock().length.exact();
        length.map_or_else(SizeHint::default, |length| {
            SizeHint::with_exact(length.saturating_sub(self.forwarded as u64))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::request::buffers::{BufferBounds, Buffered, Buffers};
    use crate::request::client::ClientId;

    fn buffers(total: usize) -> Arc<Buffers> {
        Arc::new(Buffers::new(BufferBounds {
            total,
            per_client: total,
        }))
    }

    /// Creates a buffer that copies up to `cap` bytes of `body`. The copy counts towards the limits of `buffers`.
    fn buffer(body: impl Into<Bytes>, cap: usize, buffers: &Arc<Buffers>) -> ReplayBuffer {
        let client = ClientId::of([127, 0, 0, 1].into(), 64);
        let charge = buffers.charge(client, Buffered::Retry);
        ReplayBuffer::new(body.into().into(), cap, charge)
    }

    /// Reads `replay` until it is pending, fails or ends. Returns its parts.
    fn parts(replay: &mut ReplayBody) -> Vec<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut parts = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = replay.poll_part(&mut cx) {
            parts.push(frame.into_data().unwrap());
        }
        parts
    }

    #[test]
    fn each_replay_starts_with_the_first_byte() {
        let buffer = buffer("four", 4, &buffers(4));
        for _ in 0..3 {
            let mut replay = buffer.replay().unwrap();
            assert_eq!(replay.size_hint().exact(), Some(4));
            assert!(!replay.is_end_stream());
            assert_eq!(parts(&mut replay), ["four"]);
            assert!(replay.is_end_stream());
            assert_eq!(replay.size_hint().exact(), Some(0));
        }
    }

    #[test]
    fn a_body_above_the_maximum_cannot_be_replayed() {
        let buffer = buffer("four!", 4, &buffers(100));
        let mut first = buffer.replay().unwrap();
        assert!(buffer.is_complete());
        assert_eq!(parts(&mut first), ["four!"]);
        assert!(!buffer.is_complete());
        assert!(buffer.replay().is_none());
    }

    #[test]
    fn an_earlier_attempt_receives_no_further_parts() {
        let buffer = buffer("four", 4, &buffers(100));
        let mut first = buffer.replay().unwrap();
        let mut second = buffer.replay().unwrap();
        assert_eq!(parts(&mut first), [""; 0]);
        assert_eq!(parts(&mut second), ["four"]);
    }

    #[test]
    fn a_copy_is_charged_until_the_last_attempt_ends() {
        let buffers = buffers(100);
        let buffer = buffer("four", 4, &buffers);
        let mut first = buffer.replay().unwrap();
        assert_eq!(buffers.in_use(), 0);
        assert_eq!(parts(&mut first), ["four"]);
        assert_eq!(buffers.in_use(), 4);
        drop(buffer);
        assert_eq!(buffers.in_use(), 4);
        drop(first);
        assert_eq!(buffers.in_use(), 0);
    }

    #[test]
    fn a_body_above_the_bound_on_held_bodies_cannot_be_replayed() {
        let buffers = buffers(3);
        let buffer = buffer("four", 4, &buffers);
        let mut first = buffer.replay().unwrap();
        assert_eq!(parts(&mut first), ["four"]);
        assert!(first.is_end_stream());
        assert!(buffer.replay().is_none());
        assert_eq!(buffers.in_use(), 0);
        assert_eq!(buffers.exceeded(Buffered::Retry), 1);
    }

    #[test]
    fn a_large_copy_is_sent_in_parts() {
        let body = vec![b'x'; 2 * PART + 1];
        let buffer = buffer(body.clone(), body.len(), &buffers(body.len()));
        let mut first = buffer.replay().unwrap();
        assert_eq!(parts(&mut first).len(), 1);
        let mut second = buffer.replay().unwrap();
        let sent = parts(&mut second);
        assert_eq!(sent.len(), 3);
        assert!(sent.concat() == body);
        assert!(second.is_end_stream());
    }
}
