//! Errors of single attempts, and the error of a request after its last attempt.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use http::{Response, StatusCode};

use super::classify::Failure;
use super::policy::GiveUp;
use super::retry_after::RetryAfter;

/// Error of an attempt, which tells the policy whether and when to retry. [`Failure`], [`ErrorResponse`] and
/// `io::Error` implement it.
pub trait RetryableError: Error {
    /// Returns why the attempt failed, or `None` if the error is not to be retried.
    fn failure(&self) -> Option<Failure>;

    /// Returns the `Retry-After` of the response.
    fn retry_after(&self) -> Option<RetryAfter> {
        None
    }
}

/// Error of an attempt whose response has a status of 400 or above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// Status of the response.
    pub status: StatusCode,
    /// Its `Retry-After`, if valid.
    pub retry_after: Option<RetryAfter>,
}

/// Error of a request that failed and is not retried any more.
#[derive(Debug)]
pub struct GaveUp<E> {
    /// Why no further attempt was made.
    pub why: GiveUp,
    /// Number of attempts, at least 1.
    pub attempts: u32,
    /// Error of the last attempt.
    pub last: Last<E>,
}

/// Error of the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last<E> {
    /// The future of the attempt returned this error.
    Failed(E),
    /// The attempt exceeded this timeout of the [`Retrying`](super::Retrying).
    TimedOut(Duration),
}

impl ErrorResponse {
    /// Returns the response if its status is below 400. Otherwise an error with its status and `Retry-After`.
    pub fn check<B>(response: Response<B>) -> Result<Response<B>, Self> {
        let status = response.status();
        if status.as_u16() < 400 {
            return Ok(response);
        }
        Err(Self {
            status,
            retry_after: RetryAfter::of(response.headers()),
        })
    }
}

impl fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Failure::Status(self.status).fmt(f)
    }
}

impl Error for ErrorResponse {}

impl RetryableError for ErrorResponse {
    fn failure(&self) -> Option<Failure> {
        Some(Failure::Status(self.status))
    }

    fn retry_after(&self) -> Option<RetryAfter> {
        self.retry_after
    }
}

impl RetryableError for Failure {
    fn failure(&self) -> Option<Failure> {
        Some(*self)
    }
}

impl RetryableError for io::Error {
    fn failure(&self) -> Option<Failure> {
        Failure::of_io(self)
    }
}

impl<E: RetryableError> Last<E> {
    /// Returns the error of the attempt, or [`Failure::TimedOut`].
    pub fn error(&self) -> &dyn RetryableError {
        match self {
            Self::Failed(error) => error,
            Self::TimedOut(_) => &Failure::TimedOut,
        }
    }
}

impl<E: RetryableError> GaveUp<E> {
    /// Whether the last attempt got a response with status 429.
    pub fn is_rate_limit(&self) -> bool {
        let failure = self.last.error().failure();
        failure.is_some_and(Failure::is_rate_limit)
    }
}

impl<E: RetryableError> fmt::Display for GaveUp<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_rate_limit() {
            f.write_str("rate limit exceeded: ")?;
        }
        let attempts = self.attempts;
        let s = if attempts == 1 { "" } else { "s" };
        match self.why {
            GiveUp::NotWorthIt => f.write_str("gave up after a failure that is not retryable"),
            GiveUp::Exhausted => write!(f, "gave up after {attempts} attempt{s}"),
            GiveUp::TooLate => {
                write!(f, "gave up at the deadline, after {attempts} attempt{s}")
            }
        }
    }
}

impl<E: RetryableError + 'static> Error for GaveUp<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.last {
            Last::Failed(error) => Some(error),
            Last::TimedOut(_) => Some(&Failure::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[test]
    fn a_response_of_400_or_above_is_an_error_with_its_retry_after() {
        let check = |status: u16| {
            let response = Response::builder().status(status);
            let response = response.header(header::RETRY_AFTER, "7").body(());
            ErrorResponse::check(response.unwrap())
        };
        for status in [200, 304, 399] {
            assert!(check(status).is_ok(), "{status}");
        }
        for status in [400, 429, 503] {
            let error = check(status).unwrap_err();
            assert_eq!(error.retry_after(), Some(RetryAfter::Seconds(7)));
            assert_eq!(error.failure(), Some(error.status.into()));
        }
    }

    #[test]
    fn gave_up_contains_the_reason_and_the_last_error() {
        let gave_up = |why, attempts, last| {
            let gave_up = GaveUp {
                why,
                attempts,
                last,
            };
            let source = gave_up.source().map(ToString::to_string);
            format!("{gave_up}: {}", source.unwrap())
        };
        let status = |status| Last::Failed(Failure::Status(status));
        assert_eq!(
            gave_up(GiveUp::Exhausted, 5, status(StatusCode::TOO_MANY_REQUESTS)),
            "rate limit exceeded: gave up after 5 attempts: 429 Too Many Requests"
        );
        assert_eq!(
            gave_up(GiveUp::NotWorthIt, 1, status(StatusCode::NOT_FOUND)),
            "gave up after a failure that is not retryable: 404 Not Found"
        );
        assert_eq!(
            gave_up(GiveUp::TooLate, 1, Last::TimedOut(Duration::from_secs(1))),
            "gave up at the deadline, after 1 attempt: timed out"
        );
    }
}
