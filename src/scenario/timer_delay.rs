//! Measures how late the timers of the gateway expire, which limits the accuracy of all measured times.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

const INTERVAL: Duration = Duration::from_millis(20);

/// Maximum delay that is distinguished, in milliseconds. Longer delays count as this one.
const MAX_MILLIS: usize = 200;

/// Time after which measurements are dropped, at the earliest. A run of the lab is rarely longer.
const PERIOD: Duration = Duration::from_mins(5);

/// Delays of the last [`PERIOD`], and of up to one more.
#[derive(Debug, Default)]
pub(super) struct TimerDelay(Mutex<Measured>);

#[derive(Debug)]
struct Measured {
    /// By their length in milliseconds: of the current period, and of the period before it.
    counts: [[u64; MAX_MILLIS + 1]; 2],
    /// `None` before the first measurement.
    since: Option<Instant>,
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            counts: [[0; MAX_MILLIS + 1]; 2],
            since: None,
        }
    }
}

impl TimerDelay {
    /// Measures delays until the task is dropped.
    pub(super) async fn measure(self: Arc<Self>) {
        loop {
            let due = Instant::now() + INTERVAL;
            sleep_until(due).await;
            self.add(due.elapsed(), Instant::now());
        }
    }

    fn add(&self, delay: Duration, now: Instant) {
        let millis = usize::try_from(delay.as_millis()).unwrap_or(MAX_MILLIS);
        let mut measured = self.0.lock();
        let since = *measured.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= PERIOD {
            measured.counts[1] = measured.counts[0];
            measured.counts[0] = [0; MAX_MILLIS + 1];
            measured.since = Some(now);
        }
        measured.counts[0][millis.min(MAX_MILLIS)] += 1;
    }

    /// Rounded up to a millisecond. Zero if nothing was measured.
    pub(super) fn percentile_99(&self) -> Duration {
        let [current, before] = self.0.lock().counts;
        let total: u64 = current.iter().chain(&before).sum();
        let rank = (total * 99).div_ceil(100);
        let mut seen = 0;
        for (millis, (current, before)) in (1..).zip(current.iter().zip(&before)) {
            seen += current + before;
            if seen >= rank && total > 0 {
                return Duration::from_millis(millis);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_of_the_delays_is_longer_than_the_percentile() {
        let delay = TimerDelay::default();
        let now = Instant::now();
        assert_eq!(delay.percentile_99(), Duration::ZERO);
        for _ in 0..99 {
            delay.add(Duration::from_micros(1_100), now);
        }
        delay.add(Duration::from_secs(5), now);
        assert_eq!(delay.percentile_99(), Duration::from_millis(2));
        delay.add(Duration::from_secs(5), now);
        assert_eq!(delay.percentile_99(), Duration::from_millis(201));
    }

    #[test]
    fn old_delays_are_dropped() {
        let delay = TimerDelay::default();
        let start = Instant::now();
        delay.add(Duration::from_millis(150), start);
        delay.add(Duration::ZERO, start + PERIOD);
        assert_eq!(delay.percentile_99(), Duration::from_millis(151));
        delay.add(Duration::ZERO, start + 2 * PERIOD);
        assert_eq!(delay.percentile_99(), Duration::from_millis(1));
    }
}
