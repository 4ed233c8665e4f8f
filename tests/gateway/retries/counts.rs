//! What operators learn of retries.

use super::{QUICK, before, in_turn};
use crate::harness::{Gateway, Process};

/// Holds that `/metrics` of `gateway` has these counts: attempts, retries, and retries that were refused for
/// attempts, deadline and budget.
async fn has_counted(gateway: &Gateway, counts: [u32; 5]) {
    let text = gateway.admin().get("/metrics").send().await.text();
    let refused = |reason| format!("retries_refused_total{{upstream=\"api\",reason=\"{reason}\"}}");
    let series = [
        "attempts_total{upstream=\"api\"}".into(),
        "retries_total{upstream=\"api\"}".into(),
        refused("attempts"),
        refused("deadline"),
        refused("budget"),
    ];
    for (series, count) in series.iter().zip(counts) {
        let line = format!("tidegate_upstream_{series} {count}");
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

async fn ask(gateway: &Gateway, method: &str) -> u16 {
    gateway.client().request(method, "/").send().await.status
}

#[tokio::test]
async fn attempts_and_retries_are_counted_and_why_there_are_no_more() {
    let upstream = in_turn(&[503, 200, 503, 503, 503, 404, 503]);
    let api = format!("{QUICK}attempts = 3");
    let gateway = before(&[upstream.url()], &api).admin().start();
    has_counted(&gateway, [0, 0, 0, 0, 0]).await;
    assert_eq!(ask(&gateway, "GET").await, 200);
    has_counted(&gateway, [2, 1, 0, 0, 0]).await;
    assert_eq!(ask(&gateway, "GET").await, 503);
    has_counted(&gateway, [5, 3, 1, 0, 0]).await;
    // What another attempt would not help was not refused one, nor was what is never given one.
    assert_eq!(ask(&gateway, "GET").await, 404);
    assert_eq!(ask(&gateway, "POST").await, 503);
    has_counted(&gateway, [7, 3, 1, 0, 0]).await;
}

#[tokio::test]
async fn a_retry_that_would_come_too_late_is_counted_as_refused() {
    let upstream = in_turn(&[503]);
    let api = "[upstream.api.retry]\nbase = \"25s\"\ndeadline = \"20s\"";
    let gateway = before(&[upstream.url()], api).admin().start();
    assert_eq!(ask(&gateway, "GET").await, 503);
    has_counted(&gateway, [1, 0, 0, 1, 0]).await;
}

#[tokio::test]
async fn a_budget_bounds_the_retries_of_all_requests_together() {
    let upstream = in_turn(&[503]);
    let api = "[upstream.api.retry]\nattempts = 2\nbase = \"1ms\"\ncap = \"5ms\"\n\
               budget = { ratio = 0.5, floor = 0, window = \"1h\" }";
    let gateway = before(&[upstream.url()], api).admin().start();
    for _ in 0..20 {
        assert_eq!(ask(&gateway, "GET").await, 503);
    }
    has_counted(&gateway, [30, 10, 10, 0, 10]).await;
    assert_eq!(upstream.count(), 30);
}

#[tokio::test]
async fn a_budget_of_nothing_refuses_every_retry_and_passes_the_failure_on() {
    let upstream = in_turn(&[503]);
    let api = "[upstream.api.retry]\nbudget = { ratio = 0.0, floor = 0 }";
    let gateway = before(&[upstream.url()], api).admin().start();
    let answer = gateway.client().get("/").send().await;
    assert_eq!((answer.status, answer.text().as_str()), (503, "answer 1"));
    has_counted(&gateway, [1, 0, 0, 0, 1]).await;
}

#[tokio::test]
async fn the_access_log_tells_how_often_a_request_was_sent() {
    let upstream = in_turn(&[503, 503, 200]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tidegate.toml");
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[upstream.api]\nservers = [\"{}\"]\n{QUICK}\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
        upstream.url(),
    );
    std::fs::write(&path, config).expect("a file");
    let name = path.to_str().expect("a plain name");
    let process = Process::start(&["serve", "--config", name, "--log-format", "json"]);
    let client = process.client();
    for (target, status, attempts) in [
        ("/failing", 200, Some(3)),
        ("/well", 200, Some(1)),
        // Refused before it was sent.
        ("/%00", 400, None),
    ] {
        assert_eq!(client.get(target).send().await.status, status);
        let line = process.line_with(&format!("\"path\":\"{target}\""));
        let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["target"], "tidegate::access", "{line}");
        assert_eq!(event["attempts"].as_u64(), attempts, "{line}");
    }
}
