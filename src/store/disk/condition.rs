//! Whether the disk store works, for operators.
//!
//! A failure lasts from the first failed write until the store admits claims again. It is logged when it begins and
//! when it ends. In between, `/readyz` and the metrics report it, and another reason is logged once. Errors of
//! single requests are not logged, because there can be thousands of them per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::engine::POISONED;
use crate::idempotency::StoreError;
use crate::store::{Health, Part};

/// Reasons of one failure that are logged. A failure whose reason varies must not fill the log either.
const MAX_REASONS: usize = 4;

/// The reason of requests that are rejected because the writer hangs.
const STALLED: &str = "the disk does not respond";

/// The condition of the store, shared by the writer and its callers.
#[derive(Debug, Default)]
pub(super) struct Condition {
    failures: AtomicU64,
    /// Whether the writer has not responded in time and may hang. Callers do not wait for it meanwhile.
    stalled: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// A failure that has not ended.
#[derive(Debug)]
struct Failure {
    reason: Arc<str>,
    /// Reasons that were logged since the failure began.
    logged: Vec<Arc<str>>,
}

/// What is new about a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The store worked before.
    Failure,
    /// The store had failed before for another reason.
    Reason,
    /// Nothing that is worth a line in the log.
    Nothing,
}

impl Condition {
    /// Notes that an operation failed, and returns what is new about it.
    pub(super) fn fail(&self, error: &StoreError) -> News {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let reason = &error.reason;
        let mut failure = self.failure.lock();
        let Some(failure) = &mut *failure else {
            *failure = Some(Failure {
                reason: Arc::clone(reason),
                logged: vec![Arc::clone(reason)],
            });
            return News::Failure;
        };
        if **reason == *POISONED {
            return News::Nothing;
        }
        failure.reason = Arc::clone(reason);
        if failure.logged.contains(reason) || failure.logged.len() >= MAX_REASONS {
            return News::Nothing;
        }
        failure.logged.push(Arc::clone(reason));
        News::Reason
    }

    /// Notes that the store works again.
    pub(super) fn recover(&self) {
        self.stalled.store(false, Ordering::Relaxed);
        *self.failure.lock() = None;
    }

    /// Notes that the writer has not responded in time, and returns the error for the caller.
    pub(super) fn stall(&self) -> StoreError {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let was_stalled = self.stalled.swap(true, Ordering::Relaxed);
        if !was_stalled && self.failure.lock().is_none() {
            tracing::error!(
                reason = STALLED,
                "idempotency store failed, rejecting requests whose key is not in memory until it works again"
            );
        }
        StoreError::known(STALLED)
    }

    /// Notes that the writer responds.
    pub(super) fn respond(&self) {
        if self.stalled.load(Ordering::Relaxed)
            && self.stalled.swap(false, Ordering::Relaxed)
            && self.failure.lock().is_none()
        {
            tracing::info!("idempotency store responds again");
        }
    }

    /// Fails if the writer may hang.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.stalled.load(Ordering::Relaxed) {
            return Err(StoreError::known(STALLED));
        }
        Ok(())
    }

    pub(super) fn health(&self) -> Health {
        let failure = self.failure.lock();
        let failed = failure.as_ref().map(|failure| Arc::clone(&failure.reason));
        let stalled = || self.check().err().map(|error| error.reason);
        Health {
            part: Part::Records,
            degraded: failed.or_else(stalled),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degraded(condition: &Condition) -> Option<String> {
        condition.health().degraded.map(|reason| reason.to_string())
    }

    #[test]
    fn a_failure_is_news_when_it_begins_and_each_reason_once() {
        let condition = Condition::default();
        let [full, damaged] = ["full", "damaged"].map(StoreError::new);
        assert_eq!(degraded(&condition), None);
        for _ in 0..2 {
            assert_eq!(condition.fail(&full), News::Failure);
            assert_eq!(condition.fail(&full), News::Nothing);
            assert_eq!(condition.fail(&damaged), News::Reason);
            assert_eq!(degraded(&condition).as_deref(), Some("damaged"));
            assert_eq!(condition.fail(&full), News::Nothing);
            assert_eq!(degraded(&condition).as_deref(), Some("full"));
            // Says less than the reason before it.
            assert_eq!(condition.fail(&StoreError::new(POISONED)), News::Nothing);
            assert_eq!(degraded(&condition).as_deref(), Some("full"));
            condition.recover();
            assert_eq!(degraded(&condition), None);
        }
        assert_eq!(condition.health().failures, 10);
    }

    #[test]
    fn a_failure_whose_reason_varies_is_news_only_a_few_times() {
        let condition = Condition::default();
        let news = (0..1_000).map(|number| condition.fail(&StoreError::new(number)));
        let lines = news.filter(|&news| news != News::Nothing).count();
        assert_eq!(lines, MAX_REASONS);
    }

    #[test]
    fn a_writer_that_hangs_degrades_the_store_until_it_responds() {
        let condition = Condition::default();
        assert!(condition.check().is_ok());
        assert!(!condition.stall().is_new);
        assert!(condition.check().is_err());
        assert_eq!(degraded(&condition).as_deref(), Some(STALLED));
        condition.respond();
        assert!(condition.check().is_ok());
        assert_eq!(degraded(&condition), None);
    }
}
