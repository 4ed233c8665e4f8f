//! Ready-made observers: the log events of two callers, and a line for a person to read.
//!
//! Field names are theirs, to the letter, because dashboards and alerts are built on them; hence the camel
//! case. Events go to `tracing` with the target of this module. Their `timestamp` is the subscriber's: every one
//! writes it, and an event with a second one would be JSON with a key twice.
//!
//! In all of them `attempt` is the attempt that failed, the first being 1, and `maxRetries` is how many attempts
//! there may be in all: `attempt 1/5` is the first of five calls.

use std::io;
use std::time::Duration;

use super::classify::Failure;
use super::policy::{GiveUp, Next, Wait};
use super::retrying::{FailedAttempt, Observer};

/// Logs as the authorization API's client does.
///
/// - A retry is a warning, `Rate limit hit, backing off before retry`, with `attempt`, `maxRetries`,
///   `retryDelayMs`, `retryDelaySeconds`, `statusCode` (where there was an answer), `isRateLimited` and
///   `hasRetryAfterHeader`. Where it was no limit that was hit, the message is `Request failed, backing off
///   before retry`.
/// - Where the header decides how long, an information before it: `Using Retry-After header`, with
///   `retryAfterMs` and `retryAfterSeconds`.
/// - The end is an error, `Rate limit exceeded, retries exhausted` or `Request failed, retries exhausted`, with
///   `attempts`, `maxRetries`, `endpoint`, `error.name`, `error.message` and `error.code`. The message is `…, no
///   time left to retry` at the deadline, and `Request failed, not worth a retry` where the status says so.
#[derive(Clone, Debug)]
pub struct AuthorizationApiLog {
    endpoint: String,
}

/// Logs as the handbook says: `event` is `retry_attempt`, with `attempt`, `maxRetries`, `delayMs`, `errorType`
/// and `errorMessage`, as a warning for each retry. The end is the caller's to log.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandbookLog;

/// Writes a line for a person before each wait: `Rate limit hit (attempt 1/5), retrying in 1s...`
///
/// Waits are rounded to whole seconds, and below half of one to milliseconds. What cannot be written is left out: a
/// closed terminal is no reason to fail a request.
#[derive(Clone, Debug)]
pub struct Console<W> {
    out: W,
}

impl AuthorizationApiLog {
    /// For calls of `endpoint`, such as `POST /o/client/token`.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
        }
    }

    fn retrying(failed: &FailedAttempt<'_>, wait: Wait) {
        if wait.told {
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
    /// On standard error.
    pub fn stderr() -> Self {
        Self::new(io::stderr())
    }
}

impl<W: io::Write> Console<W> {
    /// Into `out`.
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

/// To the millisecond.
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
