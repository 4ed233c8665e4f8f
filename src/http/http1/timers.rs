//! Timer and write timeout of a connection, and the cached `Date` header.
//!
//! A connection has one timer for all its timeouts, because one task polls them. Every request moves the deadline, and
//! resetting a tokio timer costs more than reading a clock. So the timer is reset immediately only to an earlier
//! deadline. For a later one, it fires early and is then reset.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use tokio::time::{Instant, Sleep, sleep_until};

/// Memory for it is allocated when the first deadline is set.
#[derive(Debug, Default)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}

/// Write timeout of a connection. It expires if the socket takes no byte for `limit` while its send buffer is full.
#[derive(Debug)]
pub(super) struct WriteTimeout {
    limit: Duration,
    /// `Some` while the send buffer of the socket is full.
    due: Option<Instant>,
}

impl WriteTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, due: None }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.due.is_some()
    }

    pub(super) fn check<T>(
        &mut self,
        timer: &mut Timer,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.due = None;
            return written;
        }
        let due = *(self.due).get_or_insert_with(|| Instant::now() + self.limit);
        ready!(timer.poll(cx, due));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the socket of the client took no bytes in time",
        )))
    }
}

/// Valid until the end of the second in which it was formatted.
struct CachedDate {
    value: HeaderValue,
    until: Instant,
}

thread_local! {
    static DATE: RefCell<Option<CachedDate>> = const { RefCell::new(None) };
}

/// `now` must be the current time.
pub(super) fn append_date(out: &mut Vec<u8>, now: Instant) {
    with_date(now, |value| out.extend_from_slice(value.as_bytes()));
}

/// `now` must be the current time.
pub(crate) fn date_header(now: Instant) -> HeaderValue {
    with_date(now, HeaderValue::clone)
}

/// Each worker thread formats the date at most once per second.
fn with_date<T>(now: Instant, read: impl FnOnce(&HeaderValue) -> T) -> T {
    DATE.with_borrow_mut(|cached| {
        let current = match cached.take() {
            Some(current) if now < current.until => current,
            _ => CachedDate::at(now),
        };
        read(&cached.insert(current).value)
    })
}

impl CachedDate {
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
    use std::future::poll_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_later_deadline_is_met_exactly() {
        let mut timer = Timer::default();
        let start = Instant::now();
        poll_fn(|cx| {
            assert!(timer.poll(cx, start + SECOND).is_pending());
            Poll::Ready(())
        })
        .await;
        poll_fn(|cx| timer.poll(cx, start + 5 * SECOND)).await;
        assert_eq!(start.elapsed(), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_resets_the_timer() {
        let mut timer = Timer::default();
        let start = Instant::now();
        poll_fn(|cx| {
            assert!(timer.poll(cx, start + 5 * SECOND).is_pending());
            timer.poll(cx, start + SECOND)
        })
        .await;
        assert_eq!(start.elapsed(), SECOND);
    }

    #[tokio::test]
    async fn the_cached_date_is_renewed_each_second() {
        let start = SystemTime::now();
        let (mut out, now) = (Vec::new(), Instant::now());
        append_date(&mut out, now);
        append_date(&mut out, now + Duration::from_millis(1_001));
        let (first, second) = std::str::from_utf8(&out).unwrap().split_at(out.len() / 2);
        for date in [first, second] {
            let date = httpdate::parse_http_date(date).unwrap();
            assert!(date + Duration::from_secs(1) > start, "{date:?}");
            assert!(date <= SystemTime::now(), "{date:?}");
        }
    }
}
