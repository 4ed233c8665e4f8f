//! Timer and write timeout of a connection, and the cached `Date` header.
//!
//! A connection has one timer for all its timeouts. Every request moves the deadline, and resetting a tokio timer costs
//! more than reading a clock. So the timer is not reset when the deadline moves to a later time. Instead, the timer
//! fires before the deadline and is then reset to the deadline. If the new deadline is before the time at which the
//! timer would fire, the timer is reset immediately. A single timer suffices, because one task polls all deadlines of a
//! connection.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::http::socket::ClientSocket;

/// Timer of a connection. Memory for it is allocated when the first deadline is set.
#[derive(Debug, Default)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Waits until `due`.
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

/// Write timeout of a connection. It expires if the client acknowledges none of the sent bytes for `limit`.
///
/// A blocked socket does not prove that the client reads nothing. The kernel buffers megabytes for a slow client. The
/// socket becomes writable again only after a large part of these bytes is sent. So while the socket is blocked, the
/// number of unacknowledged bytes is read four times per timeout. Every decrease restarts the timeout.
#[derive(Debug)]
pub(super) struct WriteTimeout {
    limit: Duration,
    blocked: Option<Blocked>,
}

/// State of a socket whose send buffer is full.
#[derive(Debug)]
struct Blocked {
    /// Time of the last check that found newly acknowledged bytes. Before the first such check, this is the time
    /// at which the send buffer became full.
    progress: Instant,
    /// When the number of unacknowledged bytes is read next.
    next: Instant,
    /// Number of unacknowledged bytes at the last check. `None` before the first check, or if the kernel does not
    /// report it.
    unacknowledged: Option<u32>,
}

impl WriteTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            blocked: None,
        }
    }

    /// Whether the last write had to wait because the socket's send buffer is full.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Returns the result of a write to `io`, or an error if the write is pending and the timeout has expired.
    pub(super) fn check<T>(
        &mut self,
        timer: &mut Timer,
        cx: &mut Context<'_>,
        io: &impl ClientSocket,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let limit = self.limit;
        let blocked = self.blocked.get_or_insert_with(|| {
            let progress = Instant::now();
            Blocked {
                progress,
                next: progress + limit / 4,
                unacknowledged: None,
            }
        });
        loop {
            ready!(timer.poll(cx, blocked.next));
            let now = Instant::now();
            let unacknowledged = io.unacknowledged();
            if unacknowledged.is_some() && unacknowledged < blocked.unacknowledged {
                blocked.progress = now;
            }
            blocked.unacknowledged = unacknowledged;
            let due = blocked.progress + limit;
            if now >= due {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client acknowledged no bytes of the response within `write_timeout`",
                )));
            }
            blocked.next = due.min(now + limit / 4);
        }
    }
}

/// A formatted HTTP date. It is valid until the end of the second in which it was formatted.
struct CachedDate {
    value: HeaderValue,
    until: Instant,
}

thread_local! {
    static DATE: RefCell<Option<CachedDate>> = const { RefCell::new(None) };
}

/// Appends the current HTTP date to `out`. `now` must be the current time.
pub(super) fn append_date(out: &mut Vec<u8>, now: Instant) {
    with_date(now, |value| out.extend_from_slice(value.as_bytes()));
}

/// Returns the current HTTP date as the value of `Date`. `now` must be the current time.
pub(crate) fn date_header(now: Instant) -> HeaderValue {
    with_date(now, HeaderValue::clone)
}

/// Calls `read` with the current HTTP date. Each worker thread formats the date at most once per second.
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
