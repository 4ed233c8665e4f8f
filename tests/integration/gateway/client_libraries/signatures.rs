//! Tests with client libraries that sign each attempt separately: boto3 (AWS Signature Version 4), requests-oauthlib
//! (OAuth 1) and the Python library requests (Digest authentication).

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use http::header::WWW_AUTHENTICATE;
use serde_json::{Value, json};

use super::{responding_on_permit, spawn_script, users};
use crate::support::{Gateway, Upstream, empty, full};

/// Asserts that an exchange has the response of the execution with this number. `replayed` states whether the response
/// is a replay.
#[track_caller]
fn assert_execution(exchange: &Value, number: usize, replayed: bool) {
    assert_eq!(exchange["status"], 200, "{exchange}");
    assert_eq!(exchange["body"], format!("execution {number}"));
    let expected = if replayed { json!("true") } else { Value::Null };
    assert_eq!(exchange["replayed"], expected, "{exchange}");
}

/// Returns the parameter `name` of the `Authorization` header field of an exchange, without quotes.
fn param_of(exchange: &Value, name: &str) -> String {
    let value = exchange["authorization"]
        .as_str()
        .expect("the request has `Authorization`");
    let mut param_of = value
        .split([' ', ','])
        .filter_map(|param| param.split_once('='));
    let (_, value) = param_of.find(|(found, _)| *found == name).expect(name);
    value.trim_matches('"').to_owned()
}

#[tokio::test]
async fn a_boto3_retry_with_a_new_signature_gets_the_response_to_the_first_attempt() {
    let (upstream, permits) = responding_on_permit(|number| {
        let md5 = "9c4eba77c8daf0fe28b3d713013bfc9a";
        json!({"MessageId": format!("message-{number}"), "MD5OfMessageBody": md5})
    });
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    // Signatures contain the time in whole seconds. The timeout of 2.5 s makes the attempts more than a second apart,
    // so their signatures differ.
    let sending = spawn_script("boto3_send.py", &gateway, "2.5");
    gateway.wait_for_outcome("waited", 1).await;
    permits.add_permits(1);
    let result = sending.await.expect("the task does not panic");
    assert_eq!(result["id"], "message-1", "{result}");
    assert_eq!(result["replayed"], "true", "{result}");
    assert_eq!(upstream.count(), 1);

    let attempts = result["attempts"].as_array().expect("the member is a list");
    let distinct = |name: &str| {
        let values = attempts.iter().map(|attempt| attempt[name].to_string());
        values.collect::<HashSet<_>>().len()
    };
    assert!(attempts.len() > 1, "the client did not retry: {result}");
    assert_eq!(distinct("Idempotency-Key"), 1, "{result}");
    assert_eq!(distinct("X-Amz-Date"), attempts.len(), "{result}");
    assert_eq!(distinct("Authorization"), attempts.len(), "{result}");
    let sent = upstream.last().header("authorization");
    assert!(sent.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"));
    assert_eq!(attempts[0]["Authorization"], sent);
}

#[tokio::test]
async fn an_oauth1_request_signed_again_is_replayed_and_another_consumer_executes() {
    let executions = AtomicUsize::new(0);
    let upstream = Upstream::with(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        async move { full(format!("execution {number}")) }
    });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let [first, retry, other] = users("oauth1", &gateway).await;
    assert_execution(&first, 1, false);
    assert_execution(&retry, 1, true);
    assert_execution(&other, 2, false);
    assert_eq!(upstream.count(), 2);
    for name in ["oauth_nonce", "oauth_signature"] {
        assert_ne!(param_of(&first, name), param_of(&retry, name));
    }
    assert_eq!(param_of(&retry, "oauth_consumer_key"), "key-of-ann");
    assert_eq!(param_of(&other, "oauth_consumer_key"), "key-of-bob");
}

#[tokio::test]
async fn a_digest_request_is_executed_after_the_challenge_and_replayed_with_the_next_nonce_count() {
    let executions = AtomicUsize::new(0);
    let upstream = Upstream::with(move |received| {
        let reply = if received.has("authorization") {
            let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
            full(format!("execution {number}"))
        } else {
            let mut challenge = empty(401);
            challenge.headers_mut().insert(
                WWW_AUTHENTICATE,
                HeaderValue::from_static(
                    "Digest realm=\"api\", nonce=\"n1\", qop=\"auth\", algorithm=SHA-256",
                ),
            );
            challenge
        };
        async move { reply }
    });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let [first, retry, other] = users("digest", &gateway).await;
    assert_execution(&first, 1, false);
    assert_execution(&retry, 1, true);
    assert_execution(&other, 2, false);
    // Each of the two users sends one request that is challenged and one that is executed. The replayed retry does not
    // reach the upstream.
    assert_eq!(upstream.count(), 4);
    let keys = upstream.requests();
    assert!(
        keys.iter()
            .all(|sent| sent.header("idempotency-key") == "order-17")
    );
    assert_eq!(param_of(&first, "nc"), "00000001");
    assert_eq!(param_of(&retry, "nc"), "00000002");
    assert_ne!(param_of(&first, "cnonce"), param_of(&retry, "cnonce"));
}
