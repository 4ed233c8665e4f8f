//! The body of a request to upstream.
//!
//! It forwards what the client sends as upstream reads it, and tracks its progress: `first_byte_timeout` starts with the
//! last byte, a connection with an unfinished body is not reused, and a failure is attributed to the side that caused it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::replay::ReplayBody;
use crate::body::{RequestBody, RequestBodyError};
use crate::http1::Violation;

/// The body of a request to upstream.
#[derive(Debug)]
pub(crate) struct UpstreamBody(Option<Streaming>);

#[derive(Debug)]
struct Streaming {
    body: Source,
    progress: Arc<UploadProgress>,
}

/// The source of its parts.
#[derive(Debug)]
enum Source {
    /// The client.
    Client(RequestBody),
    /// The copy of an earlier attempt, then the client.
    Replay(ReplayBody),
}

/// Progress of a body.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    state: AtomicU8,
    started: Instant,
    /// Milliseconds from `started` to the last part that passed.
    last: AtomicU64,
    waits_for_client: AtomicBool,
    violation: OnceLock<Violation>,
}

/// State of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UploadStage {
    /// Parts are still to be sent.
    InProgress,
    /// All parts are sent.
    Sent,
    /// The body exceeds the limit.
    TooLarge,
    /// The client disconnected, or violated HTTP.
    ClientFailed,
}

impl UpstreamBody {
    /// Creates an empty body.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Creates a body that is forwarded as it arrives, and its progress. A body that is known to be empty has none.
    pub(crate) fn new(body: RequestBody) -> (Self, Option<Arc<UploadProgress>>) {
        if body.is_end_stream() {
            return (Self::none(), None);
        }
        Self::streaming(Source::Client(body))
    }

    /// Creates a body that may have to be sent again.
    pub(super) fn replaying(body: ReplayBody) -> (Self, Option<Arc<UploadProgress>>) {
        Self::streaming(Source::Replay(body))
    }

    fn streaming(body: Source) -> (Self, Option<Arc<UploadProgress>>) {
        let progress = Arc::new(UploadProgress {
            state: AtomicU8::new(UploadStage::InProgress as u8),
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

impl UploadProgress {
    /// Returns the state of the upload.
    pub(crate) fn stage(&self) -> UploadStage {
        match self.state.load(Ordering::Acquire) {
            0 => UploadStage::InProgress,
            1 => UploadStage::Sent,
            2 => UploadStage::TooLarge,
            _ => UploadStage::ClientFailed,
        }
    }

    /// Returns the violation of the client that ended the body, if the client is still connected.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.violation.get().copied()
    }

    /// Whether upstream has read everything that the client has sent.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.waits_for_client.load(Ordering::Acquire)
    }

    /// Returns when the last part was forwarded.
    pub(crate) fn last_passed(&self) -> Instant {
        self.started + Duration::from_millis(self.last.load(Ordering::Acquire))
    }

    fn end(&self, stage: UploadStage) {
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
            Source::Replay(body) => body.is_end_stream(),
        }
    }

    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let part = match &mut self.body {
            Source::Client(body) => Pin::new(body).poll_frame(cx),
            Source::Replay(body) => body.poll_part(cx),
        };
        let Poll::Ready(part) = part else {
            self.progress
                .waits_for_client
                .store(true, Ordering::Release);
            return Poll::Pending;
        };
        match &part {
            Some(Ok(_)) if !self.is_end_stream() => self.progress.passed(),
            Some(Ok(_)) | None => self.progress.end(UploadStage::Sent),
            Some(Err(RequestBodyError::TooLarge(_))) => self.progress.end(UploadStage::TooLarge),
            Some(Err(error)) => {
                if let Some(violation) = error.violation() {
                    self.progress.violation.get_or_init(|| violation);
                }
                self.progress.end(UploadStage::ClientFailed);
            }
        }
        Poll::Ready(part)
    }
}

impl Body for UpstreamBody {
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
                Source::Replay(body) => body.size_hint(),
            },
        }
    }
}
