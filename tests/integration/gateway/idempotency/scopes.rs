//! Tests of the scopes of idempotency keys: no client ever gets the response of another scope.

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions};
use crate::support::Gateway;

#[tokio::test]
async fn the_scope_is_the_credential_whatever_the_address() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let send = |from: &str, credential: &str| {
        let request = gateway.client().from(from).post("/").key("k1");
        request.header("Authorization", credential).send()
    };
    assert_execution(&send("127.0.0.1", "Bearer ann").await, 1);
    assert_execution(&send("127.0.0.1", "Bearer bob").await, 2);
    assert_execution(&send("127.0.0.1", "Bearer Ann").await, 3);
    // The authentication scheme is case-insensitive (RFC 9110, section 11.1), so this request is in the scope of
    // `Bearer ann`.
    assert_replay_of(&send("127.0.0.1", "bearer ann").await, 1);
    assert_replay_of(&send("127.0.0.2", "Bearer ann").await, 1);
    assert_replay_of(&send("127.0.0.2", "Bearer bob").await, 2);
    // An `Authorization` value of one word has no scheme, so the complete value is case-sensitive.
    assert_execution(&send("127.0.0.1", "Secret").await, 4);
    assert_execution(&send("127.0.0.1", "secret").await, 5);
}

#[tokio::test]
async fn without_a_credential_the_scope_is_the_client() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let send = |from: &str| gateway.client().from(from).post("/").key("k1").send();
    assert_execution(&send("127.0.0.1").await, 1);
    assert_execution(&send("127.0.0.2").await, 2);
    assert_replay_of(&send("127.0.0.1").await, 1);
    assert_replay_of(&send("127.0.0.2").await, 2);
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_scope_is_the_forwarded_client() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("")
        .with_section("[client]\ntrusted_proxies = [\"127.0.0.9/32\"]")
        .upstream(&upstream)
        .start();
    let send = |from: &str, client: &str| {
        let request = gateway.client().from(from).post("/").key("k1");
        request.header("X-Forwarded-For", client).send()
    };
    assert_execution(&send("127.0.0.9", "192.0.2.1").await, 1);
    assert_execution(&send("127.0.0.9", "192.0.2.2").await, 2);
    assert_replay_of(&send("127.0.0.9", "203.0.113.7, 192.0.2.1").await, 1);
    // An untrusted peer is the client itself, because the gateway ignores its `X-Forwarded-For` header.
    assert_execution(&send("127.0.0.8", "192.0.2.1").await, 3);
    assert_replay_of(&send("127.0.0.8", "192.0.2.2").await, 3);
}

#[tokio::test]
async fn a_scope_can_be_a_header() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("scope = [\"header:x-api-key\"]")
        .upstream(&upstream)
        .start();
    let send = |from: &str, api_key: &str, credential: &str| {
        let request = gateway.client().from(from).post("/").key("k1");
        let request = request.header("Authorization", credential);
        request.header("X-Api-Key", api_key).send()
    };
    assert_execution(&send("127.0.0.1", "a", "Bearer old").await, 1);
    assert_replay_of(&send("127.0.0.2", "a", "Bearer refreshed").await, 1);
    assert_execution(&send("127.0.0.1", "b", "Bearer old").await, 2);
    // A request without `X-Api-Key` is in the scope of its client address. Two such requests from different addresses
    // are thus in different scopes.
    let without = |from: &str| gateway.client().from(from).post("/").key("k1").send();
    assert_execution(&without("127.0.0.1").await, 3);
    assert_execution(&without("127.0.0.2").await, 4);
    assert_replay_of(&without("127.0.0.1").await, 3);
}

#[tokio::test]
async fn a_scope_can_be_a_cookie() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("scope = [\"cookie:session\"]")
        .upstream(&upstream)
        .start();
    for (client, first) in [(gateway.client(), 1), (gateway.client().h2(), 4)] {
        let send = |from: &str, cookies: &[&str], key: &str| {
            let request = client.clone().from(from).post("/").key(key);
            let request = cookies
                .iter()
                .fold(request, |request, cookie| request.header("Cookie", cookie));
            request.header("Authorization", "Bearer a").send()
        };
        let key = &*format!("k{first}");
        assert_execution(&send("127.0.0.1", &["session=ann"], key).await, first);
        assert_execution(&send("127.0.0.1", &["session=bob"], key).await, first + 1);
        // Only the `session` cookie determines the scope. The client address, other cookies and the order of the
        // cookies have no effect.
        let moved = send("127.0.0.2", &["csrf=1; session=ann"], key);
        assert_replay_of(&moved.await, first);
        let split = send("127.0.0.3", &["a=1", "session=bob", "b=2"], key);
        assert_replay_of(&split.await, first + 1);
        assert_execution(&send("127.0.0.1", &["Session=ann"], key).await, first + 2);
    }
    assert_eq!(upstream.count(), 6);
}

