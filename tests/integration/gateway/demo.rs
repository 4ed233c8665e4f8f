//! Tests of the command `demo`: its addresses, its page, its log, and its scripted failures.

use serde_json::Value;

use super::client_libraries;
use super::commands::address;
use crate::support::{Client, Process};

fn start() -> Process {
    Process::start(&["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
}

fn client(demo: &Process) -> Client {
    Client::of(address(&demo.wait_for_line("Tidegate is running at")))
}

fn admin(demo: &Process) -> Client {
    Client::of(address(&demo.wait_for_line("/metrics")))
}

#[tokio::test]
async fn two_demos_run_side_by_side_on_other_addresses() {
    let (first, second) = (start(), start());
    for demo in [&first, &second] {
        assert_eq!(
            client(demo).get("/o/client/register").send().await.status,
            200
        );
        assert_eq!(admin(demo).get("/readyz").send().await.status, 200);
        demo.wait_for_line("in another terminal");
    }
    let taken = address(&first.wait_for_line("Tidegate is running at")).to_string();
    let third = Process::run(&["demo", "--listen", &taken, "--admin", "127.0.0.1:0"]);
    let error = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(
        error.contains("choose others with --listen and --admin"),
        "{error}"
    );
}

#[tokio::test]
async fn the_page_at_the_root_shows_the_commands_with_the_address_of_the_gateway() {
    let demo = start();
    let client = client(&demo);
    let page = client
        .get("/")
        .header("Accept", "text/html,*/*")
        .send()
        .await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let gateway = address(&demo.wait_for_line("Tidegate is running at"));
    let dashboard = format!("href=\"http://{}/\"", admin(&demo).address());
    for part in [
        &dashboard,
        "<title>Tidegate demo</title>",
        &format!("curl -i http://{gateway}/o/client/register"),
        "Send from this page",
    ] {
        assert!(page.text().contains(part), "{part}");
    }
    let text = client.get("/").header("Accept", "*/*").send().await;
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    assert!(
        text.text()
            .contains(&format!("http://{gateway}/v1/payments"))
    );
}

/// The screenshots are written to the directory `TIDEGATE_SCREENSHOTS`, if this variable is set.
#[test]
fn chromium_shows_the_outcome_of_each_request_that_the_page_sends() {
    let demo = start();
    let url = format!(
        "http://{}/",
        address(&demo.wait_for_line("Tidegate is running at"))
    );
    let screenshots = std::env::var("TIDEGATE_SCREENSHOTS").ok();
    let mut arguments = vec![url.as_str()];
    arguments.extend(screenshots.as_deref());
    let seen = client_libraries::run("browse_page.cjs", &arguments);

    // Chromium itself reports each response with an error status, and the page causes no other messages.
    let messages = seen["messages"].as_array().expect("a list");
    for message in messages {
        assert!(
            message.to_string().contains("Failed to load resource"),
            "{message}"
        );
    }
    let views = seen["views"].as_array().expect("a list");
    assert_eq!(views.len(), 4);
    for view in views {
        assert_eq!(view["title"], "Tidegate demo");
        assert_eq!(
            view["overflow"], 0,
            "the page is wider than the screen: {view}"
        );
        // WCAG 2.2 requires a contrast of 4.5 for text.
        assert!(view["contrast"].as_f64() >= Some(4.5), "{view}");
    }
    let statuses = |button: usize| -> Vec<&str> {
        let items = views[0]["pressed"][button]
            .as_array()
            .expect("a list")
            .iter();
        let texts = items.map(|item| item.as_str().expect("a text"));
        texts
            .map(|text| text.split(' ').next().unwrap_or(text))
            .collect()
    };
    assert_eq!(statuses(0), ["200", "200", "200", "200", "429", "429"]);
    assert_eq!(statuses(1), ["200"]);
    assert_eq!(statuses(2), ["201", "201"]);
    assert_eq!(statuses(3), ["201", "422", "201"]);
    assert_eq!(statuses(4), ["429", "429", "200"]);
    let text = |button: usize, item: usize| views[0]["pressed"][button][item].to_string();
    assert!(text(0, 4).contains("retry-after: 1"), "{}", text(0, 4));
    assert!(
        !text(2, 0).contains("idempotent-replayed"),
        "{}",
        text(2, 0)
    );
    assert!(
        text(2, 1).contains("idempotent-replayed: true"),
        "{}",
        text(2, 1)
    );
    assert!(
        text(3, 1).contains("Idempotency key reused"),
        "{}",
        text(3, 1)
    );
    assert_eq!(views[0]["pressed"][5], Value::Null);
}

#[tokio::test]
async fn the_log_names_rejections_and_replays() {
    let demo = start();
    let client = client(&demo);
    for _ in 0..6 {
        client.get("/o/client/register").send().await;
    }
    let rejected = demo.wait_for_line("REJECTED");
    assert!(
        rejected.contains(" 429 GET  /o/client/register"),
        "{rejected}"
    );
    assert!(
        rejected.contains("REJECTED by the limit 'device'"),
        "{rejected}"
    );
    for _ in 0..2 {
        let pay = client
            .post("/v1/payments")
            .body("{\"amount\":1,\"currency\":\"EUR\"}");
        pay.header("Idempotency-Key", "k").send().await;
    }
    let replayed = demo.wait_for_line("REPLAYED");
    assert!(replayed.contains(" 201 POST /v1/payments"), "{replayed}");
}

#[tokio::test]
async fn scripted_failures_have_an_upstream_of_their_own() {
    let demo = start();
    let client = client(&demo);
    for _ in 0..30 {
        assert_eq!(client.get("/flaky/503").send().await.status, 503);
    }
    assert_eq!(client.get("/v1/payments").send().await.status, 200);
    let metrics = admin(&demo).get("/metrics").send().await.text();
    for (upstream, attempts) in [("failures", 30), ("sample", 1)] {
        let line =
            format!("tidegate_upstream_attempts_total{{upstream=\"{upstream}\"}} {attempts}");
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}: {metrics}"
        );
    }
}
