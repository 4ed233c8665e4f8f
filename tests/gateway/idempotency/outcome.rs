//! The problem document states whether the outcome of a keyed request is held as unknown.

use super::endings::{LOST, ask, impatient, saying};
use super::is_problem;
use crate::harness::{Answer, Gateway, Upstream};

/// Asserts that `response` states that the outcome of its key is held as unknown.
#[track_caller]
fn states_unknown_outcome(response: &Answer) {
    let problem = response.json();
    assert_eq!(problem["outcome"], "unknown", "{problem}");
    let message = problem["error"]["message"].as_str().expect("a message");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(message.ends_with(detail), "{problem}");
    assert_eq!(response.header("x-should-retry"), "false", "{response:?}");
    assert_eq!(response.header("stripe-should-retry"), "false");
    if response.status != 409 {
        states_held_key(detail);
    }
}

/// Asserts that a text states that the request may have been executed and that its key is held.
#[track_caller]
fn states_held_key(text: &str) {
    for part in [
        "may have been executed",
        "key is held",
        "409 idempotency-outcome-unknown",
    ] {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

/// Asserts that `response` states nothing about a held outcome.
#[track_caller]
fn states_no_outcome(response: &Answer) {
    assert!([502, 504].contains(&response.status), "{response:?}");
    let problem = response.json();
    assert_eq!(problem.get("outcome"), None, "{problem}");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(!detail.contains("held"), "{detail}");
    assert!(!response.has("x-should-retry"), "{response:?}");
}

const HINTS: &str = "[respond]\nhints = [\"should-retry\", \"stripe\"]\n";

#[tokio::test]
async fn timeout_reset_and_truncation_state_that_the_outcome_is_held_as_unknown() {
    for (bytes, stall, status) in LOST {
        let upstream = saying(bytes, stall);
        let gateway = impatient("", &upstream).and(HINTS).start();
        let first = ask(&gateway).await;
        assert_eq!(first.status, status, "{first:?}");
        states_unknown_outcome(&first);
        let retry = ask(&gateway).await;
        assert_eq!(retry.status, 409, "{retry:?}");
        states_unknown_outcome(&retry);
    }
    let upstream = Upstream::resetting();
    let gateway = Gateway::keyed("").and(HINTS).upstream(&upstream).start();
    let reset = ask(&gateway).await;
    assert_eq!(reset.status, 502, "{reset:?}");
    states_unknown_outcome(&reset);
}

#[tokio::test]
async fn html_and_plain_text_state_a_held_outcome() {
    for (bytes, stall, status) in [LOST[0], LOST[1], LOST[4]] {
        for form in ["text/html", "text/plain"] {
            let upstream = saying(bytes, stall);
            let gateway = impatient("", &upstream).start();
            let request = || {
                let request = gateway.client().post("/pay").key("k1");
                request.header("accept", form).send()
            };
            let first = request().await;
            assert_eq!(first.status, status, "{first:?}");
            assert!(first.header("content-type").starts_with(form));
            assert_eq!(first.header("x-should-retry"), "false");
            states_held_key(&first.text());
            let retry = request().await;
            assert_eq!(retry.status, 409, "{retry:?}");
            assert!(retry.text().contains("Outcome unknown"), "{retry:?}");
        }
    }
}

#[tokio::test]
async fn a_released_key_has_no_unknown_outcome() {
    for (bytes, stall, _) in LOST {
        let upstream = saying(bytes, stall);
        let gateway = impatient("on_unknown = \"release\"", &upstream).start();
        states_no_outcome(&ask(&gateway).await);
    }
    // The status of a truncated response can mean that the request was not executed.
    let upstream = saying(
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 10\r\n\r\nhalf ",
        false,
    );
    states_no_outcome(&ask(&impatient("", &upstream).start()).await);
}

#[tokio::test]
async fn a_request_that_was_not_sent_has_no_unknown_outcome() {
    let gateway = Gateway::keyed("").upstream_url(&Upstream::gone()).start();
    let response = ask(&gateway).await;
    is_problem(&response, 502, "upstream-unavailable");
    states_no_outcome(&response);
}

#[tokio::test]
async fn a_request_without_a_key_has_no_unknown_outcome() {
    for (bytes, stall, status) in [LOST[0], LOST[1]] {
        let upstream = saying(bytes, stall);
        let gateway = impatient("", &upstream).start();
        let response = gateway.client().post("/pay").send().await;
        assert_eq!(response.status, status, "{response:?}");
        states_no_outcome(&response);
    }
}

#[tokio::test]
async fn a_duplicate_that_waits_is_notified_of_the_unknown_outcome() {
    let upstream = saying(b"", true);
    let gateway = impatient("", &upstream).and(HINTS).start();
    let responses = tokio::join!(ask(&gateway), ask(&gateway));
    let mut statuses = [responses.0.status, responses.1.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [409, 504]);
    states_unknown_outcome(&responses.0);
    states_unknown_outcome(&responses.1);
}
