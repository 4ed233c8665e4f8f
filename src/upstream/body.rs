//! Request bodies that are streamed from the client to a server.
//!
//! The progress of a body tells when to start `first_byte_timeout`, whether a connection can be reused, and whether the
//! client or the server caused a failed upload.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::replay_body::ReplayBody;
use crate::request::body::{RequestBody, RequestBodyError};

#[derive(Debug)]
pub(crate) enum UpstreamBody {
    Empty,
    Client(RequestBody, Arc<UploadProgress>),
    /// Reads the part that an earlier attempt has sent from a copy in memory, and the rest from the client.
    Replay(ReplayBody, Arc<UploadProgress>),
}

#[derive(Debug)]
pub(crate) struct UploadProgress {
    end: OnceLock<Result<(), RequestBodyError>>,
    started: Instant,
    /// When the last part was sent, in milliseconds since `started`.
    last: AtomicU64,
    waits_for_client: AtomicBool,
}

impl UpstreamBody {
    pub(crate) fn new(body: RequestBody) -> Self {
        if body.is_end_stream() {
            Self::Empty
        } else {
            Self::Client(body, Arc::new(UploadProgress::new()))
        }
    }

    pub(super) fn replaying(body: ReplayBody) -> Self {
        Self::Replay(body, Arc::new(UploadProgress::new()))
    }

    pub(crate) fn progress(&self) -> Option<&Arc<UploadProgress>> {
        match self {
            Self::Empty => None,
            Self::Client(_, progress) | Self::Replay(_, progress) => Some(progress),
        }
    }
}

impl UploadProgress {
    fn new() -> Self {
        Self {
            end: OnceLock::new(),
            started: Instant::now(),
            last: AtomicU64::new(0),
            waits_for_client: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.end.get(), Some(Ok(())))
    }

    pub(crate) fn failure(&self) -> Option<&RequestBodyError> {
        self.end.get()?.as_ref().err()
    }

    pub(crate) fn waits_for_client(&self) -> bool {
        self.waits_for_client.load(Ordering::Acquire)
    }

    /// The start of the transfer if no part was sent.
    pub(crate) fn last_passed(&self) -> Instant {
        self.started + Duration::from_millis(self.last.load(Ordering::Acquire))
    }

    fn end(&self, end: Result<(), RequestBodyError>) {
        self.passed();
        self.end.get_or_init(|| end);
    }

    fn passed(&self) {
        self.waits_for_client.store(false, Ordering::Release);
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Release);
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let part = match &mut *self {
            Self::Empty => return Poll::Ready(None),
            Self::Client(body, _) => Pin::new(body).poll_frame(cx),
            Self::Replay(body, _) => body.poll_part(cx),
        };
        let Some(progress) = self.progress() else {
            return part;
        };
        match &part {
            Poll::Pending => progress.waits_for_client.store(true, Ordering::Release),
            Poll::Ready(Some(Ok(_))) if !self.is_end_stream() => progress.passed(),
            Poll::Ready(Some(Ok(_)) | None) => progress.end(Ok(())),
            Poll::Ready(Some(Err(error))) => progress.end(Err(error.clone())),
        }
        part
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(body, _) => body.is_end_stream(),
            Self::Replay(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(body, _) => body.size_hint(),
            Self::Replay(body, _) => body.size_hint(),
        }
    }
}
