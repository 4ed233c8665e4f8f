//! How it ends when no attempt goes well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;

use super::{QUICK, before};
use crate::harness::{Upstream, full};

/// A server that answers with these statuses in turn, each time with headers and a body of its own.
fn distinct(statuses: &'static [u16]) -> Upstream {
    let answers = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = answers.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut reply = full(format!("failure {}\r\n\0", number + 1));
            *reply.status_mut() = statuses[number].try_into().expect("a status");
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
async fn the_last_answer_is_passed_on_as_it_came() {
    let upstream = distinct(&[500, 429, 503]);
    let api = format!("{QUICK}attempts = 3");
    let gateway = before(&[upstream.url()], &api).start();
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.text(), "failure 3\r\n\0");
    assert_eq!(answer.header("x-number"), "3");
    assert_eq!(answer.header("set-cookie"), "a=1, b=2");
    assert_eq!(answer.header("retry-after"), "0");
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn an_answer_that_is_final_ends_it_early() {
    let upstream = distinct(&[503, 404, 200]);
    let gateway = before(&[upstream.url()], QUICK).start();
    let answer = gateway.client().get("/").send().await;
    assert_eq!((answer.status, upstream.count()), (404, 2));
    assert_eq!(answer.text(), "failure 2\r\n\0");
}

/// Holds that a server that never answers is given up after a second, tried several times by then.
async fn is_given_up_after_a_second(api: &str) {
    let upstream = Upstream::silent();
    let gateway = before(&[upstream.url()], api).start();
    let begun = Instant::now();
    let answer = gateway.client().get("/").send().await;
    let took = begun.elapsed();
    assert_eq!(answer.status, 504);
    assert_eq!(answer.problem(), "upstream-timeout");
    // A wait that would end at the bound is not begun.
    assert!(took >= Duration::from_millis(950), "{took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    let count = upstream.count();
    assert!((2..=5).contains(&count), "{count} attempts");
}

#[tokio::test]
async fn a_deadline_bounds_all_attempts_together() {
    is_given_up_after_a_second(&format!(
        "first_byte_timeout = \"200ms\"\n{QUICK}attempts = 20\ndeadline = \"1s\""
    ))
    .await;
}

#[tokio::test]
async fn a_total_timeout_bounds_all_attempts_together() {
    is_given_up_after_a_second(&format!(
        "first_byte_timeout = \"200ms\"\ntimeout = \"1s\"\n{QUICK}attempts = 20"
    ))
    .await;
}

#[tokio::test]
async fn a_deadline_ends_a_single_attempt_that_takes_too_long() {
    let upstream = Upstream::silent();
    let api = format!("first_byte_timeout = \"60s\"\n{QUICK}deadline = \"1s\"");
    let gateway = before(&[upstream.url()], &api).start();
    let begun = Instant::now();
    let answer = gateway.client().get("/").send().await;
    assert_eq!((answer.status, upstream.count()), (504, 1));
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_wait_that_does_not_fit_into_the_deadline_is_not_begun() {
    let upstream = distinct(&[503, 200]);
    let api = "[upstream.api.retry]\npreset = \"sender\"\nbase = \"25s\"\ndeadline = \"20s\"";
    let gateway = before(&[upstream.url()], api).start();
    let begun = Instant::now();
    let answer = gateway.client().get("/").send().await;
    assert_eq!((answer.status, upstream.count()), (503, 1));
    assert_eq!(answer.text(), "failure 1\r\n\0");
    assert!(begun.elapsed() < Duration::from_secs(10));
}
