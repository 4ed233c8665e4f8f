//! Retry budget: the maximum number of retries of an upstream, over all requests.
//!
//! If every request fails, three attempts triple the load on a server that already fails. The retry budget bounds all
//! retries to a ratio of the requests in a time window, plus a minimum rate for little traffic. The bound applies to each
//! window that ends with a retry, and does not spread the retries within it. tower's `TpsBudget`
//! accepts windows of 1 s to 60 s only, rounds the ratio, and does not report its counts, which are metrics here.

use std::sync::Arc;

use parking_lot::Mutex;

use super::settings::BudgetSettings;
use super::sliding_window::SlidingWindow;
use crate::clock::Moment;

/// Indexes of [`BudgetCounts::window`].
const REQUESTS: usize = 0;
const RETRIES: usize = 1;

/// Retry budget of one upstream, shared by all workers.
#[derive(Debug)]
pub(crate) struct Budget {
    ratio: f64,
    /// Number of retries that the minimum rate allows in one window.
    floor: f64,
    counts: Arc<Mutex<BudgetCounts>>,
}

#[derive(Debug)]
struct BudgetCounts {
    window: SlidingWindow<2>,
    rejected: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetSnapshot {
    /// In the window, without retries.
    pub requests: u64,
    /// In the window.
    pub retries: u64,
    /// Maximum number of retries in the window.
    pub allowed: u64,
    /// Retries that the budget has prevented since the gateway started.
    pub rejected: u64,
}

impl Budget {
    pub(crate) fn new(settings: BudgetSettings) -> Self {
        let BudgetSettings {
            ratio,
            window,
            floor,
        } = settings;
        Self {
            ratio,
            floor: f64::from(floor) * window.as_secs_f64(),
            counts: Arc::new(Mutex::new(BudgetCounts {
                window: SlidingWindow::new(window),
                rejected: 0,
            })),
        }
    }

    /// Returns the budget under new settings. Both share their counts, which start again if the window changes.
    pub(crate) fn renewed(&self, settings: BudgetSettings) -> Self {
        self.counts.lock().window.set_length(settings.window);
        Self {
            counts: Arc::clone(&self.counts),
            ..Self::new(settings)
        }
    }

    /// Counts a request, which raises the number of allowed retries. Not to be called for retries.
    pub(crate) fn request(&self, now: Moment) {
        self.counts.lock().window.add(REQUESTS, now);
    }

    /// Charges a retry to the budget. Returns `false` if the budget is used up.
    pub(crate) fn withdraw(&self, now: Moment) -> bool {
        let mut counts = self.counts.lock();
        let [requests, retries] = counts.window.sum(now);
        let granted = retries < self.allowed(requests);
        if granted {
            counts.window.add(RETRIES, now);
        } else {
            counts.rejected += 1;
        }
        granted
    }

    pub(crate) fn snapshot(&self, now: Moment) -> BudgetSnapshot {
        let mut counts = self.counts.lock();
        let [requests, retries] = counts.window.sum(now);
        BudgetSnapshot {
            requests,
            retries,
            allowed: self.allowed(requests),
            rejected: counts.rejected,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of a window are far below 2^52, and a cast from a float saturates"
    )]
    fn allowed(&self, requests: u64) -> u64 {
        (self.ratio * requests as f64 + self.floor) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::sliding_window::SLOTS;
    use super::super::tests::at_once;
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
        Budget::new(settings)
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
    fn a_ratio_of_a_tenth_allows_one_retry_for_ten_requests() {
        let budget = budget(0.1, 0);
        for _ in 0..9 {
            budget.request(at(0));
        }
        assert!(!budget.withdraw(at(0)));
        budget.request(at(0));
        assert!(budget.withdraw(at(0)));
        assert!(!budget.withdraw(at(0)));
    }

    #[test]
    fn a_rejected_retry_is_counted_and_not_charged() {
        let budget = budget(0.5, 0);
        budget.request(at(0));
        assert!(!budget.withdraw(at(0)));
        assert!(!budget.withdraw(at(0)));
        budget.request(at(0));
        assert!(budget.withdraw(at(0)));
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
    fn concurrent_retries_do_not_exceed_the_budget() {
        for _ in 0..5_000 {
            let budget = budget(0.1, 1);
            assert!((0..9).all(|_| budget.withdraw(at(0))));
            let granted = at_once([at(0); 2], |now| budget.withdraw(now).then_some(()));
            assert_eq!(granted.len(), 1);
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
                    budget.request(at(millis));
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
