//! Tests of `/admin/v1/lab/runs`.

use std::time::Duration;

use serde_json::{Value, json};

use super::scripted;
use crate::support::{Gateway, eventually};

const RUNS: &str = "/admin/v1/lab/runs";

/// Returns the verdict of a rule in the verdict on a run.
async fn verdict(gateway: &Gateway, id: &str, rule: &str) -> Value {
    let response = gateway.admin().get(&format!("{RUNS}/{id}")).send().await;
    assert_eq!(response.status, 200, "{}", response.text());
    let document = response.json();
    assert_eq!(document["schema"], "tidegate-lab/1");
    let rules = document["scenarios"][0]["rules"].clone();
    let rules = rules.as_array().expect("a list of rules");
    let found = rules.iter().find(|found| found["id"] == rule);
    found.expect("the rule is known")["verdict"].clone()
}

#[tokio::test]
async fn a_run_is_created_judged_and_removed() {
    let gateway = scripted(&["400", "200"], "by = \"test\"").admin().start();
    let created = gateway
        .admin()
        .post(RUNS)
        .body(r#"{"scenario":"test","id":"t1"}"#);
    let created = created.send().await;
    assert_eq!(created.status, 201);
    let run = created.json();
    assert_eq!(run["path_prefix"], "/t/t1/");
    assert_eq!(run["header"], "X-Tidegate-Test: t1");

    // Identical requests in quick succession are retries only on one connection.
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    for other in ["one", "two"] {
        for test in ["t1", "good", other] {
            connection.send(client.get(&format!("/t/{test}/x"))).await;
        }
    }
    // A client that retries 400 fails. Both tests did so, and neither is in the trace of the other.
    for id in ["t1", "good"] {
        assert_eq!(verdict(&gateway, id, "retryable-only").await, "fail");
    }
    let list = gateway.admin().get(RUNS).send().await.json();
    let runs = list["runs"].as_array().expect("a list of runs").clone();
    let requests = |id: &str| {
        let run = runs.iter().find(|run| run["id"] == id);
        run.expect("the run is listed")["requests"].clone()
    };
    assert_eq!((runs.len(), requests("t1")), (4, json!(2)));

    let again = gateway
        .admin()
        .post(RUNS)
        .body(r#"{"scenario":"test","id":"t1"}"#);
    assert_eq!(again.send().await.json()["requests"], 0);
    assert_eq!(gateway.client().get("/t/t1/x").send().await.status, 400);
    let target = format!("{RUNS}/t1");
    let removed = gateway.admin().request("DELETE", &target).send().await;
    assert_eq!(removed.status, 204);
    assert_eq!(gateway.admin().get(&target).send().await.status, 404);
}

#[tokio::test]
async fn every_client_of_a_scenario_has_its_own_run() {
    let gateway = scripted(&["503 body=\"x\"", "200"], "").admin().start();
    for (address, requests) in [("127.0.0.1", 1), ("127.0.0.2", 2)] {
        let client = gateway.client().from(address);
        let mut connection = client.keep_alive().await;
        for _ in 0..requests {
            connection.send(client.get("/a?token=secret")).await;
        }
    }
    assert_eq!(verdict(&gateway, "127.0.0.1", "retries").await, "warn");
    assert_eq!(verdict(&gateway, "127.0.0.2", "retries").await, "pass");
    let text = gateway
        .admin()
        .get(&format!("{RUNS}/127.0.0.2"))
        .send()
        .await
        .text();
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn invalid_requests_get_a_problem_that_says_what_is_valid() {
    let gateway = scripted(&["503"], "").admin().start();
    let post = async |body: &str| {
        let response = gateway
            .admin()
            .post(RUNS)
            .body(body.to_owned())
            .send()
            .await;
        (response.status, response.text())
    };
    for (body, status, part) in [
        ("", 400, "Send {"),
        ("{\"scenario\":\"tset\"}", 404, "Configured: test"),
        ("{\"scenario\":\"test\"}", 400, "IP address of a client"),
        ("{\"scenario\":\"test\",\"id\":\"a\"}", 400, "by = "),
        ("{\"scenario\":\"test\",\"di\":\"a\"}", 400, "unknown field"),
    ] {
        let (found, text) = post(body).await;
        assert_eq!(found, status, "{body}: {text}");
        assert!(text.contains(part), "{body}: {text}");
    }
    let (status, text) = post("{\"scenario\":\"test\",\"id\":\"::ffff:192.0.2.7\"}").await;
    assert_eq!(status, 201);
    assert!(text.contains("\"192.0.2.7\""), "{text}");
    let listed = gateway
        .admin()
        .get(&format!("{RUNS}?scenario=other"))
        .send()
        .await;
    assert_eq!(listed.json()["runs"], json!([]));
    let unknown = gateway.admin().get(&format!("{RUNS}/nope")).send().await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn an_interrupted_request_is_part_of_the_trace() {
    let gateway = scripted(&["stall 10s", "200"], "").admin().start();
    let response = gateway.client().get("/").try_send();
    let stopped = tokio::time::timeout(Duration::from_millis(200), response).await;
    assert!(stopped.is_err(), "the response stalls");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    eventually(
        "the trace contains how the first response ended",
        async || {
            let run = gateway
                .admin()
                .get(&format!("{RUNS}/127.0.0.1"))
                .send()
                .await
                .json();
            let attempts = &run["scenarios"][0]["operations"][0]["attempts"];
            attempts[0]["end"] == "client-closed" && attempts[1]["end"] == "complete"
        },
    )
    .await;
}

#[tokio::test]
async fn a_client_with_a_request_in_flight_has_not_ended() {
    let gateway = scripted(&["400", "delay 20s + 200"], "").admin().start();
    gateway.client().get("/a").send().await;
    let rule = "retryable-only";
    assert_eq!(verdict(&gateway, "127.0.0.1", rule).await, "pass");
    let client = gateway.client();
    let pending = tokio::spawn(async move { client.get("/b").send().await });
    eventually("the client has not ended", async || {
        verdict(&gateway, "127.0.0.1", rule).await == "not-enough-data"
    })
    .await;
    pending.abort();
    eventually("the client has ended", async || {
        verdict(&gateway, "127.0.0.1", rule).await == "pass"
    })
    .await;
}
