//! Tests of the content of rejections: headers, dialects and bodies. A retry after the stated wait must succeed.

use std::time::{Duration, Instant, SystemTime};

use crate::support::{ClientResponse, Gateway, Upstream};

const ONE_PER_HOUR: &str = "rate = \"1/h\"";

/// Starts a gateway with a rate limit of four tokens, refilled at one per hour. `respond` contains additional lines for
/// `[respond]`.
fn with_respond(respond: &str, upstream: &Upstream) -> Gateway {
    Gateway::with(&format!(
        "[respond]\n{respond}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n\
         [limit.device]\nrate = \"1/h\"\nburst = 3\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n"
    ))
    .upstream(upstream)
    .start()
}

/// Sends requests until the gateway rejects one. Returns the response to the first request and the rejection.
async fn admitted_and_rejected(gateway: &Gateway) -> (ClientResponse, ClientResponse) {
    let client = gateway.client();
    let admitted = client.get("/").send().await;
    assert_eq!(admitted.status, 200);
    for _ in 0..3 {
        assert_eq!(client.get("/").send().await.status, 200);
    }
    let rejected = client.get("/").send().await;
    assert_eq!(rejected.status, 429);
    (admitted, rejected)
}

#[tokio::test]
async fn a_request_after_retry_after_in_seconds_is_admitted() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/2s\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let mut rejected = client.get("/").send().await;
    assert_eq!(rejected.status, 200);
    while rejected.status != 429 {
        rejected = client.get("/").send().await;
    }
    let received_at = Instant::now();
    assert!((1..=2).contains(&rejected.retry_after()), "{rejected:?}");
    let due = received_at + Duration::from_secs(rejected.retry_after());
    tokio::time::sleep_until(due.into()).await;
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_request_after_retry_after_as_a_date_is_admitted() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/s\"\nretry_after = \"http-date\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let mut response = client.get("/").send().await;
    while response.status != 429 {
        response = client.get("/").send().await;
    }
    let date = response.header("retry-after");
    let date = httpdate::parse_http_date(&date)
        .unwrap_or_else(|error| panic!("invalid HTTP date {date} in Retry-After: {error}"));
    let ahead = date.duration_since(SystemTime::now()).unwrap_or_default();
    assert!(ahead <= Duration::from_secs(3), "{ahead:?}");
    tokio::time::sleep(ahead).await;
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_wait_of_a_year_is_a_whole_number_of_seconds() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/364d\"")
        .upstream(&upstream)
        .start();
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    let rejected = gateway.client().get("/").send().await;
    assert_eq!(rejected.status, 429);
    let year = 364 * 24 * 60 * 60;
    assert!((year - 60..=year).contains(&rejected.retry_after()));
}

#[tokio::test]
async fn the_draft_dialect_states_the_quota_and_the_remaining_tokens() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/s\"\nburst = 3")
        .upstream(&upstream)
        .start();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.header("ratelimit-policy"), "\"device\";q=4;w=4");
    assert_eq!(response.header("ratelimit"), "\"device\";r=3;t=1");

    let gateway = with_respond("rate_limit = \"draft\"", &upstream);
    let (admitted, rejected) = admitted_and_rejected(&gateway).await;
    for response in [&admitted, &rejected] {
        assert_eq!(
            response.header("ratelimit-policy"),
            "\"device\";q=4;w=14400"
        );
    }
    assert!(
        admitted
            .header("ratelimit")
            .starts_with("\"device\";r=3;t=3")
    );
    let wait = rejected.retry_after();
    assert_eq!(
        rejected.header("ratelimit"),
        format!("\"device\";r=0;t={wait}")
    );
    assert!(!admitted.has("retry-after"));
}

#[tokio::test]
async fn the_draft_dialect_has_a_member_for_each_enforced_limit_in_the_order_of_the_route() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.a]
        rate = "10/h"
        [limit.b]
        rate = "2/10s"
        [limit.watching]
        rate = "1/h"
        mode = "shadow"
        [[route]]
        name = "all"
        path = "/"
        limits = ["watching", "b", "a"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let response = gateway.client().get("/").send().await;
    let policy = "\"b\";q=2;w=10, \"a\";q=10;w=3600";
    assert_eq!(response.header("ratelimit-policy"), policy);
    assert_eq!(
        response.header("ratelimit"),
        "\"b\";r=1;t=5, \"a\";r=9;t=360"
    );
}

