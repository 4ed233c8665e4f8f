//! Tests of the dashboard: its response, and what Chromium shows of a gateway.

use serde_json::Value;

use super::client_libraries;
use crate::support::{Client, Gateway, Process, Upstream, free_address, wait_until};

/// Texts of clients that would change a page that does not escape them.
const HOSTILE_KEY: &str = "<img src=x onerror=alert(1)>\"'";
const HOSTILE_USER_AGENT: &str = "<script>alert(2)</script>&amp;\u{202e}txt";

fn browse(mode: &str, admin: &Client, arguments: &[&str]) -> Value {
    let url = format!("http://{}/", admin.address());
    let mut all = vec![mode, url.as_str()];
    all.extend(arguments);
    let seen = client_libraries::run("browse_dashboard.cjs", &all);
    let messages = seen["messages"].as_array().expect("a list");
    for message in messages {
        // Chromium itself reports each response with an error status, and each request without response.
        assert!(
            message.to_string().contains("Failed to load resource"),
            "{message}"
        );
    }
    seen
}

#[tokio::test]
async fn the_page_is_one_response_whose_policy_names_its_style_and_script() {
    let gateway = Gateway::proxying("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret-s3cret\"")
        .upstream(&Upstream::echo())
        .start();
    let html = |site: &str| {
        let request = gateway.admin().get("/");
        request
            .header("Accept", "text/html,*/*;q=0.8")
            .header("Sec-Fetch-Site", site)
            .send()
    };
    // A link on another page leads to the dashboard, for example from the page of the demo.
    for site in ["none", "same-origin", "same-site", "cross-site"] {
        let page = html(site).await;
        assert_eq!(page.status, 200, "{site}");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for part in [
            "script-src 'sha256-",
            "style-src 'sha256-",
            "connect-src 'self'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
    }
    let list = gateway.admin().get("/").send().await;
    assert!(
        list.header("content-type").starts_with("text/plain"),
        "{list:?}"
    );
    let data = gateway.admin().get("/admin/v1/overview");
    let data = data
        .header("Sec-Fetch-Site", "cross-site")
        .header("Authorization", "Bearer s3cret-s3cret");
    assert_eq!(data.send().await.status, 403);
}

async fn gateway_under_load(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        burst = 2
        [limit.token]
        rate = "1/h"
        burst = 1
        key = "header:X-Token"
        log_key = true
        [limit.strict]
        rate = "1/h"
        burst = 1
        mode = "shadow"
        [[route]]
        name = "device"
        path = "/device"
        limits = ["device", "strict"]
        [[route]]
        name = "token"
        path = "/token"
        limits = ["token"]
        [[route]]
        name = "rest"
        path = "/"
        "#,
    )
    .upstream(upstream)
    .admin()
    .start();
    for expected in [200, 200, 200, 429, 429] {
        let request = gateway
            .client()
            .get("/device")
            .header("User-Agent", HOSTILE_USER_AGENT);
        assert_eq!(request.send().await.status, expected);
    }
    for expected in [200, 200, 429] {
        let request = gateway.client().get("/token");
        let request = request.header("X-Token", HOSTILE_KEY);
        assert_eq!(request.send().await.status, expected);
    }
    for _ in 0..4 {
        assert_eq!(gateway.client().get("/").send().await.status, 200);
    }
    gateway
}

/// The screenshots are written to the directory `TIDEGATE_SCREENSHOTS`, if this variable is set.
#[tokio::test]
async fn the_figures_are_those_of_the_load_and_hostile_texts_stay_texts() {
    let upstream = Upstream::echo();
    let gateway = gateway_under_load(&upstream).await;
    let admin = gateway.admin();
    let screenshots = std::env::var("TIDEGATE_SCREENSHOTS").unwrap_or_default();
    let seen = tokio::task::spawn_blocking(move || {
        browse("figures", &admin, &["127.0.0.1", &screenshots])
    });
    let seen = seen.await.expect("the task does not panic");
    assert_eq!(seen["missing"], serde_json::json!([]), "{seen}");
    assert_counts(&gateway, &seen).await;
    assert_keys(&seen);
    let request = gateway.client().get("/device");
    assert_eq!(request.send().await.status, 200, "the bucket is refilled");
    assert_eq!(seen["client"]["title"], "Client 127.0.0.1");
    let tokens = &seen["client"]["tokens"];
    assert_eq!(tokens["before"], "0 of 3", "{seen}");
    assert_eq!(tokens["after"], "3 of 3", "{seen}");
    assert!(
        seen["client"]["refilled"]
            .to_string()
            .contains("refilled the bucket of 127.0.0.1 in the limit device"),
        "{seen}"
    );
    assert!(
        seen["client"]["explanation"]
            .to_string()
            .contains("route|device"),
        "{seen}"
    );
    for view in seen["views"].as_array().expect("a list") {
        assert_eq!(
            view["overflow"], 0,
            "the page is wider than the screen: {view}"
        );
        // WCAG 2.2 requires a contrast of 4.5 for text.
        assert!(view["contrast"].as_f64() >= Some(4.5), "{view}");
    }
}

