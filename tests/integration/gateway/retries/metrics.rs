//! Tests of the metrics and the access log of retries.

use super::{QUICK, gateway_to, with_statuses};
use crate::support::{Gateway, Process};

/// Asserts five counts in `/metrics`: attempts, retries, and retries rejected because of the number of attempts, the
/// deadline and the budget.
async fn assert_counts(gateway: &Gateway, counts: [u32; 5]) {
    let text = gateway.admin().get("/metrics").send().await.text();
    let rejected =
        |reason| format!("retries_rejected_total{{upstream=\"api\",reason=\"{reason}\"}}");
    let series = [
        "attempts_total{upstream=\"api\"}".into(),
        "retries_total{upstream=\"api\"}".into(),
        rejected("attempts"),
        rejected("deadline"),
        rejected("budget"),
    ];
    for (series, count) in series.iter().zip(counts) {
        let line = format!("tidegate_upstream_{series} {count}");
        assert!(
            text.lines().any(|found| found == line),
            "/metrics has no line `{line}`:\n{text}"
        );
    }
}

async fn send(gateway: &Gateway, method: &str) -> u16 {
    gateway.client().request(method, "/").send().await.status
}

#[tokio::test]
async fn attempts_retries_and_rejected_retries_are_counted() {
    let upstream = with_statuses(&[503, 200, 503, 503, 503, 404, 503]);
    let api = format!("{QUICK}attempts = 3");
    let gateway = gateway_to(&[upstream.url()], &api).admin().start();
    assert_counts(&gateway, [0, 0, 0, 0, 0]).await;
    assert_eq!(send(&gateway, "GET").await, 200);
    assert_counts(&gateway, [2, 1, 0, 0, 0]).await;
    assert_eq!(send(&gateway, "GET").await, 503);
    assert_counts(&gateway, [5, 3, 1, 0, 0]).await;
    // The gateway retries neither a response with a final status (404) nor a POST request. It does not count them as
    // rejected retries.
    assert_eq!(send(&gateway, "GET").await, 404);
    assert_eq!(send(&gateway, "POST").await, 503);
    assert_counts(&gateway, [7, 3, 1, 0, 0]).await;
}

#[tokio::test]
async fn the_access_log_contains_the_number_of_attempts() {
    let upstream = with_statuses(&[503, 503, 200]);
    let gateway = Process::serving(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[upstream.api]\nservers = [\"{}\"]\n{QUICK}\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
        upstream.url(),
    ));
    let process = gateway.args(&["--log-format", "json"]).start();
    let client = process.client();
    for (target, status, attempts) in [
        ("/failing", 200, Some(3)),
        ("/healthy", 200, Some(1)),
        // The gateway rejects this request and sends nothing to upstream, so the access log line has no number of
        // attempts.
        ("/%00", 400, None),
    ] {
        assert_eq!(client.get(target).send().await.status, status);
        let line = process.wait_for_line(&format!("\"path\":\"{target}\""));
        let event: serde_json::Value =
            serde_json::from_str(&line).expect("the text should be valid JSON");
        assert_eq!(event["target"], "tidegate::access", "{line}");
        assert_eq!(event["attempts"].as_u64(), attempts, "{line}");
    }
}
