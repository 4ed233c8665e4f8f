//! One timer per connection, for all its deadlines, and the write timeout.
//!
//! A deadline moves with every request, and moving a timer costs more than reading a clock. So the
//! timer is left where it is when the deadline moves away from it, and is set again only when it goes
//! off early; it is brought forward only for a deadline that is nearer. All deadlines of a connection
//! are polled by the connection's own task, so one timer wakes for whichever is nearest.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::socket::ClientSocket;

/// The timer; none is made until a deadline is waited for.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Ready once `due` has passed.
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

/// The write timeout: how long a client may take nothing of what is sent to it.
///
/// A socket that accepts no bytes does not show that its client reads none: the kernel holds megabytes for a slow
/// reader, and accepts more only when a good part of them is sent. So while the socket is blocked, the number of
/// bytes that the client has not acknowledged is sampled four times per timeout. Every decrease is progress.
#[derive(Debug)]
pub(super) struct Stall {
    limit: Duration,
    blocked: Option<Blocked>,
}

/// A socket that accepts no bytes.
#[derive(Debug)]
struct Blocked {
    /// The last time at which the client is known to have taken bytes.
    progress: Instant,
    /// The time of the next sample.
    next: Instant,
    unacknowledged: Option<u32>,
}

impl Stall {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            blocked: None,
        }
    }

    /// Whether the socket accepts no bytes.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Passes on the outcome of a write to `io`, or an error if the client has taken nothing for too long.
    pub(super) fn watch<T>(
        &mut self,
        alarm: &mut Alarm,
        cx: &mut Context<'_>,
        io: &impl ClientSocket,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.blocked = None;
            return sent;
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
            ready!(alarm.poll(cx, blocked.next));
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
                    "the client takes nothing of the response",
                )));
            }
            blocked.next = due.min(now + limit / 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moved_away_is_still_met_exactly() {
        let mut alarm = Alarm::default();
        let start = Instant::now();
        poll_fn(|cx| {
            assert!(alarm.poll(cx, start + SECOND).is_pending());
            Poll::Ready(())
        })
        .await;
        poll_fn(|cx| alarm.poll(cx, start + 5 * SECOND)).await;
        assert_eq!(start.elapsed(), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_nearer_deadline_brings_the_timer_forward() {
        let mut alarm = Alarm::default();
        let start = Instant::now();
        poll_fn(|cx| {
            assert!(alarm.poll(cx, start + 5 * SECOND).is_pending());
            alarm.poll(cx, start + SECOND)
        })
        .await;
        assert_eq!(start.elapsed(), SECOND);
    }
}