#[tokio::test]
async fn the_older_dialects_show_limit_remaining_and_reset() {
    let upstream = Upstream::replying(200);
    for (dialect, prefix) in [("legacy", "ratelimit"), ("x", "x-ratelimit")] {
        let gateway = with_respond(&format!("rate_limit = \"{dialect}\""), &upstream);
        let (admitted, rejected) = admitted_and_rejected(&gateway).await;
        let read = |response: &ClientResponse| {
            ["limit", "remaining", "reset"].map(|part| response.header(&format!("{prefix}-{part}")))
        };
        let [limit, remaining, reset] = read(&admitted);
        assert_eq!((limit.as_str(), remaining.as_str()), ("4", "3"));
        assert!(
            (3_500..=3_600).contains(
                &reset
                    .parse::<u64>()
                    .expect("the reset value should be a number of seconds")
            )
        );
        let [limit, remaining, reset] = read(&rejected);
        assert_eq!((limit.as_str(), remaining.as_str()), ("4", "0"));
        assert_eq!(reset, rejected.header("retry-after"));
        assert!(!rejected.has("ratelimit") && !rejected.has("ratelimit-policy"));
    }
}

#[tokio::test]
async fn with_rate_limit_off_only_retry_after_is_sent() {
    let upstream = Upstream::replying(200);
    let gateway = with_respond("rate_limit = \"off\"", &upstream);
    let (admitted, rejected) = admitted_and_rejected(&gateway).await;
    for response in [&admitted, &rejected] {
        let has_ratelimit = response
            .headers
            .keys()
            .any(|name| name.as_str().contains("ratelimit"));
        assert!(!has_ratelimit, "{response:?}");
    }
    assert!(rejected.has("retry-after"));
}

#[tokio::test]
async fn the_body_of_a_rejection_follows_accept() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited(ONE_PER_HOUR).upstream(&upstream).start();
    let client = gateway.client();
    assert_eq!(client.get("/").send().await.status, 200);

    let json = client.get("/").send().await;
    assert_eq!(json.problem(), "rate-limited");
    assert_eq!(json.json()["status"], 429);
    assert_eq!(json.json()["retry_after"], json.retry_after());

    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let html = client.get("/").header("Accept", browser).send().await;
    assert_eq!(html.status, 429);
    assert_eq!(html.header("content-type"), "text/html; charset=utf-8");
    assert!(html.text().starts_with("<!doctype html>"));
    assert!(html.has("retry-after"));

    let text = client.get("/").header("Accept", "text/plain").send().await;
    assert_eq!(text.status, 429);
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    assert!(text.text().starts_with("Too many requests"));
    assert!(text.has("retry-after"));

    // A rejected HEAD request gets the same headers as a GET request, but no body.
    let head = client.request("HEAD", "/").send().await;
    assert_eq!((head.status, head.body.len()), (429, 0));
    assert!(head.has("retry-after"));
}

#[tokio::test]
async fn extra_headers_are_added_only_to_responses_of_the_gateway() {
    let upstream = Upstream::replying(200);
    let gateway = with_respond("headers = { \"X-Served-By\" = \"edge\" }", &upstream);
    let (admitted, rejected) = admitted_and_rejected(&gateway).await;
    assert!(!admitted.has("x-served-by"));
    assert_eq!(rejected.header("x-served-by"), "edge");
    assert_eq!(rejected.header("cache-control"), "no-store");
}

#[tokio::test]
async fn a_request_without_a_route_returns_404_and_is_not_forwarded() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [[route]]
        name = "api"
        path = "/api/"
        methods = ["GET"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 404);
    assert_eq!(response.problem(), "no-route");
    let response = gateway.client().post("/api/x").send().await;
    assert_eq!(response.status, 405);
    assert_eq!(response.problem(), "method-not-allowed");
    assert_eq!(response.header("allow"), "GET");
    assert_eq!(upstream.count(), 0);
}
