//! What a `Retry-After` does to the wait before another attempt.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderValue;
use parking_lot::Mutex;

use super::{QUICK, before};
use crate::harness::{Answer, Upstream, empty};

/// When a request arrived.
type Arrivals = Arc<Mutex<Vec<(Instant, SystemTime)>>>;

/// A server that answers its first request with this status and `Retry-After`, all others with 200, and when
/// they came.
fn telling(status: u16, retry_after: &str) -> (Upstream, Arrivals) {
    let arrivals = Arrivals::default();
    let arriving = Arc::clone(&arrivals);
    let retry_after = HeaderValue::from_str(retry_after).expect("a header's value");
    let upstream = Upstream::with(move |_| {
        let mut arrivals = arriving.lock();
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

/// The answer to a GET, and the time between its two attempts as upstream saw it, if there were two.
async fn gap(status: u16, retry_after: &str, api: &str) -> (Answer, Option<Duration>) {
    let (upstream, arrivals) = telling(status, retry_after);
    let gateway = before(&[upstream.url()], api).start();
    let answer = gateway.client().get("/").send().await;
    let arrivals = arrivals.lock();
    let gap = match arrivals[..] {
        [_] => None,
        [(first, _), (second, _)] => Some(second - first),
        _ => panic!("{} arrivals", arrivals.len()),
    };
    (answer, gap)
}

/// Far from what the policy would choose itself, which is 1 to 1.3 s.
#[tokio::test]
async fn a_429_with_retry_after_is_waited_for_within_five_per_cent() {
    let standard = "[upstream.api.retry]\npreset = \"standard\"";
    let stated = Duration::from_secs(4);
    let told = tokio::join!(
        gap(429, "4", standard),
        gap(429, "004", QUICK),
        gap(503, "4", standard),
    );
    for (answer, gap) in <[_; 3]>::from(told) {
        assert_eq!(answer.status, 200);
        let gap = gap.expect("a second attempt");
        assert!(gap >= stated, "{gap:?} is too soon");
        assert!(gap <= stated.mul_f64(1.05), "{gap:?} is too late");
    }
}

#[tokio::test]
async fn a_retry_after_that_is_a_date_is_waited_for() {
    // Dates are whole seconds: at least two of them from now.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3));
    let (upstream, arrivals) = telling(429, &date);
    let gateway = before(&[upstream.url()], QUICK).start();
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    let arrivals = arrivals.lock();
    let [_, (_, second)] = arrivals[..] else {
        panic!("{} arrivals", arrivals.len());
    };
    let date = httpdate::parse_http_date(&date).expect("a date");
    let late = second.duration_since(date).expect("not before the date");
    assert!(late < Duration::from_secs(5), "{late:?} late");
}

#[tokio::test]
async fn a_date_that_is_past_and_what_cannot_be_read_keep_nobody_waiting() {
    for retry_after in ["Wed, 21 Oct 2015 07:28:00 GMT", "0", "soon", "20.5", "-20"] {
        let (answer, gap) = gap(429, retry_after, QUICK).await;
        assert_eq!(answer.status, 200, "{retry_after}");
        let gap = gap.expect("a second attempt");
        assert!(gap < Duration::from_secs(10), "{retry_after}: {gap:?}");
    }
}

#[tokio::test]
async fn a_retry_after_beyond_the_deadline_is_passed_on_at_once() {
    let far = httpdate::fmt_http_date(SystemTime::now() + Duration::from_hours(1));
    for retry_after in ["60", "99999999999999999999999", &far] {
        for deadline in ["deadline = \"20s\"", ""] {
            let begun = Instant::now();
            let api = format!("{QUICK}{deadline}");
            let (answer, gap) = gap(429, retry_after, &api).await;
            assert_eq!(answer.status, 429, "{retry_after}");
            assert_eq!(answer.header("retry-after"), retry_after);
            assert_eq!(gap, None, "{retry_after}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{retry_after}");
        }
    }
}

#[tokio::test]
async fn the_total_timeout_bounds_a_retry_after_as_the_deadline_does() {
    let (answer, gap) = gap(429, "15", &format!("timeout = \"10s\"\n{QUICK}")).await;
    assert_eq!((answer.status, gap), (429, None));
    assert_eq!(answer.header("retry-after"), "15");
}

#[tokio::test]
async fn a_sender_waits_as_long_as_ever_whatever_it_is_told() {
    let sender = "[upstream.api.retry]\npreset = \"sender\"\nbase = \"500ms\"";
    for retry_after in ["25", "0"] {
        let (answer, gap) = gap(429, retry_after, sender).await;
        assert_eq!(answer.status, 200);
        let gap = gap.expect("a second attempt");
        assert!(gap >= Duration::from_millis(500), "{retry_after}: {gap:?}");
        assert!(gap < Duration::from_secs(15), "{retry_after}: {gap:?}");
    }
}
