//! How long upstream is waited for.
//!
//! The wait for an answer begins when the request's last byte has gone out. While the client is still
//! sending, it is the client that is waited for, and its own deadline that counts; an upstream that stops
//! taking what the client sends is as silent as one that does not answer.

use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::Timeouts;
use super::upload::Progress;

/// How long one exchange may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    started: Instant,
    timeouts: Timeouts,
}

/// Upstream took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("upstream was waited for {0:?} in vain")]
pub struct OutOfPatience(pub Duration);

impl Patience {
    /// For an exchange that begins now.
    pub fn from_now(timeouts: Timeouts) -> Self {
        Self {
            started: Instant::now(),
            timeouts,
        }
    }

    /// When the exchange has to be over, if that is bounded.
    pub fn deadline(&self) -> Option<Instant> {
        self.timeouts.total.map(|total| self.started + total)
    }

    /// How long upstream may be silent amid its answer.
    pub fn idle(&self) -> Duration {
        self.timeouts.idle
    }

    /// Waits for `work`, but not past the exchange's end.
    pub async fn within_total<F: Future>(&self, work: F) -> Result<F::Output, OutOfPatience> {
        match self.deadline() {
            None => Ok(work.await),
            Some(deadline) => timeout_at(deadline, work)
                .await
                .map_err(|_| self.out_of_patience()),
        }
    }

    /// Waits for the `answer` to a request with this `upload`.
    pub async fn for_answer<F: Future>(
        &self,
        answer: F,
        upload: Option<&Progress>,
    ) -> Result<F::Output, OutOfPatience> {
        let mut answer = std::pin::pin!(answer);
        let total = self.deadline();
        let began = Instant::now();
        let mut silent = began + self.timeouts.first_byte;
        loop {
            let until = total.map_or(silent, |total| total.min(silent));
            if let Ok(outcome) = timeout_at(until, answer.as_mut()).await {
                return Ok(outcome);
            }
            let now = Instant::now();
            let since = match upload {
                None => began,
                Some(upload) if upload.waits_for_client() => now,
                Some(upload) => upload.last_passed(),
            };
            silent = since + self.timeouts.first_byte;
            if silent <= now || total.is_some_and(|total| total <= now) {
                return Err(self.out_of_patience());
            }
        }
    }

    fn out_of_patience(&self) -> OutOfPatience {
        OutOfPatience(self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn patience(total: Option<Duration>) -> Patience {
        Patience::from_now(Timeouts {
            first_byte: Duration::from_secs(30),
            total,
            ..Timeouts::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_as_long_as_the_first_byte_may_take() {
        let waited = patience(None).for_answer(pending::<()>(), None).await;
        assert_eq!(waited, Err(OutOfPatience(Duration::from_secs(30))));
        assert_eq!(patience(None).for_answer(ready(1), None).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_bounds_connecting_and_waiting_alike() {
        let five = Duration::from_secs(5);
        let connecting = patience(Some(five)).within_total(pending::<()>()).await;
        assert_eq!(connecting, Err(OutOfPatience(five)));
        let waiting = patience(Some(five)).for_answer(pending::<()>(), None).await;
        assert_eq!(waiting, Err(OutOfPatience(five)));
    }
}
