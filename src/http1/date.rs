//! The `Date` header of responses, formatted once per second and worker.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use tokio::time::Instant;

/// A formatted date and the end of its second.
struct Dated {
    value: HeaderValue,
    until: Instant,
}

thread_local! {
    static DATED: RefCell<Option<Dated>> = const { RefCell::new(None) };
}

/// Appends the date at `now` to `out`.
pub(super) fn append(out: &mut Vec<u8>, now: Instant) {
    with_current(now, |value| out.extend_from_slice(value.as_bytes()));
}

/// Returns the date at `now` as a header value.
pub(crate) fn header(now: Instant) -> HeaderValue {
    with_current(now, HeaderValue::clone)
}

fn with_current<T>(now: Instant, read: impl FnOnce(&HeaderValue) -> T) -> T {
    DATED.with_borrow_mut(|dated| {
        let current = match dated.take() {
            Some(current) if now < current.until => current,
            _ => Dated::at(now),
        };
        read(&dated.insert(current).value)
    })
}

impl Dated {
    fn at(now: Instant) -> Self {
        let time = SystemTime::now();
        let into_second = time
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos());
        Self {
            value: HeaderValue::try_from(httpdate::fmt_http_date(time))
                .expect("an HTTP date is visible ASCII"),
            until: now + Duration::from_nanos(u64::from(1_000_000_000 - into_second)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_date_is_that_of_the_present_second() {
        let start = SystemTime::now();
        let (mut out, now) = (Vec::new(), Instant::now());
        append(&mut out, now);
        append(&mut out, now + Duration::from_millis(1_001));
        let (first, second) = std::str::from_utf8(&out).unwrap().split_at(out.len() / 2);
        for date in [first, second] {
            let date = httpdate::parse_http_date(date).unwrap();
            assert!(date + Duration::from_secs(1) > start, "{date:?}");
            assert!(date <= SystemTime::now(), "{date:?}");
        }
    }
}