#[tokio::test]
async fn without_the_header_or_cookie_of_the_scope_credentials_count() {
    for scope in ["cookie:session", "header:x-user"] {
        let upstream = numbered_executions();
        let gateway = Gateway::keyed(&format!("scope = [\"{scope}\"]"))
            .upstream(&upstream)
            .start();
        let send = |name: &str, value: &str| {
            let request = gateway.client().post("/").key("k1");
            request.header(name, value).send()
        };
        assert_execution(&send("Authorization", "Bearer ann").await, 1);
        assert_replay_of(&send("Authorization", "Bearer ann").await, 1);
        for (name, value) in [
            ("Authorization", "Bearer bob"),
            ("X-Api-Key", "bob"),
            ("Cookie", "sid=bob"),
        ] {
            let rejected = send(name, value).await;
            assert_problem(&rejected, 422, "idempotency-key-reused");
            assert!(rejected.text().contains("credentials"), "{rejected:?}");
        }
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn a_scope_of_several_parts_is_each_combination() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("scope = [\"header:x-a\", \"header:x-b\"]")
        .upstream(&upstream)
        .start();
    let send = |a: &str, b: &str| {
        let request = gateway.client().post("/").key("k1");
        request.header("X-A", a).header("X-B", b).send()
    };
    let combinations = [("1", "2"), ("12", ""), ("", "12"), ("2", "1"), ("1,2", "")];
    for (number, (a, b)) in (1..).zip(combinations) {
        assert_execution(&send(a, b).await, number);
    }
    for (number, (a, b)) in (1..).zip(combinations) {
        assert_replay_of(&send(a, b).await, number);
    }
}

#[tokio::test]
async fn a_shared_scope_is_one_key_space_of_all_callers() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("scope = [\"shared\"]")
        .upstream(&upstream)
        .start();
    let send = |from: &str, credential: &str| {
        let request = gateway.client().from(from).post("/").key("k1");
        request.header("Authorization", credential).send()
    };
    assert_execution(&send("127.0.0.1", "Bearer ann").await, 1);
    assert_replay_of(&send("127.0.0.2", "Bearer bob").await, 1);
    let rejected = gateway.client().post("/").key("k1").body("other").send();
    assert_problem(&rejected.await, 422, "idempotency-key-reused");
}

#[tokio::test]
async fn a_header_named_in_connection_keeps_its_effect_and_reaches_upstream() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let send = |credential: &str, connection: &str| {
        let request = gateway.client().post("/").key("k1");
        let request = request.header("Authorization", credential);
        request.header("Connection", connection).send()
    };
    let named = "idempotency-key, authorization";
    assert_execution(&send("Bearer ann", named).await, 1);
    let received = upstream.last();
    assert_eq!(received.header("idempotency-key"), "k1");
    assert_eq!(received.header("authorization"), "Bearer ann");
    assert_replay_of(&send("Bearer ann", named).await, 1);
    assert_replay_of(&send("Bearer ann", "keep-alive").await, 1);
    assert_execution(&send("Bearer bob", "Authorization, close").await, 2);
}

#[tokio::test]
async fn a_header_similar_to_the_key_header_is_not_a_key() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for number in 1..=3 {
        let request = gateway.client().post("/").header("Idempotency_Key", "k1");
        assert_execution(&request.send().await, number);
        assert!(!upstream.last().has("idempotency_key"));
    }
    // The gateway does not read `Idempotency_Key` as a second key either: a request with both headers has the key `k1`.
    for expected in [assert_execution, assert_replay_of] {
        let request = gateway.client().post("/").header("Idempotency_Key", "k2");
        expected(&request.key("k1").send().await, 4);
    }
    assert_eq!(upstream.last().header("idempotency-key"), "k1");
}

#[tokio::test]
async fn a_header_similar_to_a_required_key_header_is_not_a_key() {
    let upstream = numbered_executions();
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = { mode = \"required\", scope = \"client\" }",
    )
    .upstream(&upstream)
    .start();
    let request = gateway.client().post("/").header("Idempotency_Key", "k1");
    assert_problem(&request.send().await, 400, "idempotency-key-missing");
    assert_eq!(upstream.count(), 0);
}
