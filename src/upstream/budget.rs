//! Retry budget: the maximum number of retries of an upstream, over all requests.
//!
//! A maximum number of attempts per request bounds the cost of one request only. If every request fails, three attempts
//! triple the load on a server that already fails. The retry budget therefore bounds the retries of all requests: to a
//! ratio of the requests in a time window, plus a minimum rate. The minimum rate keeps retries possible if there is
//! little traffic.
//!
//! tower's `TpsBudget` implements the same idea, but takes a lock on every request and reads its own clock. Here a
//! request only writes its worker's shard of a [`SlidingWindow`]. A retry takes a lock, so that concurrent workers
//! cannot exceed the budget together. The bound applies to each window that ends with a retry. The budget does not
//! spread the retries within a window.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::settings::BudgetSettings;
use super::sliding_window::SlidingWindow;
use crate::clock::Moment;

/// Retry budget of one upstream, shared by all workers.
#[derive(Debug)]
#[repr(align(128))] // The alignment keeps the budget off cache lines that other values often write.
pub(crate) struct Budget {
    window: Duration,
    requests: Arc<SlidingWindow<1>>,
    ratio: f64,
    /// Number of retries that the minimum rate allows in one window.
    floor: f64,
    counts: Arc<Mutex<RetryCounts>>,
}

#[derive(Debug)]
struct RetryCounts {
    retries: SlidingWindow<1>,
    rejected: u64,
}

/// Counts of a retry budget at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetSnapshot {
    /// Number of requests in the window. Retries are not included.
    pub requests: u64,
    /// Number of retries in the window.
    pub retries: u64,
    /// Maximum number of retries in the window.
    pub allowed: u64,
    /// Number of retries that the budget has prevented since the gateway started.
    pub rejected: u64,
}

impl Budget {
    /// Creates a retry budget for this many workers, without requests and retries so far.
    pub(crate) fn new(settings: BudgetSettings, workers: usize) -> Self {
        let BudgetSettings {
            ratio,
            window,
            floor,
        } = settings;
        Self {
            window,
            requests: Arc::new(SlidingWindow::new(window, workers)),
            ratio,
            floor: f64::from(floor) * window.as_secs_f64(),
            counts: Arc::new(Mutex::new(RetryCounts {
                retries: SlidingWindow::new(window, 1),
                rejected: 0,
            })),
        }
    }

    /// Returns the budget under new settings. Both share their counts, unless the length of the window has changed.
    pub(crate) fn renewed(&self, settings: BudgetSettings, workers: usize) -> Self {
        let new = Self::new(settings, workers);
        if self.window != new.window {
            new.counts.lock().rejected = self.counts.lock().rejected;
            return new;
        }
        Self {
            requests: Arc::clone(&self.requests),
            counts: Arc::clone(&self.counts),
            ..new
        }
    }

    /// Counts a request, which raises the number of allowed retries. The caller must not call this for retries.
    pub(crate) fn request(&self, worker: usize, now: Moment) {
        self.requests.add(worker, 0, now);
    }

    /// Charges a retry to the budget. Returns `false` if the budget is used up. In that case the request must not be
    /// retried.
    pub(crate) fn withdraw(&self, now: Moment) -> bool {
        let mut counts = self.counts.lock();
        let [retries] = counts.retries.sum(now);
        let granted = retries < self.allowed(now);
        if granted {
            counts.retries.add(0, 0, now);
        } else {
            counts.rejected += 1;
        }
        granted
    }

    #[cfg(test)]
    pub(crate) fn rejected(&self) -> u64 {
        self.counts.lock().rejected
    }

    pub(crate) fn snapshot(&self, now: Moment) -> BudgetSnapshot {
        let counts = self.counts.lock();
        let [requests] = self.requests.sum(now);
        let [retries] = counts.retries.sum(now);
        BudgetSnapshot {
            requests,
            retries,
            allowed: self.allowed(now),
            rejected: counts.rejected,
        }
    }

