//! Measures how late the timers of the gateway expire, which limits the accuracy of all measured times.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_millis(20);

/// Maximum delay that is told apart, in milliseconds. Longer delays count as this one.
const MAX_MILLIS: usize = 200;

/// Number of measured delays by their length in milliseconds.
#[derive(Debug)]
pub(super) struct TimerDelay(Mutex<[u64; MAX_MILLIS + 1]>);

impl Default for TimerDelay {
    fn default() -> Self {
        Self(Mutex::new([0; MAX_MILLIS + 1]))
    }
}

impl TimerDelay {
    /// Measures delays until the task is dropped.
    pub(super) async fn measure(self: Arc<Self>) {
        loop {
            let due = Instant::now() + INTERVAL;
            sleep_until(due).await;
            self.record(due.elapsed());
        }
    }

    fn record(&self, delay: Duration) {
        let millis = usize::try_from(delay.as_millis()).unwrap_or(MAX_MILLIS);
        self.0.lock()[millis.min(MAX_MILLIS)] += 1;
    }

    /// Returns the 99th percentile of all delays, rounded up to a millisecond. Zero if nothing was measured.
    pub(super) fn percentile_99(&self) -> Duration {
        let counts = self.0.lock();
        let total: u64 = counts.iter().sum();
        let rank = (total * 99).div_ceil(100);
        let mut seen = 0;
        for (millis, count) in (1..).zip(counts.iter()) {
            seen += count;
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
        assert_eq!(delay.percentile_99(), Duration::ZERO);
        for _ in 0..99 {
            delay.record(Duration::from_micros(1_100));
        }
        delay.record(Duration::from_secs(5));
        assert_eq!(delay.percentile_99(), Duration::from_millis(2));
        delay.record(Duration::from_secs(5));
        assert_eq!(delay.percentile_99(), Duration::from_millis(201));
    }
}
