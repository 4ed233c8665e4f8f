//! Tests of retries of upstream requests, with timers in virtual time.

use super::*;
use crate::metrics::RetryRejection;

/// Almost no backoff, a budget that is never exhausted, and no circuit breaker, which the failing server would open.
const QUICK: &str = "upstream.api.breaker.enabled = false\nupstream.api.retry.base = \"1ms\"\n\
                     upstream.api.retry.cap = \"5ms\"\nupstream.api.retry.budget = { floor = 1000000 }\n";

fn retrying(settings: &str, rule: &str) -> String {
    format!("{QUICK}{settings}\n{}", keyed(rule))
}

fn rejections(chain: &Chain, reason: RetryRejection) -> u64 {
    let metrics = &chain.shared.metrics[0].upstreams[0];
    metrics.retry_rejections[reason as usize].get()
}

/// Asserts the status of the response to a request with this method, and how often it was sent. Its server responds
/// with `statuses` in turn.
async fn assert_attempts(
    settings: &str,
    request: Builder,
    statuses: &[u16],
    expected: (u16, usize),
) {
    let chain = Chain::with_statuses(&retrying(settings, ""), statuses);
    let response = chain.send(request).await;
    let found = (response.status.as_u16(), chain.executions());
    assert_eq!(found, expected, "{settings} {statuses:?}: {response:?}");
}

#[tokio::test(start_paused = true)]
async fn the_method_and_the_status_decide_whether_a_request_is_retried() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let request = get("/").method(method);
        assert_attempts("", request, &[503, 200], (200, 2)).await;
    }
    for method in ["POST", "PATCH", "LOCK"] {
        for status in [408, 429, 500, 503] {
            let request = get("/").method(method);
            assert_attempts("", request, &[status, 200], (status, 1)).await;
        }
    }
    for status in [408, 429, 500, 502, 503, 504, 599] {
        assert_attempts("", get("/"), &[status, status, 200], (200, 3)).await;
    }
    for status in [400, 401, 403, 404, 409, 410, 413, 422, 425, 301, 304] {
        assert_attempts("", get("/"), &[status, 200], (status, 1)).await;
    }
    assert_attempts("", get("/"), &[503, 404, 200], (404, 2)).await;
}

