//! Tests with users behind one IP address who send different credentials, with the memory, disk and Redis stores.
//!
//! The upstream returns the number of the execution in the body and sets a cookie. A user who sends the idempotency key
//! of another user must receive neither the body nor the cookie.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use http::header::SET_COOKIE;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::{assert_execution, assert_problem, assert_replay_of};
use crate::support::redis::RedisServer;
use crate::support::{
    Client, ClientRequest, ClientResponse, Gateway, GatewayBuilder, Upstream, full,
};

/// Headers that identify a user but are not part of the key scope. Each entry contains the header name and its values
/// for two users.
const CREDENTIALS: [(&str, &str, &str); 11] = [
    (
        "Cookie",
        "theme=dark; session=ann",
        "theme=dark; session=bob",
    ),
    ("X-Api-Key", "ann", "bob"),
    ("Api-Key", "ann", "bob"),
    ("ApiKey", "ann", "bob"),
    ("X-Auth-Token", "ann", "bob"),
    ("X-Auth-Request-Email", "ann@example.com", "bob@example.com"),
    ("X-Session-Id", "ann", "bob"),
    ("X-Client-Secret", "ann", "bob"),
    ("X-Amz-Security-Token", "ann", "bob"),
    // The gateway does not forward `Proxy-Authorization`, but still compares it. A wrong rejection is better than the
    // response of another user.
    ("Proxy-Authorization", "Basic YW5u", "Basic Ym9i"),
    ("X_Session", "ann", "bob"),
];

/// Values of `Authorization` that form a key scope. Each entry contains the first user's value, the same user's value
/// in a retry, and the second user's value.
const SCOPES: [[&str; 3]; 6] = [
    ["Bearer ann", "bearer  ann", "Bearer bob"],
    [
        "AWS4-HMAC-SHA256 Credential=ANN/20261117/r/s/aws4_request, SignedHeaders=host, Signature=1",
        "AWS4-HMAC-SHA256 Credential=ANN/20261118/r/s/aws4_request,SignedHeaders=host,Signature=2",
        "AWS4-HMAC-SHA256 Credential=BOB/20261117/r/s/aws4_request, SignedHeaders=host, Signature=3",
    ],
    [
        "OAuth oauth_consumer_key=\"c\", oauth_token=\"ann\", oauth_nonce=\"1\", oauth_signature=\"1\"",
        "OAuth oauth_nonce=\"2\", oauth_signature=\"2\", oauth_token=\"ann\", oauth_consumer_key=\"c\"",
        "OAuth oauth_consumer_key=\"c\", oauth_token=\"bob\", oauth_nonce=\"3\", oauth_signature=\"3\"",
    ],
    [
        "Digest username=\"ann\", realm=\"r\", nonce=\"n\", nc=00000001, cnonce=\"1\", response=\"1\"",
        "Digest username=\"ann\", realm=\"r\", nonce=\"n\", nc=00000002, cnonce=\"2\", response=\"2\"",
        "Digest username=\"bob\", realm=\"r\", nonce=\"n\", nc=00000003, cnonce=\"3\", response=\"3\"",
    ],
    [
        "Hawk id=\"ann\", ts=\"1\", nonce=\"1\", mac=\"1\"",
        "Hawk id=\"ann\", ts=\"2\", nonce=\"2\", mac=\"2\"",
        "Hawk id=\"bob\", ts=\"3\", nonce=\"3\", mac=\"3\"",
    ],
    [
        "Signature keyId=\"ann\",created=1,signature=\"1\"",
        "Signature keyId=\"ann\",created=2,signature=\"2\"",
        "Signature keyId=\"bob\",created=3,signature=\"3\"",
    ],
];

/// Idempotency store of a test. It owns the directory or the Redis server that must outlive the gateways.
enum Store {
    Memory,
    Disk(TempDir),
    Redis(RedisServer),
}

impl Store {
    fn all() -> [Self; 3] {
        let directory = tempfile::tempdir().expect("the temporary directory should be created");
        [
            Self::Memory,
            Self::Disk(directory),
            Self::Redis(RedisServer::start()),
        ]
    }

    fn start(&self, builder: GatewayBuilder) -> Gateway {
        match self {
            Self::Memory => builder,
            Self::Disk(directory) => builder.on_disk(&directory.path().join("store")),
            Self::Redis(server) => builder.with_section(&format!(
                "[store]\nbackend = \"redis\"\nurl = \"{}\"\nlimits_timeout = \"5s\"\nrecords_timeout = \"5s\"",
                server.url()
            )),
        }
        .start()
    }
}

/// Creates an upstream that numbers its executions and sets a cookie in each response. A request waits until it can
/// acquire one of `permits`.
fn shop(permits: &Arc<Semaphore>) -> Upstream {
    let executions = AtomicUsize::new(0);
    let permits = Arc::clone(permits);
    Upstream::with(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        let permits = Arc::clone(&permits);
        async move {
            let _permit = permits
                .acquire()
                .await
                .expect("the semaphore should never be closed");
            let mut reply = full(format!("execution {number}"));
            let cookie = HeaderValue::from_static("owner=ann");
            reply.headers_mut().insert(SET_COOKIE, cookie);
            reply
        }
    })
}

/// Builds the order request that all users send. The tests add the headers in which users differ.
fn order(client: &Client, key: &str) -> ClientRequest {
    client
        .post("/orders")
        .header("Host", "a")
        .key(key)
        .body("order=17")
}

/// Asserts that the gateway rejects a request because of its credentials. The rejection must contain no part of the
/// other user's response.
#[track_caller]
fn assert_credential_mismatch(response: &ClientResponse) {
    assert_problem(response, 422, "idempotency-key-reused");
    let text = response.text();
    assert!(
        text.contains("the same request with other credentials"),
        "{text}"
    );
    assert!(text.contains("`scope`"), "{text}");
    assert!(!text.contains("execution "), "{text}");
    assert!(!response.has("set-cookie"), "{response:?}");
}

