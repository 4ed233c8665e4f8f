//! Hints for SDKs on rejections: `Retry-After-Ms` and its relatives, and the link to the operator's documentation.

use std::time::{Duration, Instant};

use crate::harness::{Answer, Gateway, Upstream};

const ALL: [&str; 4] = [
    "retry-after-ms",
    "x-should-retry",
    "stripe-should-retry",
    "x-amz-retry-after",
];

/// A gateway with this limit and these lines under `[respond]`.
fn limited(limit: &str, respond: &str, upstream: &Upstream) -> Gateway {
    Gateway::limited(limit)
        .and(&format!("[respond]\n{respond}"))
        .upstream(upstream)
        .start()
}

/// Sends requests until the gateway rejects one with 429.
async fn rejected(gateway: &Gateway) -> Answer {
    loop {
        let answer = gateway.client().get("/").send().await;
        if answer.status == 429 {
            return answer;
        }
    }
}

/// The hints that a response has.
fn hints(answer: &Answer) -> Vec<&'static str> {
    ALL.into_iter().filter(|name| answer.has(name)).collect()
}

fn milliseconds(answer: &Answer, name: &str) -> u64 {
    answer.header(name).parse().expect("whole milliseconds")
}

#[tokio::test]
async fn a_request_after_retry_after_ms_is_admitted() {
    let upstream = Upstream::replying(200);
    for form in ["seconds", "http-date"] {
        let limit = format!("rate = \"4/s\"\nburst = 0\nretry_after = \"{form}\"");
        let gateway = limited(&limit, "", &upstream);
        for _ in 0..5 {
            let answer = rejected(&gateway).await;
            let received = Instant::now();
            assert_eq!(hints(&answer), ["retry-after-ms", "x-should-retry"]);
            assert_eq!(answer.header("x-should-retry"), "true");
            let wait = milliseconds(&answer, "retry-after-ms");
            assert!((1..=250).contains(&wait), "{wait} ms");
            let due = received + Duration::from_millis(wait);
            tokio::time::sleep_until(due.into()).await;
            let answer = gateway.client().get("/").send().await;
            assert_eq!(answer.status, 200, "{form}: {wait} ms");
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
            &ALL,
        ),
    ] {
        let respond = format!("hints = {selected}");
        let gateway = limited("rate = \"1/h\"", &respond, &upstream);
        let answer = rejected(&gateway).await;
        assert_eq!(hints(&answer), expected, "{selected}");
        assert!(answer.has("retry-after"));
        for name in expected {
            if name.ends_with("should-retry") {
                assert_eq!(answer.header(name), "true");
            } else {
                let wait = milliseconds(&answer, name);
                assert_eq!(wait.div_ceil(1000), answer.retry_after(), "{name}");
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

    // Another attempt can reach another server, or the same one when it is back. With a key too: nothing was sent.
    let gateway = Gateway::keyed("").upstream_url(&Upstream::gone()).start();
    for asking in [
        gateway.client().post("/"),
        gateway.client().post("/").key("k1"),
    ] {
        let unavailable = asking.send().await;
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
        .and(&format!(
            "[respond]\n{respond}\nheaders = {{ Link = \"</help>; rel=\\\"help\\\"\" }}"
        ))
        .upstream_url(&Upstream::gone())
        .start();
    for asking in [
        gateway.client().post("/"),
        gateway.client().post("/").key("k1"),
        gateway.client().post("/").key(""),
    ] {
        let links = asking.send().await.header("link");
        assert_eq!(links, format!("</help>; rel=\"help\", {link}"));
    }
}