#[tokio::test(start_paused = true)]
async fn the_preset_and_the_number_of_attempts_are_configured() {
    for (preset, status, times) in [
        ("traffic-control", 408, 2),
        ("authorization-api", 408, 1),
        ("authorization-api", 501, 2),
        ("sender", 501, 1),
        ("sender", 504, 2),
    ] {
        let settings = format!(
            "upstream.api.retry.preset = \"{preset}\"\nupstream.api.retry.jitter = \"full\""
        );
        let expected = if times == 2 { 200 } else { status };
        assert_attempts(&settings, get("/"), &[status, 200], (expected, times)).await;
    }
    let one = "upstream.api.retry.attempts = 1";
    assert_attempts(one, get("/"), &[503, 200], (503, 1)).await;
    let none = Chain::with_statuses(&keyed(""), &[503, 200]);
    assert_eq!(none.send(get("/")).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn the_last_response_is_forwarded_unchanged() {
    let lines = "set-cookie: a=1 | set-cookie: b=2 | retry-after: 0";
    let chain = Chain::with_upstream(
        &retrying("upstream.api.retry.attempts = 3", ""),
        move |number| async move { response([500, 429, 503][number - 1], lines, "\r\n\0") },
    );
    let last = chain.send(get("/")).await;
    assert_eq!((last.status.as_u16(), &*last.body), (503, &b"\r\n\0"[..]));
    let cookies: Vec<_> = last.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1", "b=2"]);
    assert_eq!(last.header("retry-after"), Some("0"));
    assert_eq!(
        (
            chain.executions(),
            rejections(&chain, RetryRejection::Attempts)
        ),
        (3, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_deadline_or_total_timeout_bounds_all_attempts_together() {
    let short = "upstream.api.first_byte_timeout = \"200ms\"\nupstream.api.retry.attempts = 20\n";
    for (settings, attempts) in [
        (format!("{short}upstream.api.retry.deadline = \"1s\""), 5),
        (format!("{short}upstream.api.timeout = \"1s\""), 5),
        (
            "upstream.api.first_byte_timeout = \"60s\"\nupstream.api.retry.deadline = \"1s\""
                .to_owned(),
            1,
        ),
    ] {
        let chain = Chain::gated(&retrying(&settings, ""), &Arc::new(Notify::new()));
        let start = tokio::time::Instant::now();
        let failed = chain.send(get("/")).await;
        failed.assert_problem(504, "upstream-timeout");
        let waited = start.elapsed().as_millis();
        // The gateway responds at once if the next backoff would end after the deadline.
        assert!((950..=1_010).contains(&waited), "{settings}: {waited} ms");
        assert_eq!(chain.executions(), attempts, "{settings}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_request_is_retried_if_its_method_is_idempotent() {
    for (method, status, count) in [("GET", 201, 2), ("POST", 504, 1)] {
        let settings = "upstream.api.first_byte_timeout = \"1s\"";
        let chain = Chain::with_upstream(&retrying(settings, ""), |number| async move {
            if number == 1 {
                future::pending::<()>().await;
            }
            created(number)
        });
        let response = chain.send(get("/").method(method)).await;
        assert_eq!(
            (response.status.as_u16(), chain.executions()),
            (status, count)
        );
    }
}

/// Sends a request whose first response has this status and `Retry-After`. Returns the response, and the time between
/// the attempts if there were two.
async fn gap(retry_after: &'static str, settings: &str) -> (Received, Option<Duration>) {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let times = Arc::clone(&arrivals);
    let chain = Chain::with_upstream(&retrying(settings, ""), move |number| {
        times.lock().push(tokio::time::Instant::now());
        let status = if number == 1 { 429 } else { 200 };
        let lines = format!("retry-after: {retry_after}");
        future::ready(response(status, &lines, ""))
    });
    let response = chain.send(get("/")).await;
    let arrivals = arrivals.lock();
    (
        response,
        arrivals.get(1).map(|second| *second - arrivals[0]),
    )
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_retry_after_within_five_percent() {
    let sender = "upstream.api.retry.preset = \"sender\"";
    // The clock of the gateway starts in 1970.
    for (retry_after, settings, seconds) in [
        ("4", "", 4),
        ("004", "", 4),
        ("Thu, 01 Jan 1970 00:00:03 GMT", "", 3),
        ("Wed, 21 Oct 1969 07:28:00 GMT", "", 0),
        ("0", "", 0),
        ("soon", "", 0),
        ("20.5", "", 0),
        ("-20", "", 0),
        ("25", sender, 0),
    ] {
        let (response, gap) = gap(retry_after, settings).await;
        assert_eq!(response.status, 200, "{retry_after}");
        let stated = Duration::from_secs(seconds);
        let latest = stated.mul_f64(1.05) + Duration::from_millis(10);
        assert!(
            (stated..latest).contains(&gap.unwrap()),
            "{retry_after}: {gap:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_whose_retry_would_begin_too_late_is_forwarded_at_once() {
    let start = tokio::time::Instant::now();
    for (retry_after, settings) in [
        ("60", "upstream.api.retry.deadline = \"20s\""),
        ("99999999999999999999999", ""),
        ("Thu, 01 Jan 1970 01:00:00 GMT", ""),
        ("15", "upstream.api.timeout = \"10s\""),
    ] {
        let (response, gap) = gap(retry_after, settings).await;
        assert_eq!(
            (response.status.as_u16(), gap),
            (429, None),
            "{retry_after}"
        );
        assert_eq!(response.header("retry-after"), Some(retry_after));
    }
    let backoff = retrying("upstream.api.retry.deadline = \"20s\"", "");
    let backoff = backoff.replace("1ms", "25s").replace("5ms", "25s");
    let none = "upstream.api.retry.jitter = \"none\"\n";
    let chain = Chain::with_statuses(&format!("{none}{backoff}"), &[503, 200]);
    assert_eq!(chain.send(get("/")).await.status, 503);
    assert_eq!(rejections(&chain, RetryRejection::Deadline), 1);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_keyed_request_is_retried_only_with_on_unknown_release() {
    let max_body = "upstream.api.retry.max_body = \"1KiB\"";
    for (settings, rule, method, length, expected) in [
        ("", "on_unknown = \"release\"", "POST", 8, (201, 3)),
        (max_body, "on_unknown = \"release\"", "POST", 1024, (201, 3)),
        (max_body, "on_unknown = \"release\"", "POST", 1025, (503, 1)),
        ("", "on_unknown = \"hold\"", "POST", 8, (503, 1)),
        ("", "methods = \"PUT\"", "PUT", 8, (503, 1)),
    ] {
        let chain = Chain::with_statuses(&retrying(settings, rule), &[503, 500, 201]);
        for is_replay in [false, true] {
            let request = post("a").method(method);
            let response = chain.send_body(request, "x".repeat(length)).await;
            let found = (response.status.as_u16(), chain.executions());
            assert_eq!(
                (found, response.is_replay()),
                (expected, is_replay),
                "{rule}"
            );
        }
        for (head, body) in &*chain.received.lock() {
            // The upstream can recognise a duplicate, because all attempts have the same key.
            assert_eq!(head.headers["idempotency-key"], "a");
            assert_eq!(body.len(), length);
        }
        assert_eq!(chain.records().await.completed, 1);
    }
    let hold = retrying("", "methods = \"PUT\"");
    let chain = Chain::with_statuses(&hold, &[503, 201]);
    let unkeyed = chain.send(get("/").method(Method::PUT)).await;
    unkeyed.assert_created(2);
}

#[tokio::test(start_paused = true)]
async fn a_budget_bounds_the_retries_of_all_requests_together() {
    for (budget, attempts, by_budget) in [
        ("{ ratio = 0.5, floor = 0, window = \"1h\" }", 30, 10),
        ("{ ratio = 0.0, floor = 0 }", 20, 20),
    ] {
        let settings = "upstream.api.retry.attempts = 2";
        let config = retrying(settings, "").replace("{ floor = 1000000 }", budget);
        let chain = Chain::with_statuses(&config, &[503]);
        for _ in 0..20 {
            assert_eq!(chain.send(get("/")).await.status, 503);
        }
        assert_eq!(chain.executions(), attempts);
        assert_eq!(rejections(&chain, RetryRejection::Budget), by_budget);
    }
}
