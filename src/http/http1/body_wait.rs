//! How long the gateway waits for the next bytes of a request body, on HTTP/1 and HTTP/2.
//!
//! `body_timeout` limits a single pause. It does not limit a client that sends one byte in each pause, so `min_rate`
//! also limits the average rate. The time that a client can still take is a credit. It starts with 5 s, decreases while
//! the gateway waits for the client, and increases by one second for every `min_rate` bytes. Its maximum keeps a client
//! from sending a large part quickly and then occupying a server for hours.

use std::time::Duration;

use super::violation::Violation;
use crate::http::settings::ClientTimeouts;

/// Credit at the start of a body. A short body can arrive at any rate.
const START: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyWait {
    pause: Duration,
    /// Bytes per second; 0 if any rate is allowed.
    min_rate: u64,
    credit: Duration,
}

impl BodyWait {
    pub(crate) fn new(timeouts: &ClientTimeouts) -> Self {
        Self {
            pause: timeouts.body,
            min_rate: timeouts.min_rate,
            credit: START,
        }
    }

    /// The time until the next bytes must arrive, and the violation if they do not.
    pub(crate) fn limit(&self) -> (Duration, Violation) {
        if self.min_rate > 0 && self.credit < self.pause {
            (self.credit, Violation::BodyTooSlow)
        } else {
            self.longest_pause()
        }
    }

    /// The same for a client that is slow because of the gateway.
    pub(crate) fn longest_pause(&self) -> (Duration, Violation) {
        (self.pause, Violation::BodyTimeout)
    }

    pub(crate) fn received(&mut self, waited: Duration, bytes: usize) {
        if self.min_rate == 0 {
            return;
        }
        let earned = (bytes as u64).saturating_mul(1_000_000_000) / self.min_rate;
        let credit = self.credit.saturating_sub(waited) + Duration::from_nanos(earned);
        self.credit = credit.min(self.pause.max(START));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn body_wait(pause: u64, min_rate: u64) -> BodyWait {
        BodyWait::new(&ClientTimeouts {
            body: Duration::from_secs(pause),
            min_rate,
            ..ClientTimeouts::default()
        })
    }

    #[test]
    fn a_client_below_the_minimum_rate_is_too_slow_after_five_seconds_of_waiting() {
        let mut wait = body_wait(60, 1_000);
        for elapsed in 0..5 {
            let left = (5 - elapsed) * SECOND;
            assert_eq!(wait.limit(), (left, Violation::BodyTooSlow));
            wait.received(SECOND, 0);
        }
        assert_eq!(wait.limit().0, Duration::ZERO);
    }

    #[test]
    fn a_client_at_the_minimum_rate_can_send_forever() {
        let mut wait = body_wait(60, 1_000);
        for _ in 0..100_000 {
            wait.received(SECOND, 1_000);
        }
        assert_eq!(wait.limit().0, 5 * SECOND);
    }

    #[test]
    fn a_fast_client_can_pause_for_body_timeout_and_no_longer() {
        let mut wait = body_wait(60, 1_000);
        wait.received(Duration::ZERO, 10_000_000);
        assert_eq!(wait.limit(), (60 * SECOND, Violation::BodyTimeout));
        wait.received(59 * SECOND, 1);
        let (left, violation) = wait.limit();
        assert!(left < 2 * SECOND, "{wait:?}");
        assert_eq!(violation, Violation::BodyTooSlow);
    }

    #[test]
    fn time_without_waiting_does_not_count() {
        let mut wait = body_wait(60, 1_000);
        for _ in 0..100 {
            wait.received(Duration::ZERO, 1);
        }
        assert!(wait.limit().0 >= 5 * SECOND, "{wait:?}");
    }

    #[test]
    fn body_timeout_applies_if_it_is_shorter_than_the_credit_or_no_minimum_rate_is_set() {
        for mut wait in [body_wait(2, 1_000), body_wait(60, 0)] {
            let pause = wait.pause;
            assert_eq!(wait.limit(), (pause, Violation::BodyTimeout));
            wait.received(pause / 2, 1);
            assert_eq!(wait.limit(), (pause, Violation::BodyTimeout));
        }
    }

    #[test]
    fn a_rate_or_size_at_the_end_of_the_range_does_not_overflow() {
        for min_rate in [1, u64::MAX] {
            let mut wait = body_wait(60, min_rate);
            wait.received(Duration::MAX, usize::MAX);
            assert!(wait.limit().0 <= 60 * SECOND, "{wait:?}");
        }
    }
}
