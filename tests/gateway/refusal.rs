//! What a refused client is told, and that it is true.

use std::time::{Duration, Instant, SystemTime};

use crate::harness::{Answer, Gateway, Upstream};

const ONE_AN_HOUR: &str = "rate = \"1/h\"";

/// A gateway with one token an hour and these lines under `[respond]`.
fn speaking(respond: &str, upstream: &Upstream) -> Gateway {
    Gateway::with(&format!(
        "[respond]\n{respond}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n\
         [limit.device]\nrate = \"1/h\"\nburst = 3\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n"
    ))
    .upstream(upstream)
    .start()
}

/// The first answer, and the first refusal.
async fn admitted_and_refused(gateway: &Gateway) -> (Answer, Answer) {
    let client = gateway.client();
    let admitted = client.get("/").send().await;
    assert_eq!(admitted.status, 200);
    for _ in 0..3 {
        assert_eq!(client.get("/").send().await.status, 200);
    }
    let refused = client.get("/").send().await;
    assert_eq!(refused.status, 429);
    (admitted, refused)
}

#[tokio::test]
async fn a_refusal_says_in_whole_seconds_when_to_come_back_and_that_is_true() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/2s\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let mut refused = client.get("/").send().await;
    assert_eq!(refused.status, 200);
    while refused.status != 429 {
        refused = client.get("/").send().await;
    }
    let told = Instant::now();
    assert!((1..=2).contains(&refused.retry_after()), "{refused:?}");
    let due = told + Duration::from_secs(refused.retry_after());
    tokio::time::sleep_until(due.into()).await;
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_refusal_may_name_a_date_that_is_true() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/s\"\nretry_after = \"http-date\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let mut answer = client.get("/").send().await;
    while answer.status != 429 {
        answer = client.get("/").send().await;
    }
    let date = answer.header("retry-after");
    let date = httpdate::parse_http_date(&date).unwrap_or_else(|error| panic!("{date}: {error}"));
    let ahead = date.duration_since(SystemTime::now()).unwrap_or_default();
    assert!(ahead <= Duration::from_secs(3), "{ahead:?}");
    tokio::time::sleep(ahead).await;
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_wait_of_months_is_still_a_whole_number_of_seconds() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/364d\"")
        .upstream(&upstream)
        .start();
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    let refused = gateway.client().get("/").send().await;
    assert_eq!(refused.status, 429);
    let year = 364 * 24 * 60 * 60;
    assert!((year - 60..=year).contains(&refused.retry_after()));
}

#[tokio::test]
async fn the_draft_dialect_names_the_quota_and_what_is_left_of_it() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/s\"\nburst = 3")
        .upstream(&upstream)
        .start();
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.header("ratelimit-policy"), "\"device\";q=4;w=4");
    assert_eq!(answer.header("ratelimit"), "\"device\";r=3;t=1");

    let gateway = speaking("rate_limit = \"draft\"", &upstream);
    let (admitted, refused) = admitted_and_refused(&gateway).await;
    for answer in [&admitted, &refused] {
        assert_eq!(answer.header("ratelimit-policy"), "\"device\";q=4;w=14400");
    }
    assert!(
        admitted
            .header("ratelimit")
            .starts_with("\"device\";r=3;t=3")
    );
    let wait = refused.retry_after();
    assert_eq!(
        refused.header("ratelimit"),
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
    let answer = gateway.client().get("/").send().await;
    let policy = "\"b\";q=2;w=10, \"a\";q=10;w=3600";
    assert_eq!(answer.header("ratelimit-policy"), policy);
    assert_eq!(answer.header("ratelimit"), "\"b\";r=1;t=5, \"a\";r=9;t=360");
}

#[tokio::test]
async fn the_older_dialects_show_limit_remaining_and_reset() {
    let upstream = Upstream::replying(200);
    for (dialect, prefix) in [("legacy", "ratelimit"), ("x", "x-ratelimit")] {
        let gateway = speaking(&format!("rate_limit = \"{dialect}\""), &upstream);
        let (admitted, refused) = admitted_and_refused(&gateway).await;
        let read = |answer: &Answer| {
            ["limit", "remaining", "reset"].map(|part| answer.header(&format!("{prefix}-{part}")))
        };
        let [limit, remaining, reset] = read(&admitted);
        assert_eq!((limit.as_str(), remaining.as_str()), ("4", "3"));
        assert!((3_500..=3_600).contains(&reset.parse::<u64>().expect("seconds")));
        let [limit, remaining, reset] = read(&refused);
        assert_eq!((limit.as_str(), remaining.as_str()), ("4", "0"));
        assert_eq!(reset, refused.header("retry-after"));
        assert!(!refused.has("ratelimit") && !refused.has("ratelimit-policy"));
    }
}

#[tokio::test]
async fn where_the_dialect_is_off_only_retry_after_is_said() {
    let upstream = Upstream::replying(200);
    let gateway = speaking("rate_limit = \"off\"", &upstream);
    let (admitted, refused) = admitted_and_refused(&gateway).await;
    for answer in [&admitted, &refused] {
        let said = answer
            .headers
            .keys()
            .any(|name| name.as_str().contains("ratelimit"));
        assert!(!said, "{answer:?}");
    }
    assert!(refused.has("retry-after"));
}

#[tokio::test]
async fn the_body_of_a_refusal_follows_accept() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited(ONE_AN_HOUR).upstream(&upstream).start();
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

    // A HEAD is told the same, without the body.
    let head = client.request("HEAD", "/").send().await;
    assert_eq!((head.status, head.body.len()), (429, 0));
    assert!(head.has("retry-after"));
}

#[tokio::test]
async fn extra_headers_go_on_what_the_gateway_says_and_on_nothing_else() {
    let upstream = Upstream::replying(200);
    let gateway = speaking("headers = { \"X-Served-By\" = \"edge\" }", &upstream);
    let (admitted, refused) = admitted_and_refused(&gateway).await;
    assert!(!admitted.has("x-served-by"));
    assert_eq!(refused.header("x-served-by"), "edge");
    assert_eq!(refused.header("cache-control"), "no-store");
}

#[tokio::test]
async fn a_request_no_route_takes_is_a_problem_and_never_forwarded() {
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
    for asking in [gateway.client().get("/"), gateway.client().post("/api/x")] {
        let answer = asking.send().await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.problem(), "no-route");
    }
    assert_eq!(upstream.count(), 0);
}
