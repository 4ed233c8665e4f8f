//! Copies of request bodies for retries.
//!
//! A body is copied as it passes, up to a cap and within the bounds on held bodies. No attempt waits for the rest of it.
//! The copy of a body that exceeds a bound, or that its client does not complete, is dropped, and the request is sent
//! once. If an attempt ends before the client has sent everything, the next attempt sends the copy and then continues
//! to read: the attempts share the client's body, and the latest one reads it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use crate::body::{RequestBody, RequestBodyError};
use crate::buffers::BufferCharge;

/// Bytes of a copy that are sent as one part, at most. A part is not charged.
const PART: usize = 64 * 1024;

/// The copy of a body that may have to be sent again, and the rest of the body.
#[derive(Clone, Debug)]
pub(super) struct ReplayBuffer(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    body: RequestBody,
    /// The bytes that passed, unless a bound was exceeded.
    kept: Option<Copied>,
    /// Whether the client sent everything.
    ended: bool,
    /// Its declared length.
    length: SizeHint,
    /// The attempt it belongs to.
    attempt: u32,
}

/// A copy of all that passed. The parts themselves are not held: a part can be one byte of a read buffer of several
/// KiB.
#[derive(Debug)]
struct Copied {
    bytes: Vec<u8>,
    charge: BufferCharge,
    /// Length at most, in bytes.
    cap: usize,
}

/// The body of one attempt: the copy, then what the client sends.
#[derive(Debug)]
pub(super) struct ReplayBody {
    kept: ReplayBuffer,
    attempt: u32,
    /// Bytes that were forwarded.
    passed: usize,
}

impl ReplayBuffer {
    /// Copies up to `cap` bytes of `body` as it passes, and charges for them.
    pub(super) fn new(body: RequestBody, cap: usize, charge: BufferCharge) -> Self {
        let length = body.size_hint();
        let upper = length.upper().and_then(|upper| usize::try_from(upper).ok());
        let copied = Copied {
            bytes: Vec::new(),
            charge,
            cap: upper.map_or(cap, |upper| upper.min(cap)),
        };
        Self(Arc::new(Mutex::new(State {
            body,
            kept: Some(copied),
            ended: false,
            length,
            attempt: 0,
        })))
    }

    /// Returns the body from its start, for another attempt. Earlier attempts get no more of it. `None` if part of it was
    /// dropped.
    pub(super) fn replay(&self) -> Option<ReplayBody> {
        let mut state = self.0.lock();
        state.kept.as_ref()?;
        state.attempt += 1;
        Some(ReplayBody {
            kept: self.clone(),
            attempt: state.attempt,
            passed: 0,
        })
    }

    /// Whether the copy is complete.
    pub(super) fn is_whole(&self) -> bool {
        self.0.lock().kept.is_some()
    }
}

impl State {
    /// Copies `part`, or drops the copy if a bound would be exceeded.
    fn keep(&mut self, part: &[u8]) {
        if self.kept.as_mut().is_some_and(|kept| !kept.add(part)) {
            self.kept = None;
        }
    }

    /// Returns the next part of the copy after `passed` bytes, or `None` at its end.
    fn kept_after(&self, passed: usize) -> Option<Bytes> {
        let rest = self.kept.as_ref()?.bytes.get(passed..)?;
        let part = &rest[..rest.len().min(PART)];
        (!part.is_empty()).then(|| Bytes::copy_from_slice(part))
    }
}

