//! The body of a response from upstream.
//!
//! It forwards what upstream sends as the client reads it. A body that stalls or is truncated ends in an error, which
//! aborts the response: a truncated response must not look complete. The connection returns to its pool at the end of
//! the body, and is closed if the end is never reached.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::breaker::Failure;
use super::error::timed_out;
use super::headers;
use super::pool::Lease;
use super::target::AttemptGuard;
use super::timeouts::{CLIENT_PAUSE, RequestTimeouts};
use crate::body::BodyError;
use crate::metrics::{InFlight, UpstreamFailure};

/// A wait for upstream that is longer than the internal delays of the gateway.
const UPSTREAM_PAUSE: Duration = Duration::from_millis(250);

/// The body of a response from upstream.
#[derive(Debug)]
pub(crate) struct RelayedBody {
    body: Incoming,
    lease: Option<Lease>,
    /// `idle_timeout`.
    idle: Duration,
    /// When the whole body has to have arrived.
    deadline: Option<Instant>,
    /// When the relay of the body began.
    began: Instant,
    /// Start and timer of a wait for upstream.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Guards of the request in flight.
    guards: Option<(InFlight, AttemptGuard)>,
}

impl RelayedBody {
    /// Creates the body of a response that arrives over `lease`.
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

    /// Aborts the response. Only a connection that upstream closes counts against the server: it responded in
    /// time, and a stream may be quiet for longer than a timeout allows.
    fn abort(&mut self, error: BodyError) -> BodyError {
        tracing::warn!(%error, "upstream response truncated");
        if let Some((in_flight, mut guard)) = self.guards.take() {
            if matches!(error, BodyError::Upstream(_)) && !self.is_clients() {
                guard.failed(Failure::Response);
            }
            in_flight.failed(error.timeout().map_or(UpstreamFailure::Broken, timed_out));
        }
        self.lease = None;
        error
    }

    /// Whether upstream may have closed the connection because the client reads too slowly. In that case upstream
    /// has always sent more than the client has read, so the gateway did not wait for upstream.
    fn is_clients(&self) -> bool {
        let waited = |(since, _): &(Instant, _)| since.elapsed() >= UPSTREAM_PAUSE;
        self.began.elapsed() >= CLIENT_PAUSE && !self.stalled.as_ref().is_some_and(waited)
    }

    /// Becomes ready when upstream has sent nothing for too long. Polled while the gateway waits for upstream.
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
                    // Upstream has sent everything, however long the client takes to read it.
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
        // A body whose length was declared is not polled again once all of it passed.
        if self.body.is_end_stream() {
            self.finish();
        }
    }
}
