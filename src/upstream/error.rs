//! Why there is no answer to pass on, and what follows from that.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use super::Upstream;
use super::balance::NoServer;
use super::connect::ConnectError;
use super::patience::{OutOfPatience, Phase};
use super::target::Unavailable;
use crate::idempotency::Undone;
use crate::respond::Rejection;
use crate::retry::Failure;
use crate::wire::Violation;

/// Why there is no answer to pass on.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// No server could be reached.
    #[error("no server could be reached: {0}")]
    Connect(#[from] ConnectError),
    /// No server could be reached before the exchange had to be over.
    #[error("no server was reached: {0}")]
    NotReachedInTime(#[source] OutOfPatience),
    /// A connection that had just been made failed before it took the request.
    #[error("the connection failed before it took the request: {0}")]
    Unsent(#[source] hyper::Error),
    /// Every server is left alone for a while.
    #[error("every server's circuit is open")]
    CircuitOpen {
        /// How long the first of them stays so, where that is known.
        wait: Option<Duration>,
    },
    /// The upstream has as many requests underway as it can take.
    #[error("the upstream has all the requests underway that it can take")]
    Overloaded,
    /// The connection failed with the request underway.
    #[error("the exchange failed: {0}")]
    Exchange(#[source] hyper::Error),
    /// The answer is not one that can be passed on.
    #[error("{0}")]
    BadAnswer(&'static str),
    /// No answer in time.
    #[error(transparent)]
    TimedOut(#[from] OutOfPatience),
    /// The request's body grew larger than the gateway takes.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    /// The client broke off, or did not keep to HTTP.
    #[error("the client's request body failed")]
    ClientFailed(Option<Violation>),
}

impl From<Unavailable> for ForwardError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::NoServer(NoServer { wait }) => Self::CircuitOpen { wait },
            Unavailable::Overloaded => Self::Overloaded,
        }
    }
}

impl ForwardError {
    /// Whether the client is to blame.
    pub(super) fn is_clients(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::ClientFailed(_))
    }

    /// Whether it speaks against the server it happened with.
    pub(super) fn is_servers(&self) -> bool {
        match self {
            Self::NotReachedInTime(late) | Self::TimedOut(late) => late.is_servers,
            Self::Connect(ConnectError::Io(error)) => !is_local(error),
            _ => !self.is_clients(),
        }
    }

    /// Whether an operator learns anything from it: not from what clients do, nor from what was logged when
    /// the circuit opened.
    pub(super) fn is_news(&self) -> bool {
        !self.is_clients() && !matches!(self, Self::CircuitOpen { .. } | Self::Overloaded)
    }

    /// Whether anybody can have got the request.
    pub(super) fn undone(&self) -> Undone {
        match self {
            Self::Connect(_)
            | Self::NotReachedInTime(_)
            | Self::Unsent(_)
            | Self::CircuitOpen { .. }
            | Self::Overloaded => Undone::Unsent,
            Self::Exchange(_)
            | Self::BadAnswer(_)
            | Self::TimedOut(_)
            | Self::TooLarge(_)
            | Self::ClientFailed(_) => Undone::Lost,
        }
    }

    /// What a caller that retries calls it.
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

    /// What took too long, if that is what went wrong.
    pub fn phase(&self) -> Option<Phase> {
        match self {
            Self::Connect(ConnectError::TimedOut(_)) => Some(Phase::Connect),
            Self::NotReachedInTime(late) | Self::TimedOut(late) => Some(late.phase),
            _ => None,
        }
    }

    /// What its caller is told.
    pub(super) fn rejection(&self, upstream: &Upstream) -> Rejection {
        let named = |what: &str| -> Cow<'static, str> {
            format!("The upstream '{}' {what}.", upstream.name).into()
        };
        if let Some(phase) = self.phase() {
            return Rejection::UpstreamTimeout {
                phase,
                detail: named(match phase {
                    Phase::Connect => "could not be reached in time",
                    Phase::FirstByte => "did not answer in time",
                    Phase::Idle => "stopped taking the request's body",
                    Phase::Total => "did not answer within the time there is for a request",
                }),
            };
        }
        let detail = match self {
            Self::TooLarge(limit) => return Rejection::PayloadTooLarge { limit: *limit },
            Self::ClientFailed(Some(violation)) => return (*violation).into(),
            Self::ClientFailed(None) => {
                return Rejection::bad_request("The request body broke off.");
            }
            Self::CircuitOpen { wait } => {
                return Rejection::CircuitOpen {
                    upstream: upstream.name.clone(),
                    wait: *wait,
                    fallback: upstream.breaker.fallback.clone(),
                };
            }
            Self::Overloaded => {
                return Rejection::Overloaded {
                    upstream: upstream.name.clone(),
                };
            }
            Self::Exchange(_) => "broke off before it answered; whether it acted is not known",
            Self::BadAnswer(_) => "gave an answer that is not valid HTTP",
            _ => "could not be reached",
        };
        Rejection::UpstreamUnavailable {
            detail: named(detail),
        }
    }
}

/// Whether it was this machine that could not: it has no files or no ports left.
fn is_local(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS)
    )
}
