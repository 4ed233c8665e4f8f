//! A request's body that may have to be sent once more.
//!
//! It is kept as it passes, up to a cap; nothing waits for the rest to come. A body that outgrows the cap, or
//! that its client breaks off, is let go of, and is sent once. Where an attempt ends before the client has sent everything,
//! the next one sends what was kept and then goes on reading: so the client's side is shared between
//! attempts, and belongs to the latest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use crate::intake::{RequestBody, RequestBodyError};

/// A body that may have to be sent once more.
#[derive(Clone, Debug)]
pub(super) struct Kept(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    body: RequestBody,
    /// What passed, while all of it could be kept. A copy: to keep a part as it came would be to keep the
    /// buffer it was read into, some kilobytes for a byte.
    kept: Option<Vec<u8>>,
    /// Bytes that are kept at most.
    cap: usize,
    /// Whether the client sent everything.
    ended: bool,
    /// Its declared length.
    length: SizeHint,
    /// The attempt it belongs to.
    attempt: u32,
}

/// One attempt's way through a body.
#[derive(Debug)]
pub(super) struct Replay {
    kept: Kept,
    attempt: u32,
    /// Bytes that passed.
    passed: usize,
}

impl Kept {
    /// `body`, of which up to `cap` bytes are kept.
    pub(super) fn new(body: RequestBody, cap: usize) -> Self {
        let length = body.size_hint();
        Self(Arc::new(Mutex::new(State {
            body,
            kept: Some(Vec::new()),
            cap,
            ended: false,
            length,
            attempt: 0,
        })))
    }

    /// The body from its start, for another attempt; whoever had it before gets no more of it. `None` if part of
    /// it is gone.
    pub(super) fn replay(&self) -> Option<Replay> {
        let mut state = self.0.lock();
        state.kept.as_ref()?;
        state.attempt += 1;
        Some(Replay {
            kept: self.clone(),
            attempt: state.attempt,
            passed: 0,
        })
    }

    /// Whether all of what passed is still here.
    pub(super) fn is_whole(&self) -> bool {
        self.0.lock().kept.is_some()
    }
}

impl State {
    fn keep(&mut self, part: &[u8]) {
        if let Some(kept) = &mut self.kept {
            if kept.len() + part.len() <= self.cap {
                kept.extend_from_slice(part);
            } else {
                self.kept = None;
            }
        }
    }

    /// What was kept beyond so many bytes of it, if there is anything.
    fn kept_after(&self, passed: usize) -> Option<Bytes> {
        let rest = self.kept.as_ref()?.get(passed..)?;
        (!rest.is_empty()).then(|| Bytes::copy_from_slice(rest))
    }
}

impl Replay {
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let mut state = self.kept.0.lock();
        if state.attempt != self.attempt {
            // Nobody waits for this: its connection is being given up.
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
                    // Asked once more it may seem to have come to its end.
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
            .is_none_or(|kept| kept.len() <= self.passed);
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

    /// What a replay gives out, part by part.
    fn parts(replay: &mut Replay) -> Vec<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut parts = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = replay.poll_part(&mut cx) {
            parts.push(frame.into_data().unwrap());
        }
        parts
    }

    #[test]
    fn what_passed_is_given_out_again_from_its_start() {
        let kept = Kept::new(Bytes::from_static(b"four").into(), 4);
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
        let kept = Kept::new(Bytes::from_static(b"four!").into(), 4);
        let mut first = kept.replay().unwrap();
        assert!(kept.is_whole());
        assert_eq!(parts(&mut first), ["four!"]);
        assert!(!kept.is_whole());
        assert!(kept.replay().is_none());
    }

    #[test]
    fn an_attempt_that_was_given_up_gets_no_more_of_it() {
        let kept = Kept::new(Bytes::from_static(b"four").into(), 4);
        let mut first = kept.replay().unwrap();
        let mut second = kept.replay().unwrap();
        assert_eq!(parts(&mut first), [""; 0]);
        assert_eq!(parts(&mut second), ["four"]);
    }
}
