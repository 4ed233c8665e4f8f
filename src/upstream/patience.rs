//! How long upstream is waited for.
//!
//! The wait for an answer begins when the request's last byte has gone out. While the client is still
//! sending, it is the client that is waited for, and its own deadline that counts; an upstream that stops
//! taking what the client sends is held to the pause it may make between two parts of a body.
//!
//! One patience spans all attempts of a request: what may take ten seconds takes no more for being tried
//! three times.

use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::Timeouts;
use super::upload::{Progress, Stage};
use crate::problem::TimeoutPhase;

/// A client that does not read or send for this long is slow. A connection that the server then closes does not
/// count as the server's failure.
pub(super) const CLIENT_PAUSE: Duration = Duration::from_secs(1);

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    started: Instant,
    timeouts: Timeouts,
    /// How long until the head of an answer has to be there, however often it is tried for.
    head: Option<Duration>,
}

/// Upstream took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("upstream was waited for {waited:?} in vain ({} timeout)", phase.name())]
pub struct OutOfPatience {
    /// What took too long.
    pub phase: TimeoutPhase,
    /// How long the request had taken by then.
    pub waited: Duration,
    /// Whether that speaks against the server. The total may be used up by others: by a client over its
    /// request's body, or by servers that were tried before.
    pub is_servers: bool,
}

impl Patience {
    /// For a request that begins now; where there may be several attempts, the head of its answer has to be
    /// there within `head`.
    pub fn from_now(timeouts: Timeouts, head: Option<Duration>) -> Self {
        Self {
            started: Instant::now(),
            timeouts,
            head,
        }
    }

    /// When the request began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// When all has to be over, if that is bounded.
    pub fn deadline(&self) -> Option<Instant> {
        self.timeouts.total.map(|total| self.started + total)
    }

    /// When the head of an answer has to be there, if that is bounded.
    pub fn head_deadline(&self) -> Option<Instant> {
        let total = self.timeouts.total.into_iter().chain(self.head).min();
        total.map(|total| self.started + total)
    }

    /// How long upstream may be silent amid its answer.
    pub fn idle(&self) -> Duration {
        self.timeouts.idle
    }

    /// Waits for `work`, but not past the end.
    pub async fn within_total<F: Future>(&self, work: F) -> Result<F::Output, OutOfPatience> {
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
    pub async fn for_answer<F: Future>(
        &self,
        answer: F,
        upload: Option<&Progress>,
    ) -> Result<F::Output, OutOfPatience> {
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
                Some(upload) if upload.stage() == Stage::Sent => (
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
                return Err(self.out_of_patience(phase));
            }
        }
    }

    fn out_of_patience(&self, phase: TimeoutPhase) -> OutOfPatience {
        OutOfPatience {
            phase,
            waited: self.started.elapsed(),
            is_servers: true,
        }
    }

    /// The total is used up, the last `silence` of it by the server.
    fn out_of_time(&self, silence: Duration) -> OutOfPatience {
        let waited = self.started.elapsed();
        OutOfPatience {
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

    fn patience(total: Option<Duration>) -> Patience {
        let timeouts = Timeouts {
            first_byte: Duration::from_secs(30),
            total,
            ..Timeouts::default()
        };
        Patience::from_now(timeouts, None)
    }

    fn after(phase: TimeoutPhase, waited: Duration) -> OutOfPatience {
        OutOfPatience {
            phase,
            waited,
            is_servers: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_as_long_as_the_first_byte_may_take() {
        let waited = patience(None).for_answer(pending::<()>(), None).await;
        let thirty = Duration::from_secs(30);
        assert_eq!(waited, Err(after(TimeoutPhase::FirstByte, thirty)));
        assert_eq!(patience(None).for_answer(ready(1), None).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_bounds_connecting_and_waiting_alike() {
        let late = Err(after(TimeoutPhase::Total, FIVE));
        let connecting = patience(Some(FIVE)).within_total(pending::<()>()).await;
        assert_eq!(connecting, late);
        let waiting = patience(Some(FIVE)).for_answer(pending::<()>(), None).await;
        assert_eq!(waiting, late);
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_may_have_to_be_there_before_all_has_to_be_over() {
        let patience = Patience::from_now(Timeouts::default(), Some(FIVE));
        let waiting = patience.for_answer(pending::<()>(), None).await;
        assert_eq!(waiting, Err(after(TimeoutPhase::Total, FIVE)));
        assert_eq!(patience.deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_not_to_blame_for_the_time_that_others_took() {
        for (before, is_servers) in [(2, true), (3, false)] {
            let patience = patience(Some(FIVE));
            tokio::time::sleep(Duration::from_secs(before)).await;
            let late = OutOfPatience {
                is_servers,
                ..after(TimeoutPhase::Total, FIVE)
            };
            let waiting = patience.for_answer(pending::<()>(), None).await;
            assert_eq!(waiting, Err(late));
        }
    }
}
