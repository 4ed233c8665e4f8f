//! Timeouts of a request to an upstream.
//!
//! `first_byte_timeout` begins when the last byte of the request is sent. While the client is still sending, its own
//! `body_timeout` applies; an upstream that stops reading the body is held to `idle_timeout`.
//!
//! The total spans all attempts of a request: retries do not extend it.

use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::Timeouts;
use super::body::{UploadProgress, UploadStage};
use crate::problem::TimeoutPhase;

/// A client that does not read or send for this long is slow. A connection that the server then closes does not
/// count as the server's failure.
pub(super) const CLIENT_PAUSE: Duration = Duration::from_secs(1);

/// The timeouts of one request, over all its attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimeouts {
    started: Instant,
    timeouts: Timeouts,
    /// Time until the head of a response has to arrive, over all attempts.
    head: Option<Duration>,
}

/// A timeout of the upstream expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("upstream timed out after {waited:?} ({} timeout)", phase.name())]
pub(crate) struct TimeoutError {
    /// The timeout that expired.
    pub phase: TimeoutPhase,
    /// Duration of the request until then.
    pub waited: Duration,
    /// Whether it counts as a failure of the server. The total can be used up by a slow client, or by servers that were
    /// tried before.
    pub is_servers: bool,
}

impl RequestTimeouts {
    /// For a request that begins now; where there may be several attempts, the head of its answer has to be
    /// there within `head`.
    pub(crate) fn from_now(timeouts: Timeouts, head: Option<Duration>) -> Self {
        Self {
            started: Instant::now(),
            timeouts,
            head,
        }
    }

    /// When the request began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// When all has to be over, if that is bounded.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timeouts.total.map(|total| self.started + total)
    }

    /// When the head of an answer has to be there, if that is bounded.
    pub(crate) fn head_deadline(&self) -> Option<Instant> {
        let total = self.timeouts.total.into_iter().chain(self.head).min();
        total.map(|total| self.started + total)
    }

    /// How long upstream may be silent amid its answer.
    pub(crate) fn idle(&self) -> Duration {
        self.timeouts.idle
    }

    /// Waits for `work`, but not past the end.
    pub(crate) async fn within_total<F: Future>(&self, work: F) -> Result<F::Output, TimeoutError> {
        match self.head_deadline() {
            None => Ok(work.await),
            Some(deadline) => {
                let began = Instant::now();
                let outcome = timeout_at(deadline, work).await;
                outcome.map_err(|_| self.out_of_time(began.elapsed()))
            }
        }
    }

    /// Waits for the `answer` to a request with this `upload`.
    pub(crate) async fn for_answer<F: Future>(
        &self,
        answer: F,
        upload: Option<&UploadProgress>,
    ) -> Result<F::Output, TimeoutError> {
        let mut answer = std::pin::pin!(answer);
        let total = self.head_deadline();
        let began = Instant::now();
        let Timeouts {
            first_byte, idle, ..
        } = self.timeouts;
        let mut silent = began + first_byte.min(upload.map_or(first_byte, |_| idle));
        loop {
            let until = total.map_or(silent, |total| total.min(silent));
            if let Ok(outcome) = timeout_at(until, answer.as_mut()).await {
                return Ok(outcome);
            }
            let now = Instant::now();
            let (since, phase, allowed) = match upload {
                None => (began, TimeoutPhase::FirstByte, first_byte),
                Some(upload) if upload.stage() == UploadStage::Sent => (
                    upload.last_passed().max(began),
                    TimeoutPhase::FirstByte,
                    first_byte,
                ),
                Some(upload) if upload.waits_for_client() => (now, TimeoutPhase::Idle, idle),
                Some(upload) => (upload.last_passed().max(began), TimeoutPhase::Idle, idle),
            };
            if total.is_some_and(|total| total <= now) {
                return Err(self.out_of_time(now - since));
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
            is_servers: true,
        }
    }

    /// The total is used up, the last `silence` of it by the server.
    fn out_of_time(&self, silence: Duration) -> TimeoutError {
        let waited = self.started.elapsed();
        TimeoutError {
            phase: TimeoutPhase::Total,
            waited,
            is_servers: silence >= waited / 2,
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
        RequestTimeouts::from_now(timeouts, None)
    }

    fn after(phase: TimeoutPhase, waited: Duration) -> TimeoutError {
        TimeoutError {
            phase,
            waited,
            is_servers: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_as_long_as_the_first_byte_may_take() {
        let waited = timeouts(None).for_answer(pending::<()>(), None).await;
        let thirty = Duration::from_secs(30);
        assert_eq!(waited, Err(after(TimeoutPhase::FirstByte, thirty)));
        assert_eq!(timeouts(None).for_answer(ready(1), None).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_bounds_connecting_and_waiting_alike() {
        let late = Err(after(TimeoutPhase::Total, FIVE));
        let connecting = timeouts(Some(FIVE)).within_total(pending::<()>()).await;
        assert_eq!(connecting, late);
        let waiting = timeouts(Some(FIVE)).for_answer(pending::<()>(), None).await;
        assert_eq!(waiting, late);
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_may_have_to_be_there_before_all_has_to_be_over() {
        let timeouts = RequestTimeouts::from_now(Timeouts::default(), Some(FIVE));
        let waiting = timeouts.for_answer(pending::<()>(), None).await;
        assert_eq!(waiting, Err(after(TimeoutPhase::Total, FIVE)));
        assert_eq!(timeouts.deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_not_to_blame_for_the_time_that_others_took() {
        for (before, is_servers) in [(2, true), (3, false)] {
            let timeouts = timeouts(Some(FIVE));
            tokio::time::sleep(Duration::from_secs(before)).await;
            let late = TimeoutError {
                is_servers,
                ..after(TimeoutPhase::Total, FIVE)
            };
            let waiting = timeouts.for_answer(pending::<()>(), None).await;
            assert_eq!(waiting, Err(late));
        }
    }
}
