//! Errors of a request that gets no response from its upstream, and what each means for retry, metric, breaker and
//! client.

use std::io;
use std::time::Duration;

use http::StatusCode;
use rustix::io::Errno;
use thiserror::Error;

use super::Upstream;
use super::breaker;
use super::connect::ConnectError;
use super::timeouts::TimeoutError;
use crate::metrics::UpstreamFailure;
use crate::request::body::RequestBodyError;
use crate::request::context::Delivery;
use crate::respond::{Problem, RETRY_SOON, TimeoutPhase};
use crate::retry::Failure;

#[derive(Debug, Error)]
pub(crate) enum ForwardError {
    #[error("request not sent, because no upstream server was reached: {0}")]
    Connect(#[from] ConnectError),
    #[error("request not sent, because no upstream server was reached: {0}")]
    NotReachedInTime(#[source] TimeoutError),
    #[error("connection to the upstream server failed before the request was sent: {0}")]
    Unsent(#[source] hyper::Error),
    #[error("request not sent, because the circuit breakers of all upstream servers are open")]
    CircuitOpen {
        /// Until at least one circuit breaker admits a probe, if this time is known.
        wait: Option<Duration>,
    },
    #[error("request not sent, because the upstream is at its concurrency limit")]
    Overloaded,
    #[error("connection to the upstream server failed before the response: {source}")]
    Exchange {
        source: hyper::Error,
        /// `false` if the server was waiting for a slow client.
        is_server_fault: bool,
    },
    /// Most servers close idle connections after some time, so the server may not have read the request.
    #[error("reused connection to the upstream server closed before the response: {0}")]
    ReusedClosed(#[source] hyper::Error),
    #[error("response of the upstream server is not valid HTTP: {0}")]
    InvalidResponse(Box<dyn std::error::Error + Send + Sync>),
    #[error("upstream server authenticates connections, which requires HTTP/1.1 from the client")]
    RequiresHttp1,
    #[error(transparent)]
    TimedOut(#[from] TimeoutError),
    #[error(transparent)]
    RequestBody(RequestBodyError),
}

impl ForwardError {
    /// Such a request is not retried.
    pub(super) fn is_client_fault(&self) -> bool {
        matches!(self, Self::RequestBody(_) | Self::RequiresHttp1)
    }

    /// `None` if the server did not cause the error.
    pub(super) fn server_failure(&self) -> Option<breaker::ServerFailure> {
        use breaker::ServerFailure::{Connect, ConnectTimeout, Response};
        match self {
            Self::Connect(ConnectError::Io(error)) if is_local(error) => None,
            Self::Connect(ConnectError::TimedOut(_)) => Some(ConnectTimeout),
            Self::Connect(_) => Some(Connect),
            Self::NotReachedInTime(late) => late.is_server_fault.then_some(ConnectTimeout),
            Self::TimedOut(late) => late.is_server_fault.then_some(Response),
            Self::Exchange {
                is_server_fault, ..
            } => is_server_fault.then_some(Response),
            Self::Unsent(_) | Self::ReusedClosed(_) | Self::InvalidResponse(_) => Some(Response),
            Self::CircuitOpen { .. }
            | Self::Overloaded
            | Self::RequiresHttp1
            | Self::RequestBody(_) => None,
        }
    }

    /// The circuit breaker logs its openings, and a metric counts rejections of the concurrency limit.
    pub(super) fn is_warning(&self) -> bool {
        !self.is_client_fault() && !matches!(self, Self::CircuitOpen { .. } | Self::Overloaded)
    }

    pub(super) fn delivery(&self) -> Delivery {
        match self {
            Self::Connect(_)
            | Self::NotReachedInTime(_)
            | Self::Unsent(_)
            | Self::CircuitOpen { .. }
            | Self::Overloaded
            // The status 401 shows that the request was not executed.
            | Self::RequiresHttp1 => Delivery::Unsent,
            Self::Exchange { .. }
            | Self::ReusedClosed(_)
            | Self::InvalidResponse(_)
            | Self::TimedOut(_)
            | Self::RequestBody(_) => Delivery::PossiblySent,
        }
    }

    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Connect(ConnectError::Io(error)) => {
                Failure::of_io(error).unwrap_or(Failure::Disconnected)
            }
            Self::Connect(ConnectError::TimedOut(_))
            | Self::NotReachedInTime(_)
            | Self::TimedOut(_) => Failure::TimedOut,
            _ => Failure::Disconnected,
        }
    }

    pub(super) fn timeout(&self) -> Option<TimeoutPhase> {
        match self {
            Self::Connect(ConnectError::TimedOut(_)) => Some(TimeoutPhase::Connect),
            Self::NotReachedInTime(late) | Self::TimedOut(late) => Some(late.phase),
            _ => None,
        }
    }

    pub(super) fn counted_as(&self) -> UpstreamFailure {
        if let Some(phase) = self.timeout() {
            return timed_out(phase);
        }
        match self {
            Self::CircuitOpen { .. } => UpstreamFailure::CircuitOpen,
            Self::Overloaded => UpstreamFailure::Overloaded,
            Self::RequestBody(_) | Self::RequiresHttp1 => UpstreamFailure::Client,
            Self::Connect(_) => UpstreamFailure::Connect,
            _ => UpstreamFailure::Broken,
        }
    }

    /// `is_held`: later requests with the same idempotency key are rejected, because the outcome is unknown.
    pub(super) fn problem(&self, upstream: &Upstream, is_held: bool) -> Problem {
        let name = &upstream.name;
        let with_outcome = |failure: &str| match self.delivery() {
            Delivery::PossiblySent if !is_held => format!(
                "The upstream '{name}' {failure}. It is unknown whether the request was executed."
            ),
            _ => format!("The upstream '{name}' {failure}."),
        };
        if let Some(phase) = self.timeout() {
            let detail = with_outcome(match phase {
                TimeoutPhase::Connect => "could not be reached in time",
                TimeoutPhase::FirstByte => "did not respond in time",
                TimeoutPhase::Idle => "stopped reading the request body",
                TimeoutPhase::Total => "did not respond within the deadline of the request",
            });
            return Problem::upstream_timeout(phase, &detail, is_held);
        }
        let failure = match self {
            Self::RequiresHttp1 => return Problem::http1_required(),
            Self::RequestBody(error) => return error.clone().into(),
            Self::CircuitOpen { wait } => return circuit_open(upstream, *wait),
            Self::Overloaded => return overloaded(name),
            Self::Exchange { .. } | Self::ReusedClosed(_) => {
                "closed the connection before it responded"
            }
            Self::InvalidResponse(_) => "sent a response that is not valid HTTP",
            _ => "could not be reached",
        };
        Problem::upstream_unavailable(&with_outcome(failure), is_held)
    }
}

pub(super) fn timed_out(phase: TimeoutPhase) -> UpstreamFailure {
    match phase {
        TimeoutPhase::Connect => UpstreamFailure::ConnectTimeout,
        TimeoutPhase::FirstByte => UpstreamFailure::FirstByteTimeout,
        TimeoutPhase::Idle => UpstreamFailure::IdleTimeout,
        TimeoutPhase::Total => UpstreamFailure::TotalTimeout,
    }
}

fn circuit_open(upstream: &Upstream, wait: Option<Duration>) -> Problem {
    let mut problem = Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "circuit-open",
        "Circuit open",
        format!(
            "The circuit breakers of all servers of the upstream '{}' are open, because the servers have failed. The \
             request was not forwarded. Retry it after the time in Retry-After.",
            upstream.name
        ),
    );
    problem.fallback.clone_from(&upstream.breaker.fallback);
    problem.retry_after(wait.unwrap_or(RETRY_SOON))
}

fn overloaded(upstream: &str) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "upstream-unavailable",
        "Upstream overloaded",
        format!(
            "The upstream '{upstream}' is at its concurrency limit. The request was not forwarded. Retry it after the time \
             in Retry-After."
        ),
    )
    .retry_after(RETRY_SOON)
}

/// The gateway has no free file descriptors, ports or buffers, which says nothing about the server.
fn is_local(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS)
    )
}
