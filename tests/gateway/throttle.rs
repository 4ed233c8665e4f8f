//! The throttle over HTTP, in real time.

use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Upstream};

/// The worked example: when each request is sent, and whether it is admitted.
const TABLE: [(u64, bool); 9] = [
    (0, true),
    (300, true),
    (600, true),
    (900, true),
    (1_200, true),
    (1_400, false),
    (1_600, false),
    (1_800, false),
    (2_100, true),
];

/// How far a request may be from its time before the table says nothing about it any more.
const LATE: Duration = Duration::from_millis(80);

#[tokio::test]
async fn the_worked_table_holds_to_the_letter() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/s\"\nburst = 3")
        .upstream(&upstream)
        .start();
    for device in 1..=5 {
        let client = gateway.client().from(&format!("127.0.1.{device}"));
        if let Some(answers) = play_table(&client).await {
            assert_eq!(answers, TABLE.map(|(_, admitted)| admitted));
            return;
        }
    }
    panic!("the machine was late five times: nothing was measured");
}

/// What each step was answered, unless one was sent or answered too late to mean anything.
async fn play_table(client: &Client) -> Option<Vec<bool>> {
    let start = Instant::now();
    let mut answers = Vec::new();
    for (at, _) in TABLE {
        let due = start + Duration::from_millis(at);
        tokio::time::sleep_until(due.into()).await;
        let answer = client.get("/o/client/register").send().await;
        if due.elapsed() > LATE {
            return None;
        }
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        answers.push(answer.status == 200);
    }
    Some(answers)
}

#[tokio::test]
async fn a_refused_request_never_reaches_upstream() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::limited("rate = \"1/h\"\nburst = 1")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    for expected in [201, 201, 429, 429] {
        assert_eq!(client.post("/x").send().await.status, expected);
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn every_client_has_a_bucket_of_its_own() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    for client in ["127.0.2.1", "127.0.2.2"] {
        let client = gateway.client().from(client);
        assert_eq!(client.get("/").send().await.status, 200);
        assert_eq!(client.get("/").send().await.status, 429);
    }
}
