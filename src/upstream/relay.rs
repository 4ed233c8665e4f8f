//! Response body that is streamed from a server to the client.
//!
//! The gateway reads from the server no faster than the client reads. A body that stalls or is truncated aborts the
//! response to the client, because a truncated response must not look complete. The connection to the server is then
//! closed, and after a complete body it returns to its pool.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::breaker::ServerFailure;
use super::error::timed_out;
use super::headers;
use super::pool::Lease;
use super::target::AttemptGuard;
use super::timeouts::{CLIENT_PAUSE, RequestTimeouts};
use crate::metrics::{InFlight, UpstreamFailure};
use crate::request::body::BodyError;

/// Delays within the gateway are shorter, so after such a wait the server has paused.
const UPSTREAM_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct RelayedBody {
    body: Incoming,
    lease: Option<Lease>,
    idle: Duration,
    deadline: Option<Instant>,
    began: Instant,
    /// Start of the current wait for the server, and the timer that limits it.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Count the request as in flight. `None` after the end of the body.
    guards: Option<(InFlight, AttemptGuard)>,
}

impl RelayedBody {
    pub(super) fn new(
        body: Incoming,
        lease: Lease,
        timeouts: &RequestTimeouts,
        guards: (InFlight, AttemptGuard),
    ) -> Self {
        Self {
            body,
            lease: Some(lease),
            idle: timeouts.idle(),
            deadline: timeouts.deadline(),
            began: Instant::now(),
            stalled: None,
            guards: Some(guards),
        }
    }

    fn finish(&mut self) {
        if let Some((_, mut guard)) = self.guards.take() {
            guard.succeeded();
        }
        if let Some(lease) = self.lease.take() {
            lease.finish();
        }
    }

    /// The circuit breaker does not count a timeout: the head arrived in time, and a stream can be silent for longer.
    fn abort(&mut self, error: BodyError) -> BodyError {
        let server = self.guards.as_ref().map(|(_, guard)| guard.name());
        tracing::warn!(server, %error, "upstream response truncated, response to client aborted");
        if let Some((in_flight, mut guard)) = self.guards.take() {
            if matches!(error, BodyError::Upstream(_)) && !self.is_client_fault() {
                guard.failed(ServerFailure::Response);
            }
            in_flight.failed(error.timeout().map_or(UpstreamFailure::Broken, timed_out));
        }
        self.lease = None;
        error
    }

    /// The client possibly caused the end of the connection by reading too slowly. Not if the gateway was waiting for
    /// the server, because the client had then read everything that the server had sent.
    fn is_client_fault(&self) -> bool {
        let waited = |(since, _): &(Instant, _)| since.elapsed() >= UPSTREAM_PAUSE;
        self.began.elapsed() >= CLIENT_PAUSE && !self.stalled.as_ref().is_some_and(waited)
    }

    /// Becomes ready when `idle_timeout` or the deadline expires.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (_, stalled) = self.stalled.get_or_insert_with(|| {
            let now = Instant::now();
            let silent = now + self.idle;
            let until = self
                .deadline
                .map_or(silent, |deadline| deadline.min(silent));
            (now, Box::pin(tokio::time::sleep_until(until)))
        });
        stalled.as_mut().poll(cx)
    }
}

impl Body for RelayedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                self.stalled = None;
                if let Some(trailers) = frame.trailers_mut() {
                    headers::trailers_to_client(trailers);
                }
                if self.body.is_end_stream() {
                    // The client can still be reading the body, but the server no longer needs the connection for it.
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                let error = BodyError::Upstream(error);
                Poll::Ready(Some(Err(self.abort(error))))
            }
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending => {
                std::task::ready!(self.poll_stalled(cx));
                let error = match self.deadline {
                    Some(deadline) if deadline <= Instant::now() => BodyError::TimedOut,
                    _ => BodyError::Stalled(self.idle),
                };
                Poll::Ready(Some(Err(self.abort(error))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        // The encoder towards the client does not poll a body with a declared length again after its last byte.
        if self.body.is_end_stream() {
            self.finish();
        }
    }
}
