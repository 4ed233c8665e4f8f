//! Timeouts of a request to an upstream.
//!
//! `first_byte_timeout` begins when the last byte of the request is sent. Before that, `body_timeout` applies to a
//! client that stops sending, and `idle_timeout` to a server that stops reading. The total `timeout` covers all
//! attempts.

use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::Timeouts;
use super::body::UploadProgress;
use crate::respond::TimeoutPhase;

/// If the client neither reads nor sends for this long, it is possibly the reason why the server closes the connection.
/// The circuit breaker then does not count the closed connection as a failure of the server.
pub(super) const CLIENT_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimeouts {
    started: Instant,
    timeouts: Timeouts,
    /// From the start of the request to the head of a response, over all attempts.
    head: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("upstream did not respond in time: {} timeout expired {waited:?} after the start of the request", phase.name())]
pub(crate) struct TimeoutError {
    pub phase: TimeoutPhase,
    pub waited: Duration,
    /// The total timeout can also expire because the client is slow, or because earlier attempts took too long.
    pub is_server_fault: bool,
}

impl RequestTimeouts {
    /// `head` is the deadline of the retry policy.
    pub(crate) fn start(timeouts: Timeouts, head: Option<Duration>) -> Self {
        Self {
            started: Instant::now(),
            timeouts,
            head,
        }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timeouts.total.map(|total| self.started + total)
    }

    /// The earlier of total timeout and retry deadline.
    pub(crate) fn head_deadline(&self) -> Option<Instant> {
        let total = self.timeouts.total.into_iter().chain(self.head).min();
        total.map(|total| self.started + total)
    }

    pub(crate) fn idle(&self) -> Duration {
        self.timeouts.idle
    }

    pub(crate) async fn within_total<F: Future>(&self, work: F) -> Result<F::Output, TimeoutError> {
        match self.head_deadline() {
            None => Ok(work.await),
            Some(deadline) => {
                let began = Instant::now();
                let outcome = timeout_at(deadline, work).await;
                outcome.map_err(|_| self.total_expired(began.elapsed()))
            }
        }
    }

    pub(crate) async fn await_response<F: Future>(
        &self,
        response: F,
        upload: Option<&UploadProgress>,
    ) -> Result<F::Output, TimeoutError> {
        let mut response = std::pin::pin!(response);
        let total = self.head_deadline();
        let began = Instant::now();
        let Timeouts {
            first_byte, idle, ..
        } = self.timeouts;
        let mut silent = began + first_byte.min(upload.map_or(first_byte, |_| idle));
        loop {
            let until = total.map_or(silent, |total| total.min(silent));
            if let Ok(outcome) = timeout_at(until, response.as_mut()).await {
                return Ok(outcome);
            }
            let now = Instant::now();
            let (since, phase, allowed) = match upload {
                None => (began, TimeoutPhase::FirstByte, first_byte),
                Some(upload) if upload.is_sent() => (
                    upload.last_passed().max(began),
                    TimeoutPhase::FirstByte,
                    first_byte,
                ),
                Some(upload) if upload.waits_for_client() => (now, TimeoutPhase::Idle, idle),
                Some(upload) => (upload.last_passed().max(began), TimeoutPhase::Idle, idle),
            };
            if total.is_some_and(|total| total <= now) {
                return Err(self.total_expired(now - since));
            }
            silent = since + allowed;
            if silent <= now {
                return Err(self.timeout_error(phase));
            }
        }
    }

    fn timeout_error(&self, phase: TimeoutPhase) -> TimeoutError {
        TimeoutError {
            phase,
            waited: self.started.elapsed(),
            is_server_fault: true,
        }
    }

    /// `silence` is how long the gateway has waited for the current server, which caused the timeout if this is at
    /// least half of the time.
    fn total_expired(&self, silence: Duration) -> TimeoutError {
        let waited = self.started.elapsed();
        TimeoutError {
            phase: TimeoutPhase::Total,
            waited,
            is_server_fault: silence >= waited / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const FIVE: Duration = Duration::from_secs(5);

    fn timeouts(total: Option<Duration>) -> RequestTimeouts {
        let timeouts = Timeouts {
            first_byte: Duration::from_secs(30),
            total,
            ..Timeouts::default()
        };
        RequestTimeouts::start(timeouts, None)
    }

    fn after(phase: TimeoutPhase, waited: Duration) -> TimeoutError {
        TimeoutError {
            phase,
            waited,
            is_server_fault: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_byte_timeout_bounds_the_wait_for_a_response() {
        let waited = timeouts(None).await_response(pending::<()>(), None).await;
        let thirty = Duration::from_secs(30);
        assert_eq!(waited, Err(after(TimeoutPhase::FirstByte, thirty)));
        assert_eq!(timeouts(None).await_response(ready(1), None).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_timeout_bounds_connecting_and_the_wait_for_a_response() {
        let late = Err(after(TimeoutPhase::Total, FIVE));
        let connecting = timeouts(Some(FIVE)).within_total(pending::<()>()).await;
        assert_eq!(connecting, late);
        let waiting = timeouts(Some(FIVE))
            .await_response(pending::<()>(), None)
            .await;
        assert_eq!(waiting, late);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_for_the_head_applies_without_a_total_timeout() {
        let timeouts = RequestTimeouts::start(Timeouts::default(), Some(FIVE));
        let waiting = timeouts.await_response(pending::<()>(), None).await;
        assert_eq!(waiting, Err(after(TimeoutPhase::Total, FIVE)));
        assert_eq!(timeouts.deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_is_no_server_failure_if_earlier_servers_used_half_of_the_time() {
        for (before, is_server_fault) in [(2, true), (3, false)] {
            let timeouts = timeouts(Some(FIVE));
            tokio::time::sleep(Duration::from_secs(before)).await;
            let late = TimeoutError {
                is_server_fault,
                ..after(TimeoutPhase::Total, FIVE)
            };
            let waiting = timeouts.await_response(pending::<()>(), None).await;
            assert_eq!(waiting, Err(late));
        }
    }
}
