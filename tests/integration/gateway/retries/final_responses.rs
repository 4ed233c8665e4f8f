//! Tests of the response that the client gets when no attempt succeeds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;

use super::{QUICK, gateway_to};
use crate::support::{Upstream, full};

/// Creates a server that responds with these statuses in sequence. Headers and body contain the number of the response.
fn with_distinct_responses(statuses: &'static [u16]) -> Upstream {
    let responses = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = responses.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut reply = full(format!("failure {}\r\n\0", number + 1));
            *reply.status_mut() = statuses[number]
                .try_into()
                .expect("the status code should be valid");
            let headers = reply.headers_mut();
            headers.insert("x-number", HeaderValue::from(number + 1));
            headers.append("set-cookie", HeaderValue::from_static("a=1"));
            headers.append("set-cookie", HeaderValue::from_static("b=2"));
            headers.insert("retry-after", HeaderValue::from_static("0"));
            reply
        }
    })
}

#[tokio::test]
async fn the_last_response_is_forwarded_unchanged() {
    let upstream = with_distinct_responses(&[500, 429, 503]);
    let api = format!("{QUICK}attempts = 3");
    let gateway = gateway_to(&[upstream.url()], &api).start();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 503);
    assert_eq!(response.text(), "failure 3\r\n\0");
    assert_eq!(response.header("x-number"), "3");
    assert_eq!(response.header("set-cookie"), "a=1, b=2");
    assert_eq!(response.header("retry-after"), "0");
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_final_status_ends_the_retries() {
    let upstream = with_distinct_responses(&[503, 404, 200]);
    let gateway = gateway_to(&[upstream.url()], QUICK).start();
    let response = gateway.client().get("/").send().await;
    assert_eq!((response.status, upstream.count()), (404, 2));
    assert_eq!(response.text(), "failure 2\r\n\0");
}

/// Asserts that the gateway makes several attempts to a server that never responds, and returns 504 after one second.
async fn assert_504_after_one_second(api: &str) {
    let upstream = Upstream::silent();
    let gateway = gateway_to(&[upstream.url()], api).start();
    let started = Instant::now();
    let response = gateway.client().get("/").send().await;
    let elapsed = started.elapsed();
    assert_eq!(response.status, 504);
    assert_eq!(response.problem(), "upstream-timeout");
    // The minimum is below one second: if the next backoff would exceed the deadline or timeout, the gateway responds
    // immediately instead of waiting.
    assert!(elapsed >= Duration::from_millis(950), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    let count = upstream.count();
    assert!((2..=5).contains(&count), "{count} attempts");
}

#[tokio::test]
async fn a_deadline_bounds_all_attempts_together() {
    assert_504_after_one_second(&format!(
        "first_byte_timeout = \"200ms\"\n{QUICK}attempts = 20\ndeadline = \"1s\""
    ))
    .await;
}

#[tokio::test]
async fn a_total_timeout_bounds_all_attempts_together() {
    assert_504_after_one_second(&format!(
        "first_byte_timeout = \"200ms\"\ntimeout = \"1s\"\n{QUICK}attempts = 20"
    ))
    .await;
}

#[tokio::test]
async fn a_deadline_ends_a_single_attempt_that_takes_too_long() {
    let upstream = Upstream::silent();
    let api = format!("first_byte_timeout = \"60s\"\n{QUICK}deadline = \"1s\"");
    let gateway = gateway_to(&[upstream.url()], &api).start();
    let started = Instant::now();
    let response = gateway.client().get("/").send().await;
    let waited = started.elapsed();
    assert_eq!((response.status, upstream.count()), (504, 1));
    assert!((1..5).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test]
async fn a_backoff_beyond_the_deadline_is_not_started() {
    let upstream = with_distinct_responses(&[503, 200]);
    let api = "[upstream.api.retry]\npreset = \"sender\"\nbase = \"25s\"\ndeadline = \"20s\"";
    let gateway = gateway_to(&[upstream.url()], api).start();
    let started = Instant::now();
    let response = gateway.client().get("/").send().await;
    assert_eq!((response.status, upstream.count()), (503, 1));
    assert_eq!(response.text(), "failure 1\r\n\0");
    assert!(started.elapsed() < Duration::from_secs(10));
}