impl Copied {
    /// Copies `part`. Returns `false` if a bound would be exceeded.
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
        let mut state = self.kept.0.lock();
        if state.attempt != self.attempt {
            // The connection of an earlier attempt is being closed.
            return Poll::Pending;
        }
        let part = if let Some(kept) = state.kept_after(self.passed) {
            kept
        } else if state.ended {
            return Poll::Ready(None);
        } else {
            match std::task::ready!(Pin::new(&mut state.body).poll_frame(cx)) {
                None => {
                    state.ended = true;
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    // A body polled after an error can seem to be complete.
                    state.kept = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(frame)) => {
                    let part = frame.into_data().unwrap_or_default();
                    state.keep(&part);
                    part
                }
            }
        };
        self.passed += part.len();
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.kept.0.lock();
        let replayed = state
            .kept
            .as_ref()
            .is_none_or(|kept| kept.bytes.len() <= self.passed);
        replayed && (state.ended || state.body.is_end_stream())
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let length = self.kept.0.lock().length.exact();
        length.map_or_else(SizeHint::default, |length| {
            SizeHint::with_exact(length.saturating_sub(self.passed as u64))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::buffers::{BufferBounds, Buffered, Buffers};
    use crate::client::ClientId;

    fn buffers(total: usize) -> Arc<Buffers> {
        Arc::new(Buffers::new(BufferBounds {
            total,
            per_client: total,
        }))
    }

    /// A body of which up to `cap` bytes are copied, charged to `buffers`.
    fn kept(body: impl Into<Bytes>, cap: usize, buffers: &Arc<Buffers>) -> ReplayBuffer {
        let client = ClientId::of([127, 0, 0, 1].into(), 64);
        let charge = buffers.charge(client, Buffered::Retry);
        ReplayBuffer::new(body.into().into(), cap, charge)
    }

    /// What a replay gives out, part by part.
    fn parts(replay: &mut ReplayBody) -> Vec<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut parts = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = replay.poll_part(&mut cx) {
            parts.push(frame.into_data().unwrap());
        }
        parts
    }

    #[test]
    fn what_passed_is_given_out_again_from_its_start() {
        let kept = kept("four", 4, &buffers(4));
        for _ in 0..3 {
            let mut replay = kept.replay().unwrap();
            assert_eq!(replay.size_hint().exact(), Some(4));
            assert!(!replay.is_end_stream());
            assert_eq!(parts(&mut replay), ["four"]);
            assert!(replay.is_end_stream());
            assert_eq!(replay.size_hint().exact(), Some(0));
        }
    }

    #[test]
    fn more_than_may_be_kept_passes_once() {
        let kept = kept("four!", 4, &buffers(100));
        let mut first = kept.replay().unwrap();
        assert!(kept.is_whole());
        assert_eq!(parts(&mut first), ["four!"]);
        assert!(!kept.is_whole());
        assert!(kept.replay().is_none());
    }

    #[test]
    fn an_attempt_that_was_given_up_gets_no_more_of_it() {
        let kept = kept("four", 4, &buffers(100));
        let mut first = kept.replay().unwrap();
        let mut second = kept.replay().unwrap();
        assert_eq!(parts(&mut first), [""; 0]);
        assert_eq!(parts(&mut second), ["four"]);
    }

    #[test]
    fn a_copy_is_charged_until_the_last_attempt_ends() {
        let buffers = buffers(100);
        let kept = kept("four", 4, &buffers);
        let mut first = kept.replay().unwrap();
        assert_eq!(buffers.in_use(), 0);
        assert_eq!(parts(&mut first), ["four"]);
        assert_eq!(buffers.in_use(), 4);
        drop(kept);
        assert_eq!(buffers.in_use(), 4);
        drop(first);
        assert_eq!(buffers.in_use(), 0);
    }

    #[test]
    fn a_body_beyond_the_bound_on_held_bodies_passes_once() {
        let buffers = buffers(3);
        let kept = kept("four", 4, &buffers);
        let mut first = kept.replay().unwrap();
        assert_eq!(parts(&mut first), ["four"]);
        assert!(first.is_end_stream());
        assert!(kept.replay().is_none());
        assert_eq!(buffers.in_use(), 0);
        assert_eq!(buffers.exceeded(Buffered::Retry), 1);
    }

    #[test]
    fn a_large_copy_is_sent_in_parts() {
        let body = vec![b'x'; 2 * PART + 1];
        let kept = kept(body.clone(), body.len(), &buffers(body.len()));
        let mut first = kept.replay().unwrap();
        assert_eq!(parts(&mut first).len(), 1);
        let mut second = kept.replay().unwrap();
        let sent = parts(&mut second);
        assert_eq!(sent.len(), 3);
        assert!(sent.concat() == body);
        assert!(second.is_end_stream());
    }
}
