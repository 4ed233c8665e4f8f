//! Request bodies that are streamed from the client to a server.
//!
//! The gateway reads from the client no faster than the server reads. It tracks the progress of a body for three
//! purposes: to start `first_byte_timeout` when the last byte of the body was sent, to close a connection on which the
//! body was not sent completely, and to find out whether the client or the server caused a failed upload.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::replay_body::ReplayBody;
use crate::http::http1::Violation;
use crate::request::body::{RequestBody, RequestBodyError};

/// Request body that is sent to a server. `None` stands for an empty body.
#[derive(Debug)]
pub(crate) struct UpstreamBody(Option<Upload>);

#[derive(Debug)]
struct Upload {
    body: UploadSource,
    progress: Arc<UploadProgress>,
}

#[derive(Debug)]
enum UploadSource {
    /// The body is read from the client.
    Client(RequestBody),
    /// The part of the body that an earlier attempt has sent is read from a copy in memory, and the rest from the
    /// client.
    Replay(ReplayBody),
}

/// Progress of the transfer of a request body to a server.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    state: AtomicU8,
    started: Instant,
    /// When the last part was sent to the server, in milliseconds since `started`.
    last: AtomicU64,
    waits_for_client: AtomicBool,
    violation: OnceLock<Violation>,
}

/// State of the transfer of a request body to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UploadStage {
    /// A part of the body has not been sent to the server yet.
    InProgress,
    /// The complete body has been sent to the server.
    Sent,
    /// The body exceeds the maximum size of a request body.
    TooLarge,
    /// The client disconnected before the end of the body, or sent invalid HTTP.
    ClientFailed,
}

impl UpstreamBody {
    /// Creates an empty request body.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Creates a body that is sent while it arrives from the client. Also returns its progress, or `None` for an empty
    /// body.
    pub(crate) fn new(body: RequestBody) -> (Self, Option<Arc<UploadProgress>>) {
        if body.is_end_stream() {
            return (Self::none(), None);
        }
        Self::tracked(UploadSource::Client(body))
    }

    /// Creates a body that starts with the part that an earlier attempt has sent. Also returns the progress of the new
    /// body.
    pub(super) fn replaying(body: ReplayBody) -> (Self, Option<Arc<UploadProgress>>) {
        Self::tracked(UploadSource::Replay(body))
    }

    fn tracked(body: UploadSource) -> (Self, Option<Arc<UploadProgress>>) {
        let progress = Arc::new(UploadProgress {
            state: AtomicU8::new(UploadStage::InProgress as u8),
            started: Instant::now(),
            last: AtomicU64::new(0),
            waits_for_client: AtomicBool::new(false),
            violation: OnceLock::new(),
        });
        let upload = Upload {
            body,
            progress: Arc::clone(&progress),
        };
        (Self(Some(upload)), Some(progress))
    }
}

impl UploadProgress {
    /// Returns the current state of the transfer.
    pub(crate) fn stage(&self) -> UploadStage {
        match self.state.load(Ordering::Acquire) {
            0 => UploadStage::InProgress,
            1 => UploadStage::Sent,
            2 => UploadStage::TooLarge,
            _ => UploadStage::ClientFailed,
        }
    }

    /// If the body was aborted because the client sent invalid HTTP, returns the violation. Otherwise returns `None`.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.violation.get().copied()
    }

    /// Whether the gateway has sent everything that it received from the client, and now waits for more.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.waits_for_client.load(Ordering::Acquire)
    }

    /// Returns when the last part was sent to the server, or when the transfer started if no part was sent.
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

impl Upload {
    fn is_end_stream(&self) -> bool {
        match &self.body {
            UploadSource::Client(body) => body.is_end_stream(),
            UploadSource::Replay(body) => body.is_end_stream(),
        }
    }

    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let part = match &mut self.body {
            UploadSource::Client(body) => Pin::new(body).poll_frame(cx),
            UploadSource::Replay(body) => body.poll_part(cx),
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
            Some(upload) => upload.poll_part(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Upload::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            None => SizeHint::with_exact(0),
            Some(upload) => match &upload.body {
                UploadSource::Client(body) => body.size_hint(),
                UploadSource::Replay(body) => body.size_hint(),
            },
        }
    }
}
