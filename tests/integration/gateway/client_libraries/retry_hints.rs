//! Tests of how official client libraries react to rejected requests: which requests they retry, when, and which error
//! message they show.

use serde_json::{Value, json};

use super::run;
use crate::support::{Gateway, Upstream, full};

/// Runs a script and returns the JSON that the script prints. Uses another thread, so that the runtime of the test is
/// not blocked.
async fn run_script(script: &'static str, arguments: Vec<String>) -> Value {
    let run = move || {
        run(
            script,
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    tokio::task::spawn_blocking(run)
        .await
        .expect("the task does not panic")
}

fn url(gateway: &Gateway) -> String {
    format!("http://{}", gateway.address())
}

/// Creates an API whose only response is valid for all calls of these tests: as a list of models and as a customer.
fn api() -> Upstream {
    Upstream::with(|_| async {
        let body = json!({"id": "x_1", "object": "list", "data": [], "has_more": false});
        let mut reply = full(body.to_string());
        let kind = http::HeaderValue::from_static("application/json");
        reply.headers_mut().insert("content-type", kind);
        reply
    })
}

#[track_caller]
fn assert_contains(message: &Value, text: &str) {
    let message = message
        .as_str()
        .unwrap_or_else(|| panic!("there is no error message, expected: {text}"));
    assert!(
        message.contains(text),
        "the message does not contain {text:?}: {message}"
    );
}

/// Asserts that the library `client` waits as long as `Retry-After-Ms` states before each retry. The rate limit is
/// 4/s, so `Retry-After-Ms` states at most 0.25 s, whereas `Retry-After` states 1 s.
async fn assert_retries_after_retry_after_ms(client: &str) -> Value {
    let upstream = api();
    let gateway = Gateway::limited("rate = \"4/s\"\nburst = 0")
        .admin()
        .upstream(&upstream)
        .start();
    let arguments = vec![client.into(), url(&gateway), "20".into()];
    let result = run_script("retry_timing.py", arguments).await;
    let rejected = result["rejected"].as_array().expect("the member is a list");
    let mut waits = Vec::new();
    for each in rejected {
        let [stated, waited] = ["stated", "waited"].map(|key| each[key].as_f64());
        let (Some(stated), Some(waited)) = (stated, waited) else {
            panic!("the rejection has no Retry-After-Ms, or the client did not retry: {each}");
        };
        assert!(
            waited >= stated,
            "the retry is earlier than Retry-After-Ms: {each}"
        );
        waits.push(waited);
    }
    waits.sort_by(f64::total_cmp);
    let median = waits[waits.len() / 2];
    eprintln!(
        "{client}: {} retries, with a median wait of {median:.3} s",
        waits.len()
    );
    assert!(
        median <= 0.35,
        "the client waits too long before retries, in seconds: {waits:?}"
    );
    // A retry after `Retry-After-Ms` is admitted, so each rejection but the last is followed by an admitted request.
    // The number of rejections thus exceeds the number of admitted requests by at most one.
    let rejections = gateway
        .metric("rejected_total{route=\"all\",limit=\"device\"}")
        .await;
    let calls = f64::from(u32::try_from(upstream.count()).expect("the number is small"));
    assert!(
        rejections <= calls + 1.0,
        "{rejections} rejections for {calls} admitted requests: {result}"
    );
    result
}

#[tokio::test]
async fn openai_waits_as_long_as_retry_after_ms_and_shows_the_problem() {
    let result = assert_retries_after_retry_after_ms("openai").await;
    assert_contains(
        &result["error"],
        "Too many requests: The rate limit 'device'",
    );
}

#[tokio::test]
async fn anthropic_waits_as_long_as_retry_after_ms_and_shows_the_problem() {
    let result = assert_retries_after_retry_after_ms("anthropic").await;
    assert_contains(
        &result["error"],
        "Too many requests: The rate limit 'device'",
    );
}

#[tokio::test]
async fn stripe_for_python_follows_stripe_should_retry_and_shows_the_problem() {
    const HINT: &str = "[respond]\nhints = [\"stripe\"]";
    let (upstream, losing) = (api(), Upstream::resetting());
    // The Stripe client waits 0.5 s before its first retry. At 2/s the gateway then admits the retry.
    let retried = Gateway::limited("rate = \"2/s\"\nburst = 0")
        .with_section(HINT)
        .admin()
        .upstream(&upstream)
        .start();
    let lost = Gateway::keyed("")
        .with_section(HINT)
        .admin()
        .upstream(&losing)
        .start();
    let rejected = Gateway::limited("rate = \"1/h\"")
        .admin()
        .upstream(&upstream)
        .start();
    assert_eq!(rejected.client().get("/").send().await.status, 200);
    let urls = [&retried, &lost, &rejected].map(url).to_vec();
    let result = run_script("stripe_hints.py", urls).await;

    for customer in result["retried"].as_array().expect("the member is a list") {
        assert_eq!(customer["id"], "x_1", "{result}");
    }
    let rejections = "rejected_total{route=\"all\",limit=\"device\"}";
    assert!(
        retried.metric(rejections).await >= 1.0,
        "the gateway rejected no request: {result}"
    );

    // The upstream closes the connection of the first call without a response, so this call gets 502. The second call
    // has the same idempotency key and gets 409. The client retries neither call, so each call sends one request.
    let [unavailable, unknown] = [&result["lost"][0], &result["lost"][1]];
    assert_eq!(unavailable["status"], 502, "{result}");
    assert_contains(&unavailable["message"], "Upstream unavailable: ");
    assert_eq!(unknown["status"], 409, "{result}");
    assert_contains(&unknown["message"], "Outcome unknown: ");
    for outcome in ["executed", "unknown"] {
        let series = format!("idempotency_requests_total{{route=\"all\",outcome=\"{outcome}\"}}");
        let count = lost.metric(&series).await;
        assert!(
            (count - 1.0).abs() < 0.1,
            "{count} instead of 1 request had the outcome {outcome}: {result}"
        );
    }

    // The client does not retry a 429 if the response has no `Stripe-Should-Retry` header.
    assert_eq!(result["rejected"]["error"], "RateLimitError", "{result}");
    let message = &result["rejected"]["message"];
    assert_contains(message, "Too many requests: The rate limit 'device'");
    assert!((rejected.metric(rejections).await - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn stripe_for_node_throws_on_rejections_and_shows_the_problem() {
    let (upstream, losing) = (api(), Upstream::resetting());
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [upstream.losing]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "customers"
        path = "/v1/customers"
        upstream = "api"
        limits = ["device"]
        [[route]]
        name = "coupons"
        path = "/v1/coupons"
        upstream = "losing"
        idempotency = { mode = "optional" }
        "#,
    )
    .upstream(&upstream)
    .upstream(&losing)
    .start();
    let address = gateway.address();
    let arguments = vec![address.ip().to_string(), address.port().to_string()];
    let result = run_script("stripe_errors.cjs", arguments).await;

    assert_eq!(result["customer"][0], json!({"id": "x_1"}), "{result}");
    for (error, status, kind, code, message) in [
        (
            &result["customer"][1],
            429,
            "StripeRateLimitError",
            "rate-limited",
            "Too many requests: The rate limit 'device'",
        ),
        (
            &result["coupon"][0],
            502,
            "StripeAPIError",
            "upstream-unavailable",
            "Upstream unavailable: ",
        ),
        (
            &result["coupon"][1],
            409,
            "StripeAPIError",
            "idempotency-outcome-unknown",
            "Outcome unknown: ",
        ),
    ] {
        assert_eq!(error["status"], status, "{result}");
        assert_eq!(error["type"], kind, "{result}");
        assert_eq!(error["code"], code, "{result}");
        assert_contains(&error["message"], message);
    }
}
