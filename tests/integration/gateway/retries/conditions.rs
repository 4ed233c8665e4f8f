//! Tests of the conditions for a retry: method, status, timeout and lost connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{LOSSES, QUICK, arrived_count, gateway_to, losing, with_statuses};
use crate::support::{ClientResponse, Upstream, full};

/// Sends a request that has neither an idempotency key nor a body. The server responds to the attempts with these
/// statuses in sequence. Returns the response and the number of attempts.
async fn response_and_attempts(
    method: &str,
    statuses: &[u16],
    api: &str,
) -> (ClientResponse, usize) {
    let upstream = with_statuses(statuses);
    let gateway = gateway_to(&[upstream.url()], api).start();
    let response = gateway.client().request(method, "/").send().await;
    (response, upstream.count())
}

#[tokio::test]
async fn an_idempotent_method_is_retried() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let (response, count) = response_and_attempts(method, &[503, 200], QUICK).await;
        assert_eq!((response.status, count), (200, 2), "{method}");
        if method != "HEAD" {
            assert_eq!(response.text(), "response 2", "{method}");
        }
    }
}

#[tokio::test]
async fn other_methods_without_a_key_are_sent_once() {
    for method in ["POST", "PATCH", "LOCK"] {
        for status in [408, 429, 500, 503] {
            let (response, count) = response_and_attempts(method, &[status, 200], QUICK).await;
            assert_eq!((response.status, count), (status, 1), "{method}");
            assert_eq!(response.text(), "response 1", "{method}");
        }
    }
}

#[tokio::test]
async fn only_408_429_and_5xx_are_retried() {
    for status in [408, 429, 500, 502, 503, 504, 599] {
        let (response, count) = response_and_attempts("GET", &[status, status, 200], QUICK).await;
        assert_eq!((response.status, count), (200, 3), "{status}");
    }
    for status in [400, 401, 403, 404, 409, 410, 413, 422, 425, 301, 304] {
        let (response, count) = response_and_attempts("GET", &[status, 200], QUICK).await;
        assert_eq!((response.status, count), (status, 1), "{status}");
    }
}

#[tokio::test]
async fn each_preset_has_its_own_retryable_statuses() {
    for (preset, status, times) in [
        ("traffic-control", 408, 2),
        ("authorization-api", 408, 1),
        ("authorization-api", 501, 2),
        ("sender", 501, 1),
        ("sender", 504, 2),
    ] {
        let api = format!("{QUICK}preset = \"{preset}\"\njitter = \"full\"");
        let (_, count) = response_and_attempts("GET", &[status, 200], &api).await;
        assert_eq!(count, times, "{preset}, {status}");
    }
}

/// Creates a server that does not respond to its first request.
fn silent_on_first_request() -> Upstream {
    let responses = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let is_first = responses.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            full("at last")
        }
    })
}

#[tokio::test]
async fn a_timed_out_request_is_retried_if_that_is_safe() {
    for (method, status, count) in [("GET", 200, 2), ("POST", 504, 1)] {
        let upstream = silent_on_first_request();
        let api = format!("first_byte_timeout = \"1s\"\n{QUICK}");
        let gateway = gateway_to(&[upstream.url()], &api).start();
        let started = Instant::now();
        let response = gateway.client().request(method, "/").send().await;
        assert!(started.elapsed() >= Duration::from_secs(1), "{method}");
        assert_eq!(response.status, status, "{method}");
        assert_eq!(upstream.count(), count, "{method}");
    }
}

#[tokio::test]
async fn a_request_whose_connection_is_lost_is_retried_if_that_is_safe() {
    for (description, lose) in LOSSES {
        for (method, status, count) in [("GET", 200, 2), ("POST", 502, 1), ("PATCH", 502, 1)] {
            let upstream = losing(lose);
            let gateway = gateway_to(&[upstream.url()], QUICK).start();
            let response = gateway.client().request(method, "/").send().await;
            assert_eq!(response.status, status, "{method}, {description}");
            assert_eq!(
                arrived_count(&upstream, method),
                count,
                "{method}, {description}"
            );
        }
    }
}

#[tokio::test]
async fn without_a_retry_section_or_with_one_attempt_there_are_no_retries() {
    for api in ["", "[upstream.api.retry]\nattempts = 1"] {
        let (response, count) = response_and_attempts("GET", &[503, 200], api).await;
        assert_eq!((response.status, count), (503, 1), "{api}");
        for (description, lose) in LOSSES {
            let upstream = losing(lose);
            let gateway = gateway_to(&[upstream.url()], api).start();
            assert_eq!(
                gateway.client().get("/").send().await.status,
                502,
                "{description}"
            );
            assert_eq!(arrived_count(&upstream, "GET"), 1, "{description}, {api}");
        }
    }
}
