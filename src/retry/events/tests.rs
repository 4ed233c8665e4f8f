use std::sync::{Arc, Mutex};

use http::StatusCode;
use serde_json::{Value, json};

use super::super::{ErrorResponse, RetryAfter, RetryableError};
use super::*;

/// A writer that keeps the written text, so that a test can read it.
#[derive(Clone, Default)]
struct WrittenText(Arc<Mutex<Vec<u8>>>);

impl io::Write for WrittenText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WrittenText {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Returns the JSON log lines that `observer` writes for a failed attempt.
fn logged(mut observer: impl Observer, failed: &FailedAttempt<'_>) -> Vec<Value> {
    let written = WrittenText::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || observer.failed(failed));
    let text = written.text();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// Removes the timestamp and the target from a log line, and asserts that both are present.
fn without_timestamp(mut line: Value) -> Value {
    let fields = line.as_object_mut().unwrap();
    let timestamp = fields.remove("timestamp");
    assert!(timestamp.is_some_and(|time| time.as_str().unwrap().ends_with('Z')));
    assert_eq!(fields.remove("target").unwrap(), "tidegate::retry::events");
    line
}

const LIMITED: ErrorResponse = ErrorResponse {
    status: StatusCode::TOO_MANY_REQUESTS,
    retry_after: None,
};

fn failed(attempt: u32, error: &dyn RetryableError, next: Next) -> FailedAttempt<'_> {
    FailedAttempt {
        attempt,
        attempts: 5,
        error,
        retry_after: None,
        next,
    }
}

fn retry(millis: u64) -> Next {
    Next::Retry(Wait {
        delay: Duration::from_millis(millis),
        from_header: false,
    })
}

#[test]
fn a_429_is_logged_as_a_warning_with_the_documented_fields() {
    let log = AuthorizationApiLog::new("POST /o/client/token");
    let lines = logged(log, &failed(1, &LIMITED, retry(1_130)));
    assert_eq!(
        lines.into_iter().map(without_timestamp).collect::<Vec<_>>(),
        [json!({
            "level": "WARN",
            "message": "Rate limit hit, backing off before retry",
            "attempt": 1,
            "maxRetries": 5,
            "retryDelayMs": 1_130,
            "retryDelaySeconds": 1.13,
            "statusCode": 429,
            "isRateLimited": true,
            "hasRetryAfterHeader": false,
        })]
    );
}

#[test]
fn a_retry_after_in_use_is_logged_as_info_before_the_warning() {
    let delay = Duration::from_secs(10);
    let limited = ErrorResponse {
        retry_after: Some(RetryAfter::Seconds(10)),
        ..LIMITED
    };
    let obeyed = FailedAttempt {
        retry_after: Some(delay),
        ..failed(
            1,
            &limited,
            Next::Retry(Wait {
                delay,
                from_header: true,
            }),
        )
    };
    let lines = logged(AuthorizationApiLog::new(""), &obeyed);
    let [used, warned] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(
        without_timestamp(used.clone()),
        json!({
            "level": "INFO",
            "message": "Using Retry-After header",
            "retryAfterMs": 10_000,
            "retryAfterSeconds": 10.0,
        })
    );
    assert_eq!(warned["hasRetryAfterHeader"], true);

    let ignored = FailedAttempt {
        next: retry(1_000),
        ..obeyed
    };
    let lines = logged(AuthorizationApiLog::new(""), &ignored);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["hasRetryAfterHeader"], true);
}

#[test]
fn a_network_failure_is_logged_without_rate_limit_and_status() {
    let failed = failed(2, &Failure::Refused, retry(2_000));
    let line = without_timestamp(logged(AuthorizationApiLog::new(""), &failed).remove(0));
    assert_eq!(line["message"], "Request failed, backing off before retry");
    assert_eq!(line["isRateLimited"], false);
    assert_eq!(line.get("statusCode"), None);
}

#[test]
fn exhausted_retries_are_logged_as_an_error_with_name_message_and_code() {
    let log = AuthorizationApiLog::new("POST /o/client/token");
    let exhausted = failed(5, &LIMITED, Next::GiveUp(GiveUp::Exhausted));
    let lines = logged(log, &exhausted);
    assert_eq!(
        lines.into_iter().map(without_timestamp).collect::<Vec<_>>(),
        [json!({
            "level": "ERROR",
            "message": "Rate limit exceeded, retries exhausted",
            "attempts": 5,
            "maxRetries": 5,
            "endpoint": "POST /o/client/token",
            "error.name": "RateLimitError",
            "error.message": "429 Too Many Requests",
            "error.code": "ERR_HTTP_429",
        })]
    );
}

#[test]
fn a_failure_that_is_not_retried_is_logged_with_its_cause() {
    let log = || AuthorizationApiLog::new("/");
    let not_found = Failure::from(StatusCode::NOT_FOUND);
    let at_once = failed(1, &not_found, Next::GiveUp(GiveUp::NotWorthIt));
    let line = logged(log(), &at_once).remove(0);
    assert_eq!(line["message"], "Request failed, not worth a retry");
    assert_eq!(line["error.message"], "404 Not Found");

    let unknown = io::Error::other("certificate is for another host");
    let at_once = failed(1, &unknown, Next::GiveUp(GiveUp::NotWorthIt));
    let line = logged(log(), &at_once).remove(0);
    assert_eq!(line["error.name"], "Error");
    assert_eq!(line["error.message"], unknown.to_string());
    assert_eq!(line.get("error.code"), None);
}

#[test]
fn the_handbook_event_has_the_documented_fields_and_a_timestamp() {
    let lines = logged(HandbookLog, &failed(3, &Failure::TimedOut, retry(4_711)));
    assert_eq!(
        lines.into_iter().map(without_timestamp).collect::<Vec<_>>(),
        [json!({
            "level": "WARN",
            "event": "retry_attempt",
            "attempt": 3,
            "maxRetries": 5,
            "delayMs": 4_711,
            "errorType": "TimeoutError",
            "errorMessage": "timed out",
        })]
    );
    let end = failed(5, &LIMITED, Next::GiveUp(GiveUp::Exhausted));
    assert!(logged(HandbookLog, &end).is_empty());
}

#[test]
fn the_console_line_has_attempt_number_total_and_delay() {
    let written = WrittenText::default();
    let mut console = Console::new(written.clone());
    for (attempt, millis) in [(1, 857), (2, 1_500), (3, 250)] {
        console.failed(&failed(attempt, &LIMITED, retry(millis)));
    }
    console.failed(&failed(4, &Failure::Disconnected, retry(60_000)));
    console.failed(&failed(5, &LIMITED, Next::GiveUp(GiveUp::Exhausted)));
    assert_eq!(
        written.text(),
        "Rate limit hit (attempt 1/5), retrying in 1s...\n\
         Rate limit hit (attempt 2/5), retrying in 2s...\n\
         Rate limit hit (attempt 3/5), retrying in 250ms...\n\
         Request failed: connection lost (attempt 4/5), retrying in 60s...\n"
    );
}
