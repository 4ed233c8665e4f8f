//! Tests of retries of requests with an idempotency key.

use tidegate::idempotency::RecordCounts;

use super::{LOSSES, QUICK, arrived_count, gateway_with_rule, losing};
use crate::support::{ClientResponse, Gateway};

const RELEASE: &str = "mode = \"optional\", on_unknown = \"release\"";
const HOLD: &str = "mode = \"optional\", on_unknown = \"hold\"";

async fn send(gateway: &Gateway) -> ClientResponse {
    let request = gateway.client().post("/pay").key("k1").body("amount=1");
    request.send().await
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
