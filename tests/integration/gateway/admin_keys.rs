//! Tests of the admin API that looks up idempotency keys and deletes records whose outcome is unknown.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};
use tidegate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, Permit,
    RecordSettings, Records as _, StoredResponse as Stored,
};
use tidegate::internals::{clock, record_id, records};

use crate::support::{ClientResponse, Gateway, Upstream};

/// Gateway with an admin API. The tests write idempotency records directly into its store, without sending requests.
struct AdminApi {
    gateway: Gateway,
    _upstream: Upstream,
}

impl AdminApi {
    fn open() -> Self {
        Self::with_admin("")
    }

    fn with_admin(settings: &str) -> Self {
        let upstream = Upstream::echo();
        let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{settings}\n");
        Self {
            gateway: Gateway::proxying(&admin).upstream(&upstream).start(),
            _upstream: upstream,
        }
    }

    async fn claim(&self, key: &str, client: &str) -> Claim {
        let shared = self.gateway.shared();
        let claim_request = ClaimRequest {
            at: clock(&shared).now(),
            id: record_id(&shared, key, client.parse().expect("the address is valid")),
            client: ClientHash(1),
            fingerprint: Fingerprint {
                request: [0xc4; 16],
                credentials: [0xc4; 16],
            },
            settings: RecordSettings::default(),
        };
        let claim = records(&shared).claim(&claim_request).await;
        claim.expect("the store works")
    }

    async fn running(&self, key: &str, client: &str) -> Permit {
        match self.claim(key, client).await {
            Claim::Won(mut permit) => {
                permit.mark_sent();
                permit
            }
            other => panic!("the key {key} of {client} cannot be claimed: {other:?}"),
        }
    }

    async fn unknown(&self, key: &str, client: &str) {
        drop(self.running(key, client).await);
    }

    async fn completed(&self, key: &str, client: &str, body: &'static [u8]) {
        let (head, ()) = Response::builder()
            .status(201)
            .header("content-type", "text/plain")
            .header("set-cookie", "session=private")
            .body(())
            .expect("the response is valid")
            .into_parts();
        let response = Stored::new(head.status, &head.headers, body);
        self.finished(key, client, ExecutionOutcome::Completed(Arc::new(response)))
            .await;
    }

    async fn finished(&self, key: &str, client: &str, outcome: ExecutionOutcome) {
        let permit = self.running(key, client).await;
        let completed = records(&self.gateway.shared()).end(permit, outcome).await;
        completed.expect("the store works");
    }

    async fn get(&self, target: &str) -> ClientResponse {
        self.gateway
            .admin()
            .get(&format!("/admin/v1/idempotency{target}"))
            .send()
            .await
    }

    async fn free(&self, target: &str) -> ClientResponse {
        let target = format!("/admin/v1/idempotency/keys/{target}");
        self.gateway.admin().request("DELETE", &target).send().await
    }

    /// Returns the idempotency record that the admin API shows for `target`. Panics unless exactly one record exists.
    async fn record(&self, target: &str) -> Value {
        let response = self.get(&format!("/keys/{target}")).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let records = response.json()["records"].take();
        let records = records.as_array().expect("the member is a list");
        assert_eq!(records.len(), 1, "{records:?}");
        records[0].clone()
    }
}

const ANN: &str = "192.0.2.1";
const BOB: &str = "192.0.2.2";

#[tokio::test]
async fn a_record_can_be_looked_up_in_each_of_its_states() {
    let admin_api = AdminApi::open();
    admin_api.completed("done", ANN, b"created").await;
    admin_api.unknown("lost", ANN).await;
    admin_api
        .finished("streamed", ANN, ExecutionOutcome::Tombstone)
        .await;
    let _running = admin_api.running("running", ANN).await;

    for (key, state, status, bytes) in [
        ("done", "completed", json!(201), json!(7)),
        ("lost", "unknown", Value::Null, Value::Null),
        ("streamed", "tombstone", Value::Null, Value::Null),
        ("running", "in_progress", Value::Null, Value::Null),
    ] {
        let record = admin_api.record(key).await;
        assert_eq!(record["state"], state);
        assert_eq!(record["status"], status, "{key}");
        assert_eq!(record["response_bytes"], bytes, "{key}");
        assert_eq!(record["fingerprint"], "c4c4c4c4");
        assert_eq!(record["scope"].as_str().map(str::len), Some(32));
        let age = record["age_seconds"]
            .as_f64()
            .expect("the value is a number");
        assert!((0.0..60.0).contains(&age), "age_seconds is {age}");
        match record["expires_in_seconds"].as_f64() {
            None => assert_eq!(state, "in_progress"),
            Some(seconds) => assert!((86_000.0..=86_400.0).contains(&seconds), "{seconds}"),
        }
    }
    let overview = admin_api.get("").await;
    assert_eq!(overview.header("content-type"), "application/json");
    let overview = overview.json();
    assert_eq!(
        overview["records"],
        json!({"in_progress": 1, "completed": 1, "unknown": 1, "tombstone": 1})
    );
    assert!(overview["bytes"].is_u64());
    assert_eq!(overview["evictions"], 0);
}

