//! What operators see of idempotency keys, and may do about them.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};
use tidegate::idempotency::{
    Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, Permit, RecordSettings,
    Records as _, StoredResponse as Stored,
};
use tidegate::internals::{clock, record_id, records};

use crate::harness::{Answer, Gateway, Upstream};

/// A gateway in whose store keys are put as if requests had been made with them.
struct Office {
    gateway: Gateway,
    _upstream: Upstream,
}

impl Office {
    fn open() -> Self {
        Self::with_admin("")
    }

    fn with_admin(settings: &str) -> Self {
        let upstream = Upstream::echo();
        let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{settings}\n");
        Self {
            gateway: Gateway::open(&admin).upstream(&upstream).start(),
            _upstream: upstream,
        }
    }

    async fn claim(&self, key: &str, client: &str) -> Claim {
        let shared = self.gateway.shared();
        let claim_request = ClaimRequest {
            at: clock(shared).now(),
            id: record_id(shared, key, client.parse().expect("an address")),
            client: ClientHash(1),
            fingerprint: Fingerprint {
                request: [0xc4; 16],
                credentials: [0xc4; 16],
            },
            settings: RecordSettings::default(),
        };
        let claim = records(shared).claim(&claim_request).await;
        claim.expect("a store that works")
    }

    async fn running(&self, key: &str, client: &str) -> Permit {
        match self.claim(key, client).await {
            Claim::Won(mut permit) => {
                permit.mark_sent();
                permit
            }
            other => panic!("{key} of {client}: {other:?}"),
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
            .expect("a response")
            .into_parts();
        let answer = Stored::of(&head, body, &[]);
        self.kept(key, client, ExecutionOutcome::Completed(Arc::new(answer)))
            .await;
    }

    async fn kept(&self, key: &str, client: &str, outcome: ExecutionOutcome) {
        let permit = self.running(key, client).await;
        let completed = records(self.gateway.shared()).end(permit, outcome).await;
        completed.expect("a store that works");
    }

    async fn get(&self, target: &str) -> Answer {
        self.gateway
            .admin()
            .get(&format!("/idempotency{target}"))
            .send()
            .await
    }

    async fn free(&self, target: &str) -> Answer {
        let target = format!("/idempotency/keys/{target}");
        self.gateway.admin().request("DELETE", &target).send().await
    }

    /// What there is of a key, in its only scope.
    async fn record(&self, target: &str) -> Value {
        let answer = self.get(&format!("/keys/{target}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let records = answer.json()["records"].take();
        let records = records.as_array().expect("a list");
        assert_eq!(records.len(), 1, "{records:?}");
        records[0].clone()
    }
}

const ANN: &str = "192.0.2.1";
const BOB: &str = "192.0.2.2";

#[tokio::test]
async fn a_record_can_be_looked_up_in_each_of_its_states() {
    let office = Office::open();
    office.completed("done", ANN, b"created").await;
    office.unknown("lost", ANN).await;
    office
        .kept("streamed", ANN, ExecutionOutcome::Tombstone)
        .await;
    let _running = office.running("underway", ANN).await;

    for (key, state, status, bytes) in [
        ("done", "completed", json!(201), json!(7)),
        ("lost", "unknown", Value::Null, Value::Null),
        ("streamed", "tombstone", Value::Null, Value::Null),
        ("underway", "in_progress", Value::Null, Value::Null),
    ] {
        let record = office.record(key).await;
        assert_eq!(record["state"], state);
        assert_eq!(record["status"], status, "{key}");
        assert_eq!(record["response_bytes"], bytes, "{key}");
        assert_eq!(record["fingerprint"], "c4c4c4c4");
        assert_eq!(record["scope"].as_str().map(str::len), Some(32));
        let age = record["age_seconds"].as_f64().expect("a number");
        assert!((0.0..60.0).contains(&age), "{age}");
        match record["expires_in_seconds"].as_f64() {
            None => assert_eq!(state, "in_progress"),
            Some(left) => assert!((86_000.0..=86_400.0).contains(&left), "{left}"),
        }
    }
    let overview = office.get("").await;
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
async fn an_answer_is_shown_only_to_those_who_ask_for_it() {
    let office = Office::open();
    office.completed("done", ANN, b"for Ann alone").await;
    office.completed("binary", ANN, b"\xff\x00").await;
    for target in ["/keys/done", "/keys/done?body=false"] {
        let answer = office.get(target).await;
        assert_eq!(answer.json()["key"], "done");
        assert_eq!(answer.header("cache-control"), "no-store");
        for private in ["Ann alone", "cookie", "session"] {
            assert!(!answer.text().contains(private), "{}", answer.text());
        }
    }
    let record = office.record("done?body=true").await;
    assert_eq!(record["body"], "for Ann alone");
    assert_eq!(
        record["headers"],
        json!([
            ["content-type", "text/plain"],
            ["set-cookie", "session=private"]
        ])
    );
    let record = office.record("binary?body=true").await;
    assert_eq!(record["body_base64"], "/wA=");
}

#[tokio::test]
async fn a_key_of_two_callers_has_two_records_and_one_of_them_can_be_meant() {
    let office = Office::open();
    office.unknown("shared", ANN).await;
    office.unknown("shared", BOB).await;
    let both = office.get("/keys/shared").await.json();
    let records = both["records"].as_array().expect("a list");
    assert_eq!(records.len(), 2);
    let mut scopes: Vec<_> = records.iter().map(|record| &record["scope"]).collect();
    scopes.sort_by_key(ToString::to_string);
    assert_ne!(scopes[0], scopes[1]);

    let refused = office.free("shared").await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.problem(), "bad-request");
    let refused = refused.json();
    let mut named: Vec<_> = refused["scopes"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    named.sort_by_key(ToString::to_string);
    assert_eq!(named, scopes);

    let one = format!("shared?scope={}", scopes[0].as_str().expect("text"));
    assert_eq!(office.record(&one).await["scope"], *scopes[0]);
    assert_eq!(office.free(&one).await.status, 204);
    assert_eq!(office.free(&one).await.status, 404);
    assert_eq!(office.record("shared").await["scope"], *scopes[1]);
    // Now there is only one, and no doubt which.
    assert_eq!(office.free("shared").await.status, 204);
    assert_eq!(office.get("/keys/shared").await.status, 404);
}

#[tokio::test]
async fn a_key_that_was_freed_can_be_claimed_again() {
    let office = Office::open();
    office.unknown("lost", ANN).await;
    assert!(matches!(office.claim("lost", ANN).await, Claim::Unknown));
    let freed = office.free("lost").await;
    assert_eq!((freed.status, freed.text().as_str()), (204, ""));
    assert!(matches!(office.claim("lost", ANN).await, Claim::Won(_)));
}

#[tokio::test]
async fn only_a_key_whose_outcome_is_unknown_is_freed() {
    let office = Office::open();
    office.completed("done", ANN, b"").await;
    office
        .kept("streamed", ANN, ExecutionOutcome::Tombstone)
        .await;
    let _running = office.running("underway", ANN).await;
    for (key, state) in [
        ("done", "completed"),
        ("streamed", "tombstone"),
        ("underway", "in_progress"),
    ] {
        let refused = office.free(key).await;
        assert_eq!(refused.status, 409, "{key}");
        assert_eq!(refused.header("content-type"), "application/problem+json");
        assert_eq!(refused.json()["state"], state);
        assert_eq!(office.record(key).await["state"], state);
    }
    assert!(matches!(office.claim("done", ANN).await, Claim::Replay(_)));
    let absent = office.free("never-used").await;
    assert_eq!(absent.status, 404);
    assert_eq!(absent.json()["status"], 404);
}

#[tokio::test]
async fn what_is_no_key_is_said_to_be_none() {
    let office = Office::open();
    for (spelt, why) in [
        ("", "it is empty"),
        ("a%20b", "other than visible ASCII"),
        ("%0D%0AX-Injected:%201", "other than visible ASCII"),
        ("%22open", "not a structured-field string"),
        (&"k".repeat(256), "longer than 255"),
    ] {
        for answer in [
            office.get(&format!("/keys/{spelt}")).await,
            office.free(spelt).await,
        ] {
            assert_eq!(answer.status, 400, "{spelt}");
            assert_eq!(answer.problem(), "idempotency-key-invalid");
            let detail = answer.json()["detail"].to_string();
            assert!(detail.contains(why), "{spelt}: {detail}");
            assert!(!answer.has("x-injected"));
        }
    }
    for target in ["%zz", "k?scope=here", "k?scopes=1", "k?body=yes"] {
        let answer = office.free(target).await;
        assert_eq!(answer.status, 400, "{target}");
        assert_eq!(answer.problem(), "bad-request");
    }
}

#[tokio::test]
async fn a_key_is_found_whatever_characters_it_has_and_in_either_spelling() {
    let office = Office::open();
    for (key, spelt) in [
        ("a/b", "a%2Fb"),
        ("a/b/c", "a/b/c"),
        ("50%", "50%25"),
        ("%2F", "%252F"),
        ("..", "%2e%2E"),
        ("what?#&=", "what%3F%23&="),
        ("quote\"inside", "quote%22inside"),
        ("\"two words\"", "%22two%20words%22"),
        ("plain", "%22plain%22"),
    ] {
        office.unknown(key, ANN).await;
        assert_eq!(office.record(spelt).await["state"], "unknown", "{key}");
        assert_eq!(office.free(spelt).await.status, 204, "{key}");
        assert!(matches!(office.claim(key, ANN).await, Claim::Won(_)));
    }
}

#[tokio::test]
async fn keys_are_neither_shown_nor_freed_to_web_pages() {
    let office = Office::open();
    office.unknown("lost", ANN).await;
    for (name, value) in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Host", "rebound.example"),
    ] {
        for (method, target) in [
            ("GET", "/idempotency"),
            ("GET", "/idempotency/keys/lost"),
            ("DELETE", "/idempotency/keys/lost"),
            ("DELETE", "/idempotency/keys/never-used"),
            ("PUT", "/idempotency/keys/lost"),
        ] {
            let asking = office.gateway.admin().request(method, target);
            let answer = asking.header(name, value).send().await;
            assert_eq!(answer.status, 403, "{method} {target} {name}: {value}");
            assert_eq!(answer.header("content-type"), "application/problem+json");
        }
    }
    assert_eq!(office.record("lost").await["state"], "unknown");
}

#[tokio::test]
async fn where_a_token_is_set_keys_need_it() {
    let office = Office::with_admin("token = \"s3cret-s3cret\"");
    office.unknown("lost", ANN).await;
    let ask = |method, token| {
        let asking = office
            .gateway
            .admin()
            .request(method, "/idempotency/keys/lost");
        asking.header("Authorization", token).send()
    };
    for wrong in ["Bearer s3cret-s3cre", "Basic s3cret-s3cret"] {
        assert_eq!(ask("GET", wrong).await.status, 403);
        assert_eq!(ask("DELETE", wrong).await.status, 403);
    }
    let right = "Bearer s3cret-s3cret";
    assert_eq!(ask("GET", right).await.status, 200);
    assert_eq!(ask("DELETE", right).await.status, 204);
    assert_eq!(ask("GET", right).await.status, 404);
}

#[tokio::test]
async fn other_methods_are_told_which_there_are() {
    let office = Office::open();
    let target = "/idempotency/keys/lost";
    let refused = office.gateway.admin().post(target).send().await;
    assert_eq!(refused.status, 405);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    let allowed = refused.header("allow");
    for method in ["GET", "DELETE"] {
        assert!(allowed.contains(method), "{allowed}");
    }
}

#[tokio::test]
async fn what_the_store_holds_is_counted_by_state_and_names_no_key() {
    let office = Office::open();
    office.completed("made-up-1", ANN, b"created").await;
    office.completed("made-up-2", ANN, b"created").await;
    office.unknown("made-up-3", BOB).await;
    for (series, count) in [
        ("records{state=\"in_progress\"}", 0.0),
        ("records{state=\"completed\"}", 2.0),
        ("records{state=\"unknown\"}", 1.0),
        ("records{state=\"tombstone\"}", 0.0),
        ("evictions_total", 0.0),
        ("store_seconds_count{operation=\"claim\"}", 0.0),
        ("store_seconds_count{operation=\"complete\"}", 0.0),
    ] {
        let found = office
            .gateway
            .metric(&format!("idempotency_{series}"))
            .await;
        assert!((found - count).abs() < 0.1, "{series} {found}");
    }
    assert!(office.gateway.metric("idempotency_bytes").await >= 0.0);
    let text = office.gateway.admin().get("/metrics").send().await.text();
    assert!(!text.contains("made-up") && !text.contains(ANN), "{text}");
}
