//! Tests of retries of requests with an idempotency key.

use http::HeaderMap;
use tidegate::idempotency::RecordCounts;

use super::{LOSSES, QUICK, arrived_count, gateway_with_rule, losing, with_statuses};
use crate::support::{ClientResponse, Gateway};

const RELEASE: &str = "mode = \"optional\", on_unknown = \"release\"";
const HOLD: &str = "mode = \"optional\", on_unknown = \"hold\"";

async fn send(gateway: &Gateway) -> ClientResponse {
    let request = gateway.client().post("/pay").key("k1").body("amount=1");
    request.send().await
}

/// Returns status, headers and body of a response. Headers that differ between the first response and its replay are
/// left out.
fn replayed_parts(response: &ClientResponse) -> (u16, HeaderMap, bytes::Bytes) {
    let mut headers = response.headers.clone();
    for name in [
        "x-request-id",
        "idempotent-replayed",
        "idempotent-original-request-id",
    ] {
        headers.remove(name);
    }
    (response.status, headers, response.body.clone())
}

#[tokio::test]
async fn with_on_unknown_release_a_failure_is_retried_and_the_last_response_stored() {
    let upstream = with_statuses(&[503, 500, 201]);
    let gateway = gateway_with_rule(&[upstream.url()], QUICK, RELEASE).start();
    let first = send(&gateway).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(first.text(), "response 3");
    for _ in 0..2 {
        let replay = send(&gateway).await;
        assert!(replay.is_replay(), "{replay:?}");
        assert_eq!(replayed_parts(&replay), replayed_parts(&first));
    }
    let requests = upstream.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        // All attempts have the same idempotency key, so upstream can recognise the duplicate requests.
        assert_eq!(request.header("idempotency-key"), "k1");
        assert_eq!(request.body, "amount=1");
    }
    let counts = gateway.counts();
    assert_eq!((counts.completed, counts.unknown), (1, 0));
}

#[tokio::test]
async fn with_on_unknown_release_a_lost_response_is_retried() {
    for (description, lose) in LOSSES {
        let upstream = losing(lose);
        let gateway = gateway_with_rule(&[upstream.url()], QUICK, RELEASE).start();
        let first = send(&gateway).await;
        assert_eq!((first.status, first.text().as_str()), (200, "amount=1"));
        assert!(
            !first.is_replay() && send(&gateway).await.is_replay(),
            "{description}"
        );
        assert_eq!(arrived_count(&upstream, "POST"), 2, "{description}");
        assert_eq!(gateway.counts().completed, 1, "{description}");
    }
}

#[tokio::test]
async fn a_keyed_body_above_max_body_is_not_retried() {
    for (length, count) in [(1_024, 2), (1_025, 1)] {
        let upstream = with_statuses(&[503, 201]);
        let api = format!("{QUICK}max_body = \"1KiB\"");
        let gateway = gateway_with_rule(&[upstream.url()], &api, RELEASE).start();
        let request = gateway.client().post("/pay").key("k1");
        request.body(vec![b'x'; length]).send().await;
        assert_eq!(upstream.count(), count, "{length}");
    }
}

#[tokio::test]
async fn if_all_attempts_are_lost_the_key_is_released() {
    let upstream = crate::support::raw_http::RawUpstream::scripted(|connection| {
        connection.request();
    });
    let api = format!("{QUICK}attempts = 3");
    let gateway = gateway_with_rule(&[upstream.url()], &api, RELEASE).start();
    assert_eq!(send(&gateway).await.status, 502);
    assert_eq!(arrived_count(&upstream, "POST"), 3);
    assert_eq!(gateway.counts(), RecordCounts::default());
}

#[tokio::test]
async fn with_on_unknown_hold_a_failure_is_stored_and_never_retried() {
    let upstream = with_statuses(&[503, 201]);
    let gateway = gateway_with_rule(&[upstream.url()], QUICK, HOLD).start();
    for is_replay in [false, true] {
        let response = send(&gateway).await;
        assert_eq!((response.status, response.is_replay()), (503, is_replay));
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn with_on_unknown_hold_a_lost_response_is_never_retried() {
    for (description, lose) in LOSSES {
        let upstream = losing(lose);
        let gateway = gateway_with_rule(&[upstream.url()], QUICK, HOLD).start();
        assert_eq!(send(&gateway).await.status, 502, "{description}");
        let replay = send(&gateway).await;
        assert_eq!(replay.status, 409, "{description}");
        assert_eq!(
            replay.problem(),
            "idempotency-outcome-unknown",
            "{description}"
        );
        assert_eq!(arrived_count(&upstream, "POST"), 1, "{description}");
    }
}

#[tokio::test]
async fn with_on_unknown_hold_a_keyed_put_is_not_retried() {
    let upstream = with_statuses(&[503, 200]);
    let rule = format!("{HOLD}, methods = \"PUT\"");
    let gateway = gateway_with_rule(&[upstream.url()], QUICK, &rule).start();
    let put = || gateway.client().request("PUT", "/thing").body("1");
    assert_eq!(put().key("k1").send().await.status, 503);
    assert_eq!(upstream.count(), 1);
    assert!(put().key("k1").send().await.is_replay());
    // The gateway retries a PUT request that has no idempotency key, because the method is idempotent.
    let upstream = with_statuses(&[503, 200]);
    let gateway = gateway_with_rule(&[upstream.url()], QUICK, &rule).start();
    let put = gateway.client().request("PUT", "/thing").body("1");
    assert_eq!(put.send().await.status, 200);
}

#[tokio::test]
async fn with_idempotency_keys_no_order_is_created_twice() {
    const KEYS: usize = 20;
    const ATTEMPTS: usize = 3;
    // The upstream creates an order for each request. For every second order it closes the connection without a
    // response.
    let upstream = crate::support::raw_http::RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            if request.body.ends_with(b"0") {
                return;
            }
            connection.send("HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let gateway = gateway_with_rule(&[upstream.url()], QUICK, HOLD).start();
    let client = gateway.client();
    let mut created = 0;
    for number in 0..KEYS {
        let body = format!("order={number}, lost={}", number % 2);
        for attempt in 0..ATTEMPTS {
            let key = format!("order-{number}");
            let response = client.post("/orders").key(&key).body(body.clone()).send();
            let status = response.await.status;
            match (number % 2, attempt) {
                (0, 0) => assert_eq!(status, 502),
                (0, _) => assert_eq!(status, 409),
                _ => assert_eq!(status, 201),
            }
        }
        created += 1;
        assert_eq!(arrived_count(&upstream, "POST"), created, "{number}");
    }
}