#[tokio::test]
async fn a_stored_response_is_shown_only_with_body_true() {
    let admin_api = AdminApi::open();
    admin_api.completed("done", ANN, b"for Ann alone").await;
    admin_api.completed("binary", ANN, b"\xff\x00").await;
    for target in ["/keys/done", "/keys/done?body=false"] {
        let response = admin_api.get(target).await;
        assert_eq!(response.json()["key"], "done");
        assert_eq!(response.header("cache-control"), "no-store");
        for private in ["Ann alone", "cookie", "session"] {
            assert!(
                !response.text().contains(private),
                "the response contains {private:?}: {}",
                response.text()
            );
        }
    }
    let record = admin_api.record("done?body=true").await;
    assert_eq!(record["body"], "for Ann alone");
    assert_eq!(
        record["headers"],
        json!([
            ["content-type", "text/plain"],
            ["set-cookie", "session=private"]
        ])
    );
    let record = admin_api.record("binary?body=true").await;
    assert_eq!(record["body_base64"], "/wA=");
}

#[tokio::test]
async fn a_key_of_two_callers_has_two_records_and_scope_selects_one() {
    let admin_api = AdminApi::open();
    admin_api.unknown("shared", ANN).await;
    admin_api.unknown("shared", BOB).await;
    let both = admin_api.get("/keys/shared").await.json();
    let records = both["records"].as_array().expect("the member is a list");
    assert_eq!(records.len(), 2);
    let mut scopes: Vec<_> = records.iter().map(|record| &record["scope"]).collect();
    scopes.sort_by_key(ToString::to_string);
    assert_ne!(scopes[0], scopes[1]);

    let rejected = admin_api.free("shared").await;
    assert_eq!(rejected.status, 400);
    assert_eq!(rejected.problem(), "bad-request");
    let rejected = rejected.json();
    let mut named: Vec<_> = rejected["scopes"]
        .as_array()
        .expect("the member is a list")
        .iter()
        .collect();
    named.sort_by_key(ToString::to_string);
    assert_eq!(named, scopes);

    let one = format!(
        "shared?scope={}",
        scopes[0].as_str().expect("the value is text")
    );
    assert_eq!(admin_api.record(&one).await["scope"], *scopes[0]);
    assert_eq!(admin_api.free(&one).await.status, 204);
    assert_eq!(admin_api.free(&one).await.status, 404);
    assert_eq!(admin_api.record("shared").await["scope"], *scopes[1]);
    // Only one record of this idempotency key is left, so the DELETE succeeds without the `scope` parameter.
    assert_eq!(admin_api.free("shared").await.status, 204);
    assert_eq!(admin_api.get("/keys/shared").await.status, 404);
}

#[tokio::test]
async fn a_key_that_was_freed_can_be_claimed_again() {
    let admin_api = AdminApi::open();
    admin_api.unknown("lost", ANN).await;
    assert!(matches!(
        admin_api.claim("lost", ANN).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    let freed = admin_api.free("lost").await;
    assert_eq!((freed.status, freed.text().as_str()), (204, ""));
    assert!(matches!(admin_api.claim("lost", ANN).await, Claim::Won(_)));
}

#[tokio::test]
async fn only_a_key_whose_outcome_is_unknown_is_freed() {
    let admin_api = AdminApi::open();
    admin_api.completed("done", ANN, b"").await;
    admin_api
        .finished("streamed", ANN, ExecutionOutcome::Tombstone)
        .await;
    let _running = admin_api.running("running", ANN).await;
    for (key, state) in [
        ("done", "completed"),
        ("streamed", "tombstone"),
        ("running", "in_progress"),
    ] {
        let rejected = admin_api.free(key).await;
        assert_eq!(rejected.status, 409, "{key}");
        assert_eq!(rejected.header("content-type"), "application/problem+json");
        assert_eq!(rejected.json()["state"], state);
        assert_eq!(admin_api.record(key).await["state"], state);
    }
    assert!(matches!(
        admin_api.claim("done", ANN).await,
        Claim::Replay(_)
    ));
    let absent = admin_api.free("never-used").await;
    assert_eq!(absent.status, 404);
    assert_eq!(absent.json()["status"], 404);
}

#[tokio::test]
async fn an_invalid_key_returns_400_with_the_reason() {
    let admin_api = AdminApi::open();
    for (spelling, reason) in [
        ("", "the idempotency key is empty"),
        ("%0D%0AX-Injected:%201", "other than visible ASCII"),
    ] {
        for response in [
            admin_api.get(&format!("/keys/{spelling}")).await,
            admin_api.free(spelling).await,
        ] {
            assert_eq!(response.status, 400, "{spelling}");
            assert_eq!(response.problem(), "idempotency-key-invalid");
            let detail = response.json()["detail"].to_string();
            assert!(
                detail.contains(reason),
                "unexpected problem detail for the key {spelling}: {detail}"
            );
            assert!(!response.has("x-injected"));
        }
    }
    let response = admin_api.free("k?scopes=1").await;
    assert_eq!(
        (response.status, &*response.problem()),
        (400, "bad-request")
    );
}

#[tokio::test]
async fn a_key_is_found_whatever_characters_it_has_and_in_either_spelling() {
    let admin_api = AdminApi::open();
    for (key, spelling) in [
        ("a/b", "a%2Fb"),
        ("a/b/c", "a/b/c"),
        ("..", "%2e%2E"),
        ("what?#&=", "what%3F%23&="),
        ("\"two words\"", "%22two%20words%22"),
    ] {
        admin_api.unknown(key, ANN).await;
        assert_eq!(
            admin_api.record(spelling).await["state"],
            "unknown",
            "{key}"
        );
        assert_eq!(admin_api.free(spelling).await.status, 204, "{key}");
        assert!(matches!(admin_api.claim(key, ANN).await, Claim::Won(_)));
    }
}