async fn assert_counts(gateway: &Gateway, seen: &Value) {
    assert_eq!(seen["totals"]["admitted"], "9", "{seen}");
    assert_eq!(seen["totals"]["rejected"], "3", "{seen}");
    let admin = gateway.admin();
    let overview = admin.get("/admin/v1/overview").send().await.json();
    for outcome in [
        "admitted",
        "rejected",
        "delayed",
        "replayed",
        "upstream_errors",
    ] {
        let (shown, counted) = (&seen["totals"][outcome], &overview["totals"][outcome]);
        assert_eq!(
            shown.as_str(),
            Some(counted.to_string().as_str()),
            "{outcome}: {seen}"
        );
    }
    let limits = admin.get("/admin/v1/limits").send().await.json();
    for limit in limits["limits"].as_array().expect("a list") {
        let name = limit["name"].as_str().expect("a text");
        for (column, field) in [
            ("admitted", "admitted"),
            ("rejected", "rejected"),
            ("shadow", "shadow_rejected"),
            ("early", "early"),
        ] {
            let (shown, counted) = (&seen["limits"][name][column], &limit[field]);
            assert_eq!(
                shown.as_str(),
                Some(counted.to_string().as_str()),
                "{name} {column}: {seen}"
            );
        }
    }
    assert_eq!(seen["limits"]["device"]["rejected"], "2", "{seen}");
}

fn assert_keys(seen: &Value) {
    let shown: Vec<_> = seen["top"].as_array().expect("a list").iter().collect();
    let of = |limit: &str, key: &str| {
        let mut rows = shown.iter();
        let found = rows.find(|row| row["limit"] == *limit && row["key"] == *key);
        *found.unwrap_or_else(|| panic!("no row of {key} in {limit}: {seen}"))
    };
    assert_eq!(of("device", "127.0.0.1")["rejected"], "2");
    let user_agent = of("device", "127.0.0.1")["user-agent"]
        .as_str()
        .expect("a text");
    assert!(
        user_agent.starts_with("<script>alert(2)</script>&amp;"),
        "{user_agent}"
    );
    assert!(!user_agent.contains('\u{202e}'), "{user_agent}");
    assert_eq!(of("strict", "127.0.0.1")["rejected"], "3");
    assert_eq!(of("token", HOSTILE_KEY)["rejected"], "1");
    assert_eq!(seen["injected"], 0);
}

#[tokio::test]
async fn with_a_token_the_page_asks_for_it_and_stores_it_nowhere() {
    let gateway = Gateway::proxying("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret-s3cret\"")
        .upstream(&Upstream::echo())
        .start();
    let admin = gateway.admin();
    let seen = tokio::task::spawn_blocking(move || browse("token", &admin, &["s3cret-s3cret"]));
    let seen = seen.await.expect("the task does not panic");
    assert_eq!(seen["wrong"], "The gateway rejected this token.");
    assert_eq!(seen["status"], "Live");
    assert_eq!(seen["stored"], 0, "{seen}");
    assert_eq!(
        seen["asked_again"], true,
        "a reload of the page forgets the token"
    );
}

#[test]
fn the_page_says_when_the_gateway_is_gone_and_recovers() {
    let (listen, admin) = (free_address(), free_address());
    let config = format!(
        "[server]\nlisten = \"{listen}\"\n[admin]\nlisten = \"{admin}\"\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nupstream = \"api\"\n\
         [upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n"
    );
    let builder = Process::serving(&config);
    let mut process = builder.start();
    let client = process.admin();
    let directory = tempfile::tempdir().expect("the directory is created");
    let signals = directory.path().to_owned();
    let shown = signals.clone();
    let browser = std::thread::spawn(move || {
        let path = shown.to_str().expect("the path is UTF-8");
        browse("gone", &client, &[path])
    });
    // The script creates a file when the page shows a state.
    let wait_for = |name: &str| {
        wait_until(name, || {
            signals.join(name).exists() || browser.is_finished()
        });
    };
    wait_for("live");
    process.kill();
    wait_for("gone");
    let again = builder.start();
    let seen = browser.join().expect("the script succeeds");
    let banner = seen["gone"].as_str().expect("a text");
    assert!(
        banner.starts_with("The gateway does not respond since "),
        "{banner}"
    );
    assert_eq!(seen["recovered"], "Live");
    assert_eq!(seen["banners"], 0);
    drop(again);
}
