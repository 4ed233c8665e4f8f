//! A response's body on its way back to the client.
//!
//! It passes on what upstream sends as the client takes it. A body that stalls or breaks off ends in an
//! error, which aborts the response: what was cut short must never look complete. The
//! connection goes back to its pool at the body's end, and nowhere if that is never reached.

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
use super::patience::{CLIENT_PAUSE, Patience};
use super::pool::Lease;
use super::target::Visit;
use crate::body::BodyError;
use crate::metrics::{InFlight, UpstreamFailure};

/// A wait for upstream that is longer than the internal delays of the gateway.
const UPSTREAM_PAUSE: Duration = Duration::from_millis(250);

/// A response's body on its way back.
#[derive(Debug)]
pub struct Relay {
    body: Incoming,
    lease: Option<Lease>,
    /// How long upstream may send nothing.
    idle: Duration,
    /// When all of it has to be here.
    deadline: Option<Instant>,
    /// When the relay of the body began.
    began: Instant,
    /// Start and timer of a wait for upstream.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
    /// What counts it as underway.
    underway: Option<(InFlight, Visit)>,
}

impl Relay {
    /// Passes on `body`, which came over `lease`.
    pub(super) fn new(
        body: Incoming,
        lease: Lease,
        patience: &Patience,
        underway: (InFlight, Visit),
    ) -> Self {
        Self {
            body,
            lease: Some(lease),
            idle: patience.idle(),
            deadline: patience.deadline(),
            began: Instant::now(),
            stalled: None,
            underway: Some(underway),
        }
    }

    fn finish(&mut self) {
        if let Some((_, mut visit)) = self.underway.take() {
            visit.succeeded();
        }
        if let Some(lease) = self.lease.take() {
            lease.finish();
        }
    }

    /// Aborts the response. Only a connection that upstream closes counts against the server: it responded in
    /// time, and a stream may be quiet for longer than a timeout allows.
    fn cut_short(&mut self, error: BodyError) -> BodyError {
        tracing::warn!(%error, "upstream's response was cut short");
        if let Some((in_flight, mut visit)) = self.underway.take() {
            if matches!(error, BodyError::Upstream(_)) && !self.is_clients() {
                visit.failed(Failure::Response);
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

impl Body for Relay {
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
                    // Upstream is done, however long the client takes over what it has.
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                let error = BodyError::Upstream(error);
                Poll::Ready(Some(Err(self.cut_short(error))))
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
                Poll::Ready(Some(Err(self.cut_short(error))))
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

impl Drop for Relay {
    fn drop(&mut self) {
        // A body whose length was declared is not polled again once all of it passed.
        if self.body.is_end_stream() {
            self.finish();
        }
    }
}
