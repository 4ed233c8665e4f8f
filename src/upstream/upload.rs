//! A request's body on its way upstream.
//!
//! It passes on what the client sends, chunk by chunk as upstream takes it, and keeps account of how
//! far it came: the wait for an answer starts when the last byte went out, a connection whose body is
//! unfinished is not used again, and a failure is blamed on the side that failed.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::replay::Replay;
use crate::body::{RequestBody, RequestBodyError};
use crate::wire::Violation;

/// A request's body on its way upstream.
#[derive(Debug)]
pub struct Upload(Option<Streaming>);

#[derive(Debug)]
struct Streaming {
    body: Source,
    progress: Arc<Progress>,
}

/// Where its parts come from.
#[derive(Debug)]
enum Source {
    /// The client alone.
    Client(RequestBody),
    /// What was kept of them, then the client.
    Kept(Replay),
}

/// How far a body came.
#[derive(Debug)]
pub struct Progress {
    state: AtomicU8,
    started: Instant,
    /// Milliseconds from `started` to the last part that passed.
    last: AtomicU64,
    waits_for_client: AtomicBool,
    violation: OnceLock<Violation>,
}

/// Where an upload stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Parts are still to come.
    Underway,
    /// All of it went out.
    Sent,
    /// It grew larger than the gateway takes.
    TooLarge,
    /// The client broke off, or did not keep to HTTP.
    ClientFailed,
}

impl Upload {
    /// No body at all.
    pub const fn none() -> Self {
        Self(None)
    }

    /// `body` as it comes, and the account of it; a body that is known to be empty has none.
    pub fn new(body: RequestBody) -> (Self, Option<Arc<Progress>>) {
        if body.is_end_stream() {
            return (Self::none(), None);
        }
        Self::streaming(Source::Client(body))
    }

    /// A body that may have to be sent once more.
    pub(super) fn replaying(body: Replay) -> (Self, Option<Arc<Progress>>) {
        Self::streaming(Source::Kept(body))
    }

    fn streaming(body: Source) -> (Self, Option<Arc<Progress>>) {
        let progress = Arc::new(Progress {
            state: AtomicU8::new(Stage::Underway as u8),
            started: Instant::now(),
            last: AtomicU64::new(0),
            waits_for_client: AtomicBool::new(false),
            violation: OnceLock::new(),
        });
        let streaming = Streaming {
            body,
            progress: Arc::clone(&progress),
        };
        (Self(Some(streaming)), Some(progress))
    }
}

impl Progress {
    /// Where the upload stands.
    pub fn stage(&self) -> Stage {
        match self.state.load(Ordering::Acquire) {
            0 => Stage::Underway,
            1 => Stage::Sent,
            2 => Stage::TooLarge,
            _ => Stage::ClientFailed,
        }
    }

    /// What the client did wrong, if that is how it ended and the client is still there to be told.
    pub fn violation(&self) -> Option<Violation> {
        self.violation.get().copied()
    }

    /// Whether upstream would take more than the client has sent.
    pub fn waits_for_client(&self) -> bool {
        self.waits_for_client.load(Ordering::Acquire)
    }

    /// When its last part passed.
    pub fn last_passed(&self) -> Instant {
        self.started + Duration::from_millis(self.last.load(Ordering::Acquire))
    }

    fn end(&self, stage: Stage) {
        self.passed();
        self.state.store(stage as u8, Ordering::Release);
    }

    fn passed(&self) {
        self.waits_for_client.store(false, Ordering::Release);
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Release);
    }
}

impl Streaming {
    fn is_end_stream(&self) -> bool {
        match &self.body {
            Source::Client(body) => body.is_end_stream(),
            Source::Kept(body) => body.is_end_stream(),
        }
    }

    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let part = match &mut self.body {
            Source::Client(body) => Pin::new(body).poll_frame(cx),
            Source::Kept(body) => body.poll_part(cx),
        };
        let Poll::Ready(part) = part else {
            self.progress
                .waits_for_client
                .store(true, Ordering::Release);
            return Poll::Pending;
        };
        match &part {
            Some(Ok(_)) if !self.is_end_stream() => self.progress.passed(),
            Some(Ok(_)) | None => self.progress.end(Stage::Sent),
            Some(Err(RequestBodyError::TooLarge(_))) => self.progress.end(Stage::TooLarge),
            Some(Err(error)) => {
                if let Some(violation) = error.violation() {
                    self.progress.violation.get_or_init(|| violation);
                }
                self.progress.end(Stage::ClientFailed);
            }
        }
        Poll::Ready(part)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match &mut self.0 {
            None => Poll::Ready(None),
            Some(streaming) => streaming.poll_part(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Streaming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            None => SizeHint::with_exact(0),
            Some(streaming) => match &streaming.body {
                Source::Client(body) => body.size_hint(),
                Source::Kept(body) => body.size_hint(),
            },
        }
    }
}
