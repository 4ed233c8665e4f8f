//! Retries of requests with an idempotency key.

use http::HeaderMap;
use tidegate::idempotency::RecordCounts;

use super::{LOSSES, QUICK, arrived, in_turn, losing, ruled_before};
use crate::harness::{Answer, Gateway};

const RELEASE: &str = "mode = \"optional\", on_unknown = \"release\"";
const HOLD: &str = "mode = \"optional\", on_unknown = \"hold\"";

async fn ask(gateway: &Gateway) -> Answer {
    let asking = gateway.client().post("/pay").key("k1").body("amount=1");
    asking.send().await
}

/// What a replay has in common with the answer it repeats.
fn lasting(answer: &Answer) -> (u16, HeaderMap, bytes::Bytes) {
    let mut headers = answer.headers.clone();
    for own in ["x-request-id", "idempotent-replayed"] {
        headers.remove(own);
    }
    (answer.status, headers, answer.body.clone())
}

#[tokio::test]
async fn where_upstream_understands_keys_a_failure_is_retried_and_the_last_answer_kept_once() {
    let upstream = in_turn(&[503, 500, 201]);
    let gateway = ruled_before(&[upstream.url()], QUICK, RELEASE).start();
    let first = ask(&gateway).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(first.text(), "answer 3");
    for _ in 0..2 {
        let again = ask(&gateway).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(lasting(&again), lasting(&first));
    }
    let requests = upstream.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        // What upstream needs to know that they are one.
        assert_eq!(request.header("idempotency-key"), "k1");
        assert_eq!(request.body, "amount=1");
    }
    let counts = gateway.counts();
    assert_eq!((counts.completed, counts.unknown), (1, 0));
}

#[tokio::test]
async fn where_upstream_understands_keys_a_lost_answer_is_asked_for_once_more() {
    for (how, lose) in LOSSES {
        let upstream = losing(lose);
        let gateway = ruled_before(&[upstream.url()], QUICK, RELEASE).start();
        let first = ask(&gateway).await;
        assert_eq!((first.status, first.text().as_str()), (200, "amount=1"));
        assert!(
            !first.is_replay() && ask(&gateway).await.is_replay(),
            "{how}"
        );
        assert_eq!(arrived(&upstream, "POST"), 2, "{how}");
        assert_eq!(gateway.counts().completed, 1, "{how}");
    }
}

#[tokio::test]
async fn a_key_does_not_make_a_body_above_the_most_that_is_kept_one_that_is_sent_again() {
    for (length, count) in [(1_024, 2), (1_025, 1)] {
        let upstream = in_turn(&[503, 201]);
        let api = format!("{QUICK}max_body = \"1KiB\"");
        let gateway = ruled_before(&[upstream.url()], &api, RELEASE).start();
        let asking = gateway.client().post("/pay").key("k1");
        asking.body(vec![b'x'; length]).send().await;
        assert_eq!(upstream.count(), count, "{length}");
    }
}

#[tokio::test]
async fn where_all_attempts_are_lost_the_key_is_free_again() {
    let upstream = crate::wire_raw::Upstream::scripted(|conversation| {
        conversation.request();
    });
    let api = format!("{QUICK}attempts = 3");
    let gateway = ruled_before(&[upstream.url()], &api, RELEASE).start();
    assert_eq!(ask(&gateway).await.status, 502);
    assert_eq!(arrived(&upstream, "POST"), 3);
    assert_eq!(gateway.counts(), RecordCounts::default());
}

#[tokio::test]
async fn where_upstream_does_not_a_failure_is_kept_and_never_retried() {
    let upstream = in_turn(&[503, 201]);
    let gateway = ruled_before(&[upstream.url()], QUICK, HOLD).start();
    for is_replay in [false, true] {
        let answer = ask(&gateway).await;
        assert_eq!((answer.status, answer.is_replay()), (503, is_replay));
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn where_upstream_does_not_a_lost_answer_stays_lost() {
    for (how, lose) in LOSSES {
        let upstream = losing(lose);
        let gateway = ruled_before(&[upstream.url()], QUICK, HOLD).start();
        assert_eq!(ask(&gateway).await.status, 502, "{how}");
        let again = ask(&gateway).await;
        assert_eq!(again.status, 409, "{how}");
        assert_eq!(again.problem(), "idempotency-outcome-unknown", "{how}");
        assert_eq!(arrived(&upstream, "POST"), 1, "{how}");
    }
}

#[tokio::test]
async fn a_key_goes_before_a_method_that_could_be_repeated() {
    let upstream = in_turn(&[503, 200]);
    let rule = format!("{HOLD}, methods = \"PUT\"");
    let gateway = ruled_before(&[upstream.url()], QUICK, &rule).start();
    let put = || gateway.client().request("PUT", "/thing").body("1");
    assert_eq!(put().key("k1").send().await.status, 503);
    assert_eq!(upstream.count(), 1);
    assert!(put().key("k1").send().await.is_replay());
    // Without a key it is only a PUT.
    let upstream = in_turn(&[503, 200]);
    let gateway = ruled_before(&[upstream.url()], QUICK, &rule).start();
    let put = gateway.client().request("PUT", "/thing").body("1");
    assert_eq!(put.send().await.status, 200);
}

#[tokio::test]
async fn with_idempotency_key_double_creations_number_zero() {
    const KEYS: usize = 20;
    const SENDINGS: usize = 3;
    // Creates what it is asked for, and every second time breaks off before it says so.
    let upstream = crate::wire_raw::Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            if request.body.ends_with(b"0") {
                return;
            }
            conversation.send("HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let gateway = ruled_before(&[upstream.url()], QUICK, HOLD).start();
    let client = gateway.client();
    let mut created = 0;
    for number in 0..KEYS {
        let body = format!("order={number}, lost={}", number % 2);
        for sending in 0..SENDINGS {
            let key = format!("order-{number}");
            let answer = client.post("/orders").key(&key).body(body.clone()).send();
            let status = answer.await.status;
            match (number % 2, sending) {
                (0, 0) => assert_eq!(status, 502),
                (0, _) => assert_eq!(status, 409),
                _ => assert_eq!(status, 201),
            }
        }
        created += 1;
        assert_eq!(arrived(&upstream, "POST"), created, "{number}");
    }
}
