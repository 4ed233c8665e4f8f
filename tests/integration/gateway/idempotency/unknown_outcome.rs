//! Tests that a problem document states whether the outcome of a request with an idempotency key is unknown.

use super::assert_problem;
use super::execution_results::{LOST_RESPONSES, send, sending, with_short_timeouts};
use crate::support::{ClientResponse, Gateway, RefusingPort, Upstream};

/// Asserts that `response` has the member `"outcome": "unknown"` and headers that advise against a retry.
#[track_caller]
fn assert_unknown_outcome(response: &ClientResponse) {
    let problem = response.json();
    assert_eq!(problem["outcome"], "unknown", "{problem}");
    let message = problem["error"]["message"]
        .as_str()
        .expect("the problem document should have an error message");
    let detail = problem["detail"]
        .as_str()
        .expect("the problem document should have a detail");
    assert!(message.ends_with(detail), "{problem}");
    assert_eq!(response.header("x-should-retry"), "false", "{response:?}");
    assert_eq!(response.header("stripe-should-retry"), "false");
    if response.status != 409 {
        assert_held_key(detail);
    }
}

/// Asserts that `text` states that the request may have been executed and that later requests with its key get 409.
#[track_caller]
fn assert_held_key(text: &str) {
    for part in [
        "may have been executed",
        "does not execute it again",
        "409 idempotency-outcome-unknown",
    ] {
        assert!(
            text.contains(part),
            "the text does not contain '{part}': {text}"
        );
    }
}

/// Asserts that `response` is a 502 or 504 that states no unknown outcome and gives no advice about a retry.
#[track_caller]
fn assert_no_outcome(response: &ClientResponse) {
    assert!([502, 504].contains(&response.status), "{response:?}");
    let problem = response.json();
    assert_eq!(problem.get("outcome"), None, "{problem}");
    let detail = problem["detail"]
        .as_str()
        .expect("the problem document should have a detail");
    assert!(!detail.contains("does not execute it again"), "{detail}");
    assert!(!response.has("x-should-retry"), "{response:?}");
}

const HINTS: &str = "[respond]\nhints = [\"should-retry\", \"stripe\"]\n";

#[tokio::test]
async fn timeout_reset_and_truncation_state_that_the_outcome_is_held_as_unknown() {
    for (bytes, stall, status) in LOST_RESPONSES {
        let upstream = sending(bytes, stall);
        let gateway = with_short_timeouts("", &upstream)
            .with_section(HINTS)
            .start();
        let first = send(&gateway).await;
        assert_eq!(first.status, status, "{first:?}");
        assert_unknown_outcome(&first);
        let retry = send(&gateway).await;
        assert_eq!(retry.status, 409, "{retry:?}");
        assert_unknown_outcome(&retry);
    }
    let upstream = Upstream::resetting();
    let gateway = Gateway::keyed("")
        .with_section(HINTS)
        .upstream(&upstream)
        .start();
    let reset = send(&gateway).await;
    assert_eq!(reset.status, 502, "{reset:?}");
    assert_unknown_outcome(&reset);
}

#[tokio::test]
async fn html_and_plain_text_state_a_held_outcome() {
    for (bytes, stall, status) in [LOST_RESPONSES[0], LOST_RESPONSES[1], LOST_RESPONSES[4]] {
        for format in ["text/html", "text/plain"] {
            let upstream = sending(bytes, stall);
            let gateway = with_short_timeouts("", &upstream).start();
            let request = || {
                let request = gateway.client().post("/pay").key("k1");
                request.header("accept", format).send()
            };
            let first = request().await;
            assert_eq!(first.status, status, "{first:?}");
            assert!(first.header("content-type").starts_with(format));
            assert_eq!(first.header("x-should-retry"), "false");
            assert_held_key(&first.text());
            let retry = request().await;
            assert_eq!(retry.status, 409, "{retry:?}");
            assert!(retry.text().contains("Outcome unknown"), "{retry:?}");
        }
    }
}

#[tokio::test]
async fn a_released_key_has_no_unknown_outcome() {
    for (bytes, stall, _) in LOST_RESPONSES {
        let upstream = sending(bytes, stall);
        let gateway = with_short_timeouts("on_unknown = \"release\"", &upstream).start();
        assert_no_outcome(&send(&gateway).await);
    }
    // Status 401 means "not executed" by default (`release_on`), even if the response is truncated. The outcome is thus
    // known.
    let upstream = sending(
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 10\r\n\r\nhalf ",
        false,
    );
    assert_no_outcome(&send(&with_short_timeouts("", &upstream).start()).await);
}

#[tokio::test]
async fn a_request_that_was_not_sent_has_no_unknown_outcome() {
    let gateway = Gateway::keyed("")
        .upstream_url(&RefusingPort::permanent_url())
        .start();
    let response = send(&gateway).await;
    assert_problem(&response, 502, "upstream-unavailable");
    assert_no_outcome(&response);
}

#[tokio::test]
async fn a_request_without_a_key_has_no_unknown_outcome() {
    for (bytes, stall, status) in [LOST_RESPONSES[0], LOST_RESPONSES[1]] {
        let upstream = sending(bytes, stall);
        let gateway = with_short_timeouts("", &upstream).start();
        let response = gateway.client().post("/pay").send().await;
        assert_eq!(response.status, status, "{response:?}");
        assert_no_outcome(&response);
    }
}

#[tokio::test]
async fn a_duplicate_that_waits_is_notified_of_the_unknown_outcome() {
    let upstream = sending(b"", true);
    let gateway = with_short_timeouts("", &upstream)
        .with_section(HINTS)
        .start();
    let responses = tokio::join!(send(&gateway), send(&gateway));
    let mut statuses = [responses.0.status, responses.1.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [409, 504]);
    assert_unknown_outcome(&responses.0);
    assert_unknown_outcome(&responses.1);
}
