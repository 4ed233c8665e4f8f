//! Tests of the retry hints for SDKs on rejections, such as `Retry-After-Ms`, and of the link to the operator's
//! documentation.

use std::time::{Duration, Instant};

use crate::support::{ClientResponse, Gateway, RefusingPort, Upstream};

const ALL_HINTS: [&str; 4] = [
    "retry-after-ms",
    "x-should-retry",
    "stripe-should-retry",
    "x-amz-retry-after",
];

/// Starts a gateway with the rate limit `limit`. `respond` contains additional lines for `[respond]`.
fn limited(limit: &str, respond: &str, upstream: &Upstream) -> Gateway {
    Gateway::limited(limit)
        .with_section(&format!("[respond]\n{respond}"))
        .upstream(upstream)
        .start()
}

/// Sends requests until the gateway rejects one with 429, and returns the rejection.
async fn rejected(gateway: &Gateway) -> ClientResponse {
    loop {
        let response = gateway.client().get("/").send().await;
        if response.status == 429 {
            return response;
        }
    }
}

/// Returns the names of the retry hint headers that `response` has.
fn hints(response: &ClientResponse) -> Vec<&'static str> {
    ALL_HINTS
        .into_iter()
        .filter(|name| response.has(name))
        .collect()
}

fn milliseconds(response: &ClientResponse, name: &str) -> u64 {
    response
        .header(name)
        .parse()
        .expect("the hint should be a whole number of milliseconds")
}

#[tokio::test]
async fn a_request_after_retry_after_ms_is_admitted() {
    let upstream = Upstream::replying(200);
    for form in ["seconds", "http-date"] {
        let limit = format!("rate = \"4/s\"\nburst = 0\nretry_after = \"{form}\"");
        let gateway = limited(&limit, "", &upstream);
        for _ in 0..5 {
            let response = rejected(&gateway).await;
            let received = Instant::now();
            assert_eq!(hints(&response), ["retry-after-ms", "x-should-retry"]);
            assert_eq!(response.header("x-should-retry"), "true");
            let wait = milliseconds(&response, "retry-after-ms");
            assert!((1..=250).contains(&wait), "{wait} ms");
            let due = received + Duration::from_millis(wait);
            tokio::time::sleep_until(due.into()).await;
            let response = gateway.client().get("/").send().await;
            assert_eq!(response.status, 200, "{form}: {wait} ms");
        }
    }
}

#[tokio::test]
async fn a_wait_of_a_year_is_exact_in_milliseconds() {
    let upstream = Upstream::replying(200);
    let gateway = limited("rate = \"1/364d\"", "", &upstream);
    let wait = milliseconds(&rejected(&gateway).await, "retry-after-ms");
    let year = 364 * 24 * 60 * 60 * 1000;
    assert!((year - 60_000..=year).contains(&wait), "{wait} ms");
}

#[tokio::test]
async fn the_configuration_selects_the_hints() {
    let upstream = Upstream::replying(200);
    for (selected, expected) in [
        ("[]", &[][..]),
        ("[\"ms\"]", &["retry-after-ms"]),
        (
            "[\"amz\", \"stripe\"]",
            &["stripe-should-retry", "x-amz-retry-after"],
        ),
        (
            "[\"should-retry\", \"ms\", \"stripe\", \"amz\", \"ms\"]",
            &ALL_HINTS,
        ),
    ] {
        let respond = format!("hints = {selected}");
        let gateway = limited("rate = \"1/h\"", &respond, &upstream);
        let response = rejected(&gateway).await;
        assert_eq!(hints(&response), expected, "{selected}");
        assert!(response.has("retry-after"));
        for name in expected {
            if name.ends_with("should-retry") {
                assert_eq!(response.header(name), "true");
            } else {
                let wait = milliseconds(&response, name);
                assert_eq!(wait.div_ceil(1000), response.retry_after(), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn admitted_requests_and_plain_failures_have_no_hints() {
    let upstream = Upstream::replying(200);
    let gateway = limited("rate = \"1/h\"", "", &upstream);
    let admitted = gateway.client().get("/").send().await;
    assert_eq!(admitted.status, 200);
    assert!(hints(&admitted).is_empty(), "{admitted:?}");

    // A 502 must not advise against a retry, because a retry can reach another server, or the same server after
    // recovery. This also holds for a request with an idempotency key, because nothing was sent.
    let gateway = Gateway::keyed("")
        .upstream_url(&RefusingPort::permanent_url())
        .start();
    for request in [
        gateway.client().post("/"),
        gateway.client().post("/").key("k1"),
    ] {
        let unavailable = request.send().await;
        assert_eq!(unavailable.status, 502);
        assert!(hints(&unavailable).is_empty(), "{unavailable:?}");
    }
}

#[tokio::test]
async fn the_failure_of_a_keyed_request_is_final_only_while_its_outcome_is_held_as_unknown() {
    let upstream = Upstream::resetting();
    for (on_unknown, hint) in [("hold", "false"), ("release", "")] {
        let gateway = Gateway::keyed(&format!("on_unknown = \"{on_unknown}\""))
            .upstream(&upstream)
            .start();
        let lost = gateway.client().post("/").key("k1").send().await;
        assert_eq!(lost.status, 502);
        assert_eq!(lost.header("x-should-retry"), hint, "{on_unknown}");
        assert!(!lost.has("retry-after-ms"));
    }
}

#[tokio::test]
async fn problem_responses_link_to_the_documentation() {
    const DOCS: &str = "https://docs.example/errors?lang=en#limits";
    let link = format!("<{DOCS}>; rel=\"describedby\"");
    let respond = format!("docs = \"{DOCS}\"");
    let upstream = Upstream::replying(200);
    let gateway = limited("rate = \"1/h\"", &respond, &upstream);
    let client = gateway.client();
    assert!(!client.get("/").send().await.has("link"));
    for accept in ["*/*", "text/html", "text/plain"] {
        let rejected = client.get("/").header("Accept", accept).send().await;
        assert_eq!(rejected.status, 429);
        assert_eq!(rejected.header("link"), link, "{accept}");
    }
    let invalid = client.get("/%zz").send().await;
    assert_eq!(
        (invalid.status, invalid.header("link")),
        (400, link.clone())
    );

    let gateway = Gateway::keyed("")
        .with_section(&format!(
            "[respond]\n{respond}\nheaders = {{ Link = \"</help>; rel=\\\"help\\\"\" }}"
        ))
        .upstream_url(&RefusingPort::permanent_url())
        .start();
    for request in [
        gateway.client().post("/"),
        gateway.client().post("/").key("k1"),
        gateway.client().post("/").key(""),
    ] {
        let links = request.send().await.header("link");
        assert_eq!(links, format!("</help>; rel=\"help\", {link}"));
    }
}
