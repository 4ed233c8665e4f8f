//! Ready-made observers of failed attempts.
//!
//! The field names are those of the clients' documents, because dashboards and alerts depend on them. Events use
//! `tracing` and the target of this module, without a `timestamp`, which the subscriber writes. `attempt` is the number
//! of the failed attempt, starting with 1, and `maxRetries` the total number of attempts.

use std::io;
use std::time::Duration;

use super::classify::Failure;
use super::policy::{GiveUp, Next, Wait};
use super::retrying::{FailedAttempt, Observer};

/// Observer that logs the events of the authorization API's client.
///
/// - Each retry is a warning: `Rate limit hit, backing off before retry` after a 429, otherwise
///   `Request failed, backing off before retry`. Fields: `attempt`, `maxRetries`, `retryDelayMs`, `retryDelaySeconds`,
///   `statusCode` (if there was a response), `isRateLimited` and `hasRetryAfterHeader`.
/// - If the delay comes from `Retry-After`, an info event precedes the warning: `Using Retry-After header`. Fields:
///   `retryAfterMs` and `retryAfterSeconds`.
/// - A request that is not retried any more is an error: `Rate limit exceeded, retries exhausted` after a 429,
///   otherwise `Request failed, retries exhausted`. If the deadline is reached, the message ends with
///   `no time left to retry` instead. If the failure is not retryable, the message ends with `not worth a retry`
///   instead. Fields: `attempts`, `maxRetries`, `endpoint`, `error.name`, `error.message` and `error.code`.
#[derive(Clone, Debug)]
pub struct AuthorizationApiLog {
    endpoint: String,
}

/// Observer that logs the events of the handbook, the document of the presets `interactive`, `standard` and `batch`: a
/// warning for each retry, with the fields `event` (`retry_attempt`), `attempt`, `maxRetries`, `delayMs`, `errorType`
/// and `errorMessage`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandbookLog;

/// Observer that writes a line before each retry: `Rate limit hit (attempt 1/5), retrying in 1s...`
///
/// Delays are rounded to seconds, and those below 0.5 s to milliseconds. Write errors are ignored, because a request
/// must not fail if the terminal is closed.
#[derive(Clone, Debug)]
pub struct Console<W> {
    out: W,
}

impl AuthorizationApiLog {
    /// Creates an observer for requests to `endpoint`, such as `POST /o/client/token`.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
        }
    }

    fn retrying(failed: &FailedAttempt<'_>, wait: Wait) {
        if wait.from_header {
            tracing::info!(
                "retryAfterMs" = millis(wait.delay),
                "retryAfterSeconds" = seconds(wait.delay),
                "Using Retry-After header"
            );
        }
        tracing::warn!(
            "attempt" = failed.attempt,
            "maxRetries" = failed.attempts,
            "retryDelayMs" = millis(wait.delay),
            "retryDelaySeconds" = seconds(wait.delay),
            "statusCode" = failed.status(),
            "isRateLimited" = failed.is_rate_limit(),
            "hasRetryAfterHeader" = failed.retry_after.is_some(),
            "{}, backing off before retry",
            if failed.is_rate_limit() {
                "Rate limit hit"
            } else {
                "Request failed"
            },
        );
    }

    fn gave_up(&self, failed: &FailedAttempt<'_>, why: GiveUp) {
        let failure = failed.error.failure();
        tracing::error!(
            "attempts" = failed.attempt,
            "maxRetries" = failed.attempts,
            "endpoint" = self.endpoint,
            "error.name" = failed.name(),
            "error.message" = %failed.error,
            "error.code" = failure.map(Failure::code).as_deref(),
            "{}, {}",
            if failed.is_rate_limit() {
                "Rate limit exceeded"
            } else {
                "Request failed"
            },
            match why {
                GiveUp::Exhausted => "retries exhausted",
                GiveUp::TooLate => "no time left to retry",
                GiveUp::NotWorthIt => "not worth a retry",
            },
        );
    }
}

impl Observer for AuthorizationApiLog {
    fn failed(&mut self, failed: &FailedAttempt<'_>) {
        match failed.next {
            Next::Retry(wait) => Self::retrying(failed, wait),
            Next::GiveUp(why) => self.gave_up(failed, why),
        }
    }
}

impl Observer for HandbookLog {
    fn failed(&mut self, failed: &FailedAttempt<'_>) {
        if let Next::Retry(wait) = failed.next {
            tracing::warn!(
                "event" = "retry_attempt",
                "attempt" = failed.attempt,
                "maxRetries" = failed.attempts,
                "delayMs" = millis(wait.delay),
                "errorType" = failed.name(),
                "errorMessage" = %failed.error,
            );
        }
    }
}

impl Console<io::Stderr> {
    /// Creates an observer that writes to standard error.
    pub fn stderr() -> Self {
        Self::new(io::stderr())
    }
}

impl<W: io::Write> Console<W> {
    /// Creates an observer that writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out }
    }
}

impl<W: io::Write> Observer for Console<W> {
    fn failed(&mut self, failed: &FailedAttempt<'_>) {
        let Next::Retry(wait) = failed.next else {
            return;
        };
        let what = if failed.is_rate_limit() {
            "Rate limit hit".to_owned()
        } else {
            format!("Request failed: {}", failed.error)
        };
        let (attempt, attempts) = (failed.attempt, failed.attempts);
        let delay = rounded(wait.delay);
        let _ = writeln!(
            self.out,
            "{what} (attempt {attempt}/{attempts}), retrying in {delay:?}..."
        );
    }
}

impl FailedAttempt<'_> {
    fn is_rate_limit(&self) -> bool {
        let failure = self.error.failure();
        failure.is_some_and(Failure::is_rate_limit)
    }

    fn status(&self) -> Option<u16> {
        let status = self.error.failure()?.status()?;
        Some(status.as_u16())
    }

    fn name(&self) -> &'static str {
        let failure = self.error.failure();
        failure.map_or("Error", Failure::name)
    }
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

/// Truncated to milliseconds.
fn seconds(delay: Duration) -> f64 {
    Duration::from_millis(millis(delay)).as_secs_f64()
}

fn rounded(delay: Duration) -> Duration {
    let half = Duration::from_millis(500);
    match delay.saturating_add(half).as_secs() {
        0 => Duration::from_millis(millis(delay)),
        seconds => Duration::from_secs(seconds),
    }
}

#[cfg(test)]
mod tests;
