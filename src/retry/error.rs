//! What an attempt that failed can say of itself, and what becomes of a request that failed for good.
//!
//! A program has errors of its own and keeps them: an error that implements [`RetryableError`] says how it is to be
//! classified, travels through [`Retrying`](super::Retrying) unchanged, and comes out in [`GaveUp`] when it
//! was the last. Ready to use are [`Failure`], [`ErrorResponse`] for an answer that is an error, and `io::Error`.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use http::{Response, StatusCode};

use super::classify::Failure;
use super::policy::GiveUp;
use super::retry_after::RetryAfter;

/// An error of an attempt.
pub trait RetryableError: Error {
    /// How the attempt failed; `None` where that has nothing to do with the API or the way to it, and another
    /// attempt is out of the question.
    fn failure(&self) -> Option<Failure>;

    /// What the answer told the caller to wait for, if it did.
    fn retry_after(&self) -> Option<RetryAfter> {
        None
    }
}

/// An answer that says that the request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// Its status.
    pub status: StatusCode,
    /// When it said to come back.
    pub retry_after: Option<RetryAfter>,
}

/// A request that failed for good.
#[derive(Debug)]
pub struct GaveUp<E> {
    /// Why there was no further attempt.
    pub why: GiveUp,
    /// Attempts made.
    pub attempts: u32,
    /// How the last of them failed.
    pub last: Last<E>,
}

/// How the last attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last<E> {
    /// With this error.
    Failed(E),
    /// It took longer than this, which is all it was given.
    TimedOut(Duration),
}

impl ErrorResponse {
    /// The response itself, unless its status is 400 or above.
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
    /// What went wrong.
    pub fn error(&self) -> &dyn RetryableError {
        match self {
            Self::Failed(error) => error,
            Self::TimedOut(_) => &Failure::TimedOut,
        }
    }
}

impl<E: RetryableError> GaveUp<E> {
    /// Whether it was a limit that was in the way to the end.
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
            GiveUp::NotWorthIt => f.write_str("another attempt would fail alike"),
            GiveUp::Exhausted => write!(f, "gave up after {attempts} attempt{s}"),
            GiveUp::TooLate => {
                write!(f, "no time for another attempt after {attempts} attempt{s}")
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
    fn an_answer_from_400_up_is_trouble_with_its_retry_after() {
        let answer = |status: u16| {
            let response = Response::builder().status(status);
            let response = response.header(header::RETRY_AFTER, "7").body(());
            ErrorResponse::check(response.unwrap())
        };
        for status in [200, 304, 399] {
            assert!(answer(status).is_ok(), "{status}");
        }
        for status in [400, 429, 503] {
            let answered = answer(status).unwrap_err();
            assert_eq!(answered.retry_after(), Some(RetryAfter::Seconds(7)));
            assert_eq!(answered.failure(), Some(answered.status.into()));
        }
    }

    #[test]
    fn who_gives_up_says_why_and_keeps_the_last_error() {
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
            "another attempt would fail alike: 404 Not Found"
        );
        assert_eq!(
            gave_up(GiveUp::TooLate, 1, Last::TimedOut(Duration::from_secs(1))),
            "no time for another attempt after 1 attempt: nobody answered in time"
        );
    }
}