#[tokio::test]
async fn users_who_differ_in_a_credential_never_receive_each_others_response() {
    for store in Store::all() {
        let upstream = shop(&Arc::new(Semaphore::new(1)));
        let gateway = store.start(Gateway::keyed("").upstream(&upstream));
        let mut executions = 0;
        for client in [gateway.client(), gateway.client().h2()] {
            for (name, ann, bob) in CREDENTIALS {
                let send = |key: &str, value: &str| order(&client, key).header(name, value).send();
                let keys = ["with", "without"]
                    .map(|key| format!("{key} {name} {executions}").replace(' ', "-"));
                executions += 1;
                assert_execution(&send(&keys[0], ann).await, executions);
                assert_credential_mismatch(&send(&keys[0], bob).await);
                assert_credential_mismatch(&order(&client, &keys[0]).send().await);
                assert_replay_of(&send(&keys[0], ann).await, executions);

                executions += 1;
                assert_execution(&order(&client, &keys[1]).send().await, executions);
                assert_credential_mismatch(&send(&keys[1], ann).await);
                assert_replay_of(&order(&client, &keys[1]).send().await, executions);
                assert_eq!(upstream.count(), executions, "{name}");
            }
        }
        let received = upstream.requests();
        assert!(
            !received
                .iter()
                .any(|request| request.has("proxy-authorization"))
        );
    }
}

#[tokio::test]
async fn users_with_different_authorization_execute_separately_and_their_retries_are_replayed() {
    for store in Store::all() {
        let upstream = shop(&Arc::new(Semaphore::new(1)));
        let gateway = store.start(Gateway::keyed("").upstream(&upstream));
        let mut executions = 0;
        for client in [gateway.client(), gateway.client().h2()] {
            for (number, [ann, retry, bob]) in SCOPES.into_iter().enumerate() {
                let key = format!("{number}-{executions}");
                let send = |value: &str| {
                    let request = order(&client, &key);
                    request.header("Authorization", value).send()
                };
                assert_execution(&send(ann).await, executions + 1);
                assert_execution(&send(bob).await, executions + 2);
                assert_replay_of(&send(retry).await, executions + 1);
                assert_replay_of(&send(bob).await, executions + 2);
                executions += 2;
            }
        }
        assert_eq!(upstream.count(), executions);
    }
}

#[tokio::test]
async fn a_retry_with_reordered_headers_and_cookies_is_replayed() {
    for store in Store::all() {
        let upstream = shop(&Arc::new(Semaphore::new(1)));
        let gateway = store.start(Gateway::keyed("").upstream(&upstream));
        for (number, client) in (1..).zip([gateway.client(), gateway.client().h2()]) {
            let key = format!("k{number}");
            let send = |lines: &[(&str, &str)]| {
                let request = order(&client, &key);
                let lines = lines.iter();
                let request = lines.fold(request, |request, (name, value)| {
                    request.header(name, value)
                });
                request.send()
            };
            let first = [
                ("X-Api-Key", "ann"),
                ("Cookie", "AWSALB=1; session=ann; cart=9"),
                ("X-Auth-User", "ann"),
            ];
            assert_execution(&send(&first).await, number);
            for retry in [
                &[
                    ("X-Auth-User", "ann"),
                    ("Cookie", "cart=9; session=ann"),
                    ("X-Api-Key", "ann"),
                ][..],
                // An HTTP/2 client can split the cookies over several `Cookie` fields (RFC 9113, section 8.2.3).
                &[
                    ("Cookie", "cart=9"),
                    ("X-Auth-User", "ann"),
                    ("Cookie", "AWSALB=2"),
                    ("X-Api-Key", "ann"),
                    ("Cookie", "session=ann"),
                ],
            ] {
                assert_replay_of(&send(retry).await, number);
            }
            assert_credential_mismatch(&send(&first[..2]).await);
        }
        assert_eq!(upstream.count(), 2);
    }
}

#[tokio::test]
async fn another_user_does_not_wait_for_a_request_in_flight() {
    for store in Store::all() {
        let permits = Arc::new(Semaphore::new(0));
        let upstream = shop(&permits);
        let gateway = store.start(Gateway::keyed("").admin().upstream(&upstream));
        let client = gateway.client();
        let send = |user: &str| order(&client, "k1").header("X-Api-Key", user).send();
        let first = tokio::spawn(send("ann"));
        gateway.wait_for_outcome("executed", 1).await;
        assert_credential_mismatch(&send("bob").await);
        let duplicate = tokio::spawn(send("ann"));
        gateway.wait_for_outcome("waited", 1).await;
        permits.add_permits(1);
        assert_execution(&first.await.expect("the task should not panic"), 1);
        assert_replay_of(&duplicate.await.expect("the task should not panic"), 1);
        assert_credential_mismatch(&send("bob").await);
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn the_next_gateway_on_a_persistent_store_compares_credentials() {
    for store in Store::all() {
        if matches!(store, Store::Memory) {
            continue;
        }
        let upstream = shop(&Arc::new(Semaphore::new(1)));
        for expected in [assert_execution, assert_replay_of] {
            let gateway = store.start(Gateway::keyed("").upstream(&upstream));
            let client = gateway.client();
            let send = |user: &str| order(&client, "k1").header("X-Api-Key", user).send();
            expected(&send("ann").await, 1);
            assert_credential_mismatch(&send("bob").await);
            assert_credential_mismatch(&order(&client, "k1").send().await);
        }
        assert_eq!(upstream.count(), 1);
    }
}
