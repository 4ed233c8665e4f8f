//! Tests of the effect of `Retry-After` from upstream on the delay before a retry.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderValue;
use parking_lot::Mutex;

use super::{QUICK, gateway_to};
use crate::support::{ClientResponse, Upstream, empty};

/// Arrival time of each request, on the monotonic clock and on the system clock.
type Arrivals = Arc<Mutex<Vec<(Instant, SystemTime)>>>;

/// Creates a server that responds to its first request with this status and `Retry-After`, and to all others with 200.
/// Returns the server and the arrival times of its requests.
fn with_retry_after(status: u16, retry_after: &str) -> (Upstream, Arrivals) {
    let arrivals = Arrivals::default();
    let recorded = Arc::clone(&arrivals);
    let retry_after = HeaderValue::from_str(retry_after).expect("the header value should be valid");
    let upstream = Upstream::with(move |_| {
        let mut arrivals = recorded.lock();
        arrivals.push((Instant::now(), SystemTime::now()));
        let mut reply = empty(if arrivals.len() == 1 { status } else { 200 });
        if arrivals.len() == 1 {
            let headers = reply.headers_mut();
            headers.insert("retry-after", retry_after.clone());
        }
        async { reply }
    });
    (upstream, arrivals)
}

/// Sends a GET request. Returns the response and the time between the two attempts. The time is `None` if there was
/// only one attempt.
async fn gap(status: u16, retry_after: &str, api: &str) -> (ClientResponse, Option<Duration>) {
    let (upstream, arrivals) = with_retry_after(status, retry_after);
    let gateway = gateway_to(&[upstream.url()], api).start();
    let response = gateway.client().get("/").send().await;
    let arrivals = arrivals.lock();
    let gap = match arrivals[..] {
        [_] => None,
        [(first, _), (second, _)] => Some(second - first),
        _ => panic!(
            "expected one or two requests, the server received {}",
            arrivals.len()
        ),
    };
    (response, gap)
}

/// `Retry-After` is 4 s, which is far from the backoff of the `standard` preset (1 to 1.3 s).
#[tokio::test]
async fn a_retry_waits_for_retry_after_within_five_percent() {
    let standard = "[upstream.api.retry]\npreset = \"standard\"";
    let stated = Duration::from_secs(4);
    let results = tokio::join!(
        gap(429, "4", standard),
        gap(429, "004", QUICK),
        gap(503, "4", standard),
    );
    for (response, gap) in <[_; 3]>::from(results) {
        assert_eq!(response.status, 200);
        let gap = gap.expect("the gateway should make a second attempt");
        assert!(gap >= stated, "the retry came too early, after {gap:?}");
        assert!(
            gap <= stated.mul_f64(1.05),
            "the retry came too late, after {gap:?}"
        );
    }
}

#[tokio::test]
async fn a_retry_waits_for_retry_after_as_a_date() {
    // `fmt_http_date` rounds down to whole seconds, so the date is two to three seconds away.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3));
    let (upstream, arrivals) = with_retry_after(429, &date);
    let gateway = gateway_to(&[upstream.url()], QUICK).start();
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    let arrivals = arrivals.lock();
    let [_, (_, second)] = arrivals[..] else {
        panic!(
            "expected two requests, the server received {}",
            arrivals.len()
        );
    };
    let date = httpdate::parse_http_date(&date).expect("the date should be valid");
    let late = second
        .duration_since(date)
        .expect("the retry should not arrive before the date");
    assert!(
        late < Duration::from_secs(5),
        "the retry came {late:?} after the date"
    );
}

#[tokio::test]
async fn a_past_date_or_an_invalid_retry_after_causes_no_wait() {
    for retry_after in ["Wed, 21 Oct 2015 07:28:00 GMT", "0", "soon", "20.5", "-20"] {
        let (response, gap) = gap(429, retry_after, QUICK).await;
        assert_eq!(response.status, 200, "{retry_after}");
        let gap = gap.expect("the gateway should make a second attempt");
        assert!(gap < Duration::from_secs(10), "{retry_after}: {gap:?}");
    }
}

#[tokio::test]
async fn a_response_with_retry_after_beyond_the_deadline_is_forwarded_immediately() {
    let far = httpdate::fmt_http_date(SystemTime::now() + Duration::from_hours(1));
    for retry_after in ["60", "99999999999999999999999", &far] {
        for deadline in ["deadline = \"20s\"", ""] {
            let started = Instant::now();
            let api = format!("{QUICK}{deadline}");
            let (response, gap) = gap(429, retry_after, &api).await;
            assert_eq!(response.status, 429, "{retry_after}");
            assert_eq!(response.header("retry-after"), retry_after);
            assert_eq!(gap, None, "{retry_after}");
            assert!(started.elapsed() < Duration::from_secs(10), "{retry_after}");
        }
    }
}

#[tokio::test]
async fn a_response_with_retry_after_beyond_timeout_is_forwarded_immediately() {
    let (response, gap) = gap(429, "15", &format!("timeout = \"10s\"\n{QUICK}")).await;
    assert_eq!((response.status, gap), (429, None));
    assert_eq!(response.header("retry-after"), "15");
}

#[tokio::test]
async fn the_sender_preset_ignores_retry_after() {
    let sender = "[upstream.api.retry]\npreset = \"sender\"\nbase = \"500ms\"";
    for retry_after in ["25", "0"] {
        let (response, gap) = gap(429, retry_after, sender).await;
        assert_eq!(response.status, 200);
        let gap = gap.expect("the gateway should make a second attempt");
        assert!(gap >= Duration::from_millis(500), "{retry_after}: {gap:?}");
        assert!(gap < Duration::from_secs(15), "{retry_after}: {gap:?}");
    }
}
