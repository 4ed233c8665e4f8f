//! One timer a connection, for all its deadlines.
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

/// The deadline of a peer that takes nothing of what is sent to it.
#[derive(Debug)]
pub(super) struct Stall {
    limit: Duration,
    since: Option<Instant>,
}

impl Stall {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    /// Whether something waits to be sent.
    pub(super) fn is_blocked(&self) -> bool {
        self.since.is_some()
    }

    /// The outcome of an attempt to send, or an error if the last success is too long ago.
    pub(super) fn watch<T>(
        &mut self,
        alarm: &mut Alarm,
        cx: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.since = None;
            return sent;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        ready!(alarm.poll(cx, since + self.limit));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client takes nothing of the response",
        )))
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
