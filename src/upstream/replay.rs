//! A request's body that may have to be sent once more.
//!
//! Its parts are kept as they pass, up to a cap; nothing waits for the rest to come. A body that outgrows
//! the cap is let go of, and is sent once. Where an attempt ends before the client has sent everything,
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
    /// What passed, unless it was too much.
    parts: Vec<Bytes>,
    /// Bytes that may still be kept; `None` once there were more.
    room: Option<usize>,
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
    /// The next part of those kept.
    next: usize,
    /// Bytes that passed.
    passed: u64,
}

impl Kept {
    /// `body`, of which up to `cap` bytes are kept.
    pub(super) fn new(body: RequestBody, cap: usize) -> Self {
        let length = body.size_hint();
        Self(Arc::new(Mutex::new(State {
            body,
            parts: Vec::new(),
            room: Some(cap),
            ended: false,
            length,
            attempt: 0,
        })))
    }

    /// The body from its start, for another attempt; whoever had it before gets no more of it. `None` if part of
    /// it is gone.
    pub(super) fn replay(&self) -> Option<Replay> {
        let mut state = self.0.lock();
        state.room?;
        state.attempt += 1;
        Some(Replay {
            kept: self.clone(),
            attempt: state.attempt,
            next: 0,
            passed: 0,
        })
    }

    /// Whether all of what passed is still here.
    pub(super) fn is_whole(&self) -> bool {
        self.0.lock().room.is_some()
    }
}

impl State {
    fn keep(&mut self, part: &Bytes) {
        self.room = self.room.and_then(|room| room.checked_sub(part.len()));
        if self.room.is_some() {
            self.parts.push(part.clone());
        } else {
            self.parts = Vec::new();
        }
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
        let part = if let Some(part) = state.parts.get(self.next) {
            part.clone()
        } else if state.ended {
            return Poll::Ready(None);
        } else {
            match std::task::ready!(Pin::new(&mut state.body).poll_frame(cx)) {
                None => {
                    state.ended = true;
                    return Poll::Ready(None);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => {
                    let part = frame.into_data().unwrap_or_default();
                    state.keep(&part);
                    part
                }
            }
        };
        self.next += 1;
        self.passed += part.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.kept.0.lock();
        self.next >= state.parts.len() && (state.ended || state.body.is_end_stream())
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let length = self.kept.0.lock().length.exact();
        length.map_or_else(SizeHint::default, |length| {
            SizeHint::with_exact(length.saturating_sub(self.passed))
        })
    }
}