    /// Returns the maximum number of retries in the window that ends at `now`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of a window are far below 2^52, and a cast from a float saturates"
    )]
    fn allowed(&self, now: Moment) -> u64 {
        let [requests] = self.requests.sum(now);
        (self.ratio * requests as f64 + self.floor) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::super::sliding_window::SLOTS;
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn budget(ratio: f64, floor: u32) -> Budget {
        let settings = BudgetSettings {
            ratio,
            window: WINDOW,
            floor,
        };
        Budget::new(settings, 2)
    }

    fn withdrawn(budget: &Budget, now: Moment) -> u64 {
        let mut granted = 0;
        while budget.withdraw(now) {
            granted += 1;
        }
        granted
    }

    #[test]
    fn without_requests_the_minimum_rate_is_the_maximum() {
        let budget = budget(0.1, 3);
        assert_eq!(withdrawn(&budget, at(0)), 30);
        assert_eq!(withdrawn(&budget, at(9_999)), 0);
        assert_eq!(withdrawn(&budget, at(10_000)), 30);
    }

    #[test]
    fn a_ratio_of_a_tenth_counts_the_requests_of_all_workers() {
        let budget = budget(0.1, 0);
        for _ in 0..9 {
            budget.request(0, at(0));
        }
        assert!(!budget.withdraw(at(0)));
        budget.request(1, at(0));
        assert!(budget.withdraw(at(0)));
        assert!(!budget.withdraw(at(0)));
    }

    #[test]
    fn requests_before_the_window_do_not_count() {
        let budget = budget(0.5, 0);
        budget.request(0, at(0));
        budget.request(0, at(0));
        assert!(!budget.withdraw(at(10_000)));
    }

    #[test]
    fn a_rejected_retry_is_counted_and_not_charged() {
        let budget = budget(0.5, 0);
        budget.request(0, at(0));
        assert!(!budget.withdraw(at(0)));
        assert!(!budget.withdraw(at(0)));
        budget.request(0, at(0));
        assert!(budget.withdraw(at(0)));
        assert_eq!(budget.rejected(), 2);
        assert_eq!(
            budget.snapshot(at(0)),
            BudgetSnapshot {
                requests: 2,
                retries: 1,
                allowed: 1,
                rejected: 2,
            }
        );
    }

    #[test]
    fn a_slightly_earlier_time_gives_no_additional_retries() {
        let budget = budget(0.0, 1);
        assert_eq!(withdrawn(&budget, at(1_000)), 10);
        assert_eq!(withdrawn(&budget, at(11_000)), 10);
        assert_eq!(withdrawn(&budget, at(10_999)), 0);
    }

    #[test]
    fn concurrent_retries_do_not_exceed_the_budget() {
        let budget = budget(0.1, 3);
        let granted: u64 = thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..1_000).filter(|_| budget.withdraw(at(0))).count()))
                .collect();
            callers
                .into_iter()
                .map(|caller| caller.join().unwrap() as u64)
                .sum()
        });
        assert_eq!(granted, 30);
        assert_eq!(budget.rejected(), 8_000 - 30);
    }

    #[test]
    fn if_all_requests_fail_for_a_minute_retries_stay_within_ratio_and_minimum_rate() {
        for per_second in [1_u64, 20, 1_000] {
            let budget = budget(0.1, 3);
            let mut load = 0;
            let offered = 60 * per_second;
            for request in 0..offered {
                let now = at(request * 1_000 / per_second);
                budget.request(0, now);
                load += 1;
                // Each request is retried twice, as far as the budget allows.
                load += u64::from(budget.withdraw(now)) + u64::from(budget.withdraw(now));
            }
            let most = offered + offered / 10 + 3 * 60;
            println!("{per_second}/s offered: {load} sent in a minute, {most} at most");
            assert!(load <= most, "{per_second}/s: {load} > {most}");
            let unbounded = 3 * offered;
            assert!(
                load >= unbounded.min(most * 95 / 100),
                "{per_second}/s: {load}"
            );
        }
    }

    proptest! {
        #[test]
        fn retries_in_a_window_that_ends_with_a_retry_stay_within_the_budget(
            floor in 0_u32..3,
            steps in prop::collection::vec((0_u64..700, 0_u32..40, 0_u32..40), 1..150),
        ) {
            let budget = budget(0.1, floor);
            let (mut millis, mut requests, mut retries) = (0, Vec::new(), Vec::new());
            for (step, received, wanted) in steps {
                millis += step;
                let slot = millis / 1_000;
                for _ in 0..received {
                    budget.request(0, at(millis));
                    requests.push(slot);
                }
                let granted = (0..wanted).filter(|_| budget.withdraw(at(millis))).count();
                retries.extend(std::iter::repeat_n(slot, granted));

                let within = |slots: &[u64]| slots.iter().filter(|of| **of + SLOTS > slot).count();
                let allowed = within(&requests) / 10 + 10 * floor as usize;
                prop_assert!(granted == 0 || within(&retries) <= allowed);
                let is_rejected = granted < wanted as usize;
                prop_assert!(!is_rejected || within(&retries) >= allowed, "rejected below the budget");
            }
            let windows = usize::try_from(millis / 10_000 + 1).unwrap();
            prop_assert!(retries.len() <= requests.len() / 10 + windows * 10 * floor as usize);
        }
    }
}
