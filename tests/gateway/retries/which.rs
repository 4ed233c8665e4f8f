//! Which requests are sent once more, and after what.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{LOSSES, QUICK, arrived, before, in_turn, losing};
use crate::harness::{Answer, Upstream, full};

/// The answer to a request without a key or a body, of a server that answers with these statuses in turn, and
/// how often it was asked.
async fn asked(method: &str, statuses: &[u16], api: &str) -> (Answer, usize) {
    let upstream = in_turn(statuses);
    let gateway = before(&[upstream.url()], api).start();
    let answer = gateway.client().request(method, "/").send().await;
    (answer, upstream.count())
}

#[tokio::test]
async fn a_method_that_is_idempotent_is_sent_once_more() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let (answer, count) = asked(method, &[503, 200], QUICK).await;
        assert_eq!((answer.status, count), (200, 2), "{method}");
        if method != "HEAD" {
            assert_eq!(answer.text(), "answer 2", "{method}");
        }
    }
}

#[tokio::test]
async fn any_other_method_without_a_key_is_sent_once() {
    for method in ["POST", "PATCH", "LOCK"] {
        for status in [408, 429, 500, 503] {
            let (answer, count) = asked(method, &[status, 200], QUICK).await;
            assert_eq!((answer.status, count), (status, 1), "{method}");
            assert_eq!(answer.text(), "answer 1", "{method}");
        }
    }
}

#[tokio::test]
async fn only_408_429_and_5xx_are_tried_again_and_all_else_fails_at_once() {
    for status in [408, 429, 500, 502, 503, 504, 599] {
        let (answer, count) = asked("GET", &[status, status, 200], QUICK).await;
        assert_eq!((answer.status, count), (200, 3), "{status}");
    }
    for status in [400, 401, 403, 404, 409, 410, 413, 422, 425, 301, 304] {
        let (answer, count) = asked("GET", &[status, 200], QUICK).await;
        assert_eq!((answer.status, count), (status, 1), "{status}");
    }
}

#[tokio::test]
async fn each_preset_has_its_own_idea_of_what_may_pass() {
    for (preset, status, times) in [
        ("traffic-control", 408, 2),
        ("authorization-api", 408, 1),
        ("authorization-api", 501, 2),
        ("sender", 501, 1),
        ("sender", 504, 2),
    ] {
        let api = format!("{QUICK}preset = \"{preset}\"\njitter = \"full\"");
        let (_, count) = asked("GET", &[status, 200], &api).await;
        assert_eq!(count, times, "{preset}, {status}");
    }
}

/// A server that does not answer its first request.
fn silent_at_first() -> Upstream {
    let answers = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let is_first = answers.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            full("at last")
        }
    })
}

#[tokio::test]
async fn what_is_not_answered_in_time_is_sent_once_more_if_that_is_safe() {
    for (method, status, count) in [("GET", 200, 2), ("POST", 504, 1)] {
        let upstream = silent_at_first();
        let api = format!("first_byte_timeout = \"1s\"\n{QUICK}");
        let gateway = before(&[upstream.url()], &api).start();
        let begun = Instant::now();
        let answer = gateway.client().request(method, "/").send().await;
        assert!(begun.elapsed() >= Duration::from_secs(1), "{method}");
        assert_eq!(answer.status, status, "{method}");
        assert_eq!(upstream.count(), count, "{method}");
    }
}

#[tokio::test]
async fn a_request_whose_connection_is_lost_is_sent_once_more_if_that_is_safe() {
    for (how, lose) in LOSSES {
        for (method, status, count) in [("GET", 200, 2), ("POST", 502, 1), ("PATCH", 502, 1)] {
            let upstream = losing(lose);
            let gateway = before(&[upstream.url()], QUICK).start();
            let answer = gateway.client().request(method, "/").send().await;
            assert_eq!(answer.status, status, "{method} of one that {how}");
            assert_eq!(arrived(&upstream, method), count, "{method}, {how}");
        }
    }
}

#[tokio::test]
async fn without_a_table_for_them_or_with_one_attempt_there_are_no_retries() {
    for api in ["", "[upstream.api.retry]\nattempts = 1"] {
        let (answer, count) = asked("GET", &[503, 200], api).await;
        assert_eq!((answer.status, count), (503, 1), "{api}");
        for (how, lose) in LOSSES {
            let upstream = losing(lose);
            let gateway = before(&[upstream.url()], api).start();
            assert_eq!(gateway.client().get("/").send().await.status, 502, "{how}");
            assert_eq!(arrived(&upstream, "GET"), 1, "{how}, {api}");
        }
    }
}
