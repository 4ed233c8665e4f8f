//! How many retries an upstream is sent, all requests together.
//!
//! Attempts per request bound what one caller costs, and no more: when every request fails, three
//! attempts are three times the load, on a server that fails under a single one. A budget says what
//! retries may add to the traffic as a whole: a part of it, and a floor, so that a quiet upstream is
//! retried at all. tower's `TpsBudget` is the same idea; it takes a lock with every request and reads a
//! clock that is not ours. Here a request writes its worker's shard of a [tally](super::tally), and only a
//! retry takes a lock, so that sum and count are one step and the bound holds whoever races. It holds for
//! the window that ends with any retry; how the retries lie within it, bunched or spread, is not its care.

use parking_lot::Mutex;

use super::settings::BudgetSettings;
use super::sliding_window::SlidingWindow;
use crate::clock::Moment;

/// The retries of one upstream, shared by all workers.
#[derive(Debug)]
#[repr(align(128))] // so that what stands beside it may be written all the time
pub(crate) struct Budget {
    requests: SlidingWindow<1>,
    ratio: f64,
    /// What the floor comes to in a window.
    floor: f64,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    retries: SlidingWindow<1>,
    refused: u64,
}

/// A budget as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Requests in the window, retries not among them.
    pub requests: u64,
    /// Retries in the window.
    pub retries: u64,
    /// Retries there may be in the window.
    pub allowed: u64,
    /// Retries that were refused, ever.
    pub refused: u64,
}

impl Budget {
    /// A budget with nothing spent, for this many workers.
    pub(crate) fn new(settings: BudgetSettings, workers: usize) -> Self {
        let BudgetSettings {
            ratio,
            window,
            floor,
        } = settings;
        Self {
            requests: SlidingWindow::new(window, workers),
            ratio,
            floor: f64::from(floor) * window.as_secs_f64(),
            account: Mutex::new(Account {
                retries: SlidingWindow::new(window, 1),
                refused: 0,
            }),
        }
    }

    /// A request was taken up; its retries are not.
    pub(crate) fn request(&self, worker: usize, now: Moment) {
        self.requests.add(worker, 0, now);
    }

    /// Takes out a retry that is about to be made, if there is one left.
    pub(crate) fn withdraw(&self, now: Moment) -> bool {
        let mut account = self.account.lock();
        let [retries] = account.retries.sum(now);
        let granted = retries < self.allowed(now);
        if granted {
            account.retries.add(0, 0, now);
        } else {
            account.refused += 1;
        }
        granted
    }

    #[cfg(test)]
    pub(crate) fn refused(&self) -> u64 {
        self.account.lock().refused
    }

    pub(crate) fn snapshot(&self, now: Moment) -> Snapshot {
        let account = self.account.lock();
        let [requests] = self.requests.sum(now);
        let [retries] = account.retries.sum(now);
        Snapshot {
            requests,
            retries,
            allowed: self.allowed(now),
            refused: account.refused,
        }
    }

    /// Retries there may be in the window that ends at `now`.
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
    use std::time::Duration;

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
    fn a_quiet_upstream_has_its_floor_and_no_more() {
        let budget = budget(0.1, 3);
        assert_eq!(withdrawn(&budget, at(0)), 30);
        assert_eq!(withdrawn(&budget, at(9_999)), 0);
        assert_eq!(withdrawn(&budget, at(10_000)), 30);
    }

    #[test]
    fn a_tenth_of_the_requests_of_all_workers_may_be_retried() {
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
    fn requests_that_left_the_window_earn_nothing() {
        let budget = budget(0.5, 0);
        budget.request(0, at(0));
        budget.request(0, at(0));
        assert!(!budget.withdraw(at(10_000)));
    }

    #[test]
    fn what_was_refused_is_counted_and_costs_nothing() {
        let budget = budget(0.5, 0);
        budget.request(0, at(0));
        assert!(!budget.withdraw(at(0)));
        assert!(!budget.withdraw(at(0)));
        budget.request(0, at(0));
        assert!(budget.withdraw(at(0)));
        assert_eq!(budget.refused(), 2);
        assert_eq!(
            budget.snapshot(at(0)),
            Snapshot {
                requests: 2,
                retries: 1,
                allowed: 1,
                refused: 2,
            }
        );
    }

    #[test]
    fn a_worker_whose_clock_is_behind_cannot_spend_what_was_spent() {
        let budget = budget(0.0, 1);
        assert_eq!(withdrawn(&budget, at(1_000)), 10);
        assert_eq!(withdrawn(&budget, at(11_000)), 10);
        assert_eq!(withdrawn(&budget, at(10_999)), 0);
    }

    #[test]
    fn racing_callers_never_get_more_than_there_is() {
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
        assert_eq!(budget.refused(), 8_000 - 30);
    }

    #[test]
    fn when_every_request_fails_for_a_minute_the_load_grows_by_a_tenth_and_the_floor() {
        for per_second in [1_u64, 20, 1_000] {
            let budget = budget(0.1, 3);
            let mut load = 0;
            let offered = 60 * per_second;
            for request in 0..offered {
                let now = at(request * 1_000 / per_second);
                budget.request(0, now);
                load += 1;
                // Two retries were all that three attempts allow.
                load += u64::from(budget.withdraw(now)) + u64::from(budget.withdraw(now));
            }
            let most = offered + offered / 10 + 3 * 60;
            println!("{per_second}/s offered: {load} sent in a minute, {most} at most");
            assert!(load <= most, "{per_second}/s: {load} > {most}");
            let wanted = 3 * offered;
            assert!(
                load >= wanted.min(most * 95 / 100),
                "{per_second}/s: {load}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_window_that_ends_with_a_retry_has_more_of_them_than_its_requests_allow(
            floor in 0_u32..3,
            steps in prop::collection::vec((0_u64..700, 0_u32..40, 0_u32..40), 1..150),
        ) {
            let budget = budget(0.1, floor);
            let (mut millis, mut requests, mut retries) = (0, Vec::new(), Vec::new());
            for (step, taken_up, wanted) in steps {
                millis += step;
                let slot = millis / 1_000;
                for _ in 0..taken_up {
                    budget.request(0, at(millis));
                    requests.push(slot);
                }
                let granted = (0..wanted).filter(|_| budget.withdraw(at(millis))).count();
                retries.extend(std::iter::repeat_n(slot, granted));

                let within = |slots: &[u64]| slots.iter().filter(|of| **of + SLOTS > slot).count();
                let allowed = within(&requests) / 10 + 10 * floor as usize;
                prop_assert!(granted == 0 || within(&retries) <= allowed);
                let wanted_more = granted < wanted as usize;
                prop_assert!(!wanted_more || within(&retries) >= allowed, "refused for nothing");
            }
            let windows = usize::try_from(millis / 10_000 + 1).unwrap();
            prop_assert!(retries.len() <= requests.len() / 10 + windows * 10 * floor as usize);
        }
    }
}
