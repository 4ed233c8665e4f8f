//! Health of the disk store, in the log, `/readyz` and the metrics.
//!
//! A failure lasts from the first failed write until claims are admitted again. Its start, its end and each further
//! reason are logged once. Errors of single requests are not logged, because there can be thousands per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::engine::POISONED;
use crate::idempotency::StoreError;
use crate::store::{Health, Part};

/// That are logged for one failure.
const MAX_REASONS: usize = 4;

/// For requests that are rejected because the writer thread does not respond.
const STALLED: &str = "the disk does not respond";

#[derive(Debug, Default)]
pub(super) struct HealthTracker {
    failures: AtomicU64,
    /// An operation timed out. New claims fail immediately instead of waiting.
    stalled: AtomicBool,
    failure: Mutex<Option<OngoingFailure>>,
}

#[derive(Debug)]
struct OngoingFailure {
    reason: Arc<str>,
    /// Reasons logged for this failure.
    logged: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureChange {
    Started,
    /// The reason was not logged yet.
    NewReason,
    /// The reason was logged, or [`MAX_REASONS`] is reached.
    Repeated,
}

impl HealthTracker {
    /// The caller logs the error as the [`FailureChange`] requires.
    pub(super) fn operation_failed(&self, error: &StoreError) -> FailureChange {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let reason = &error.reason;
        let mut failure = self.failure.lock();
        let Some(failure) = &mut *failure else {
            *failure = Some(OngoingFailure {
                reason: Arc::clone(reason),
                logged: vec![Arc::clone(reason)],
            });
            return FailureChange::Started;
        };
        if **reason == *POISONED {
            return FailureChange::Repeated;
        }
        failure.reason = Arc::clone(reason);
        if failure.logged.contains(reason) || failure.logged.len() >= MAX_REASONS {
            return FailureChange::Repeated;
        }
        failure.logged.push(Arc::clone(reason));
        FailureChange::NewReason
    }

    /// The caller logs the end of the failure.
    pub(super) fn store_recovered(&self) {
        self.stalled.store(false, Ordering::Relaxed);
        *self.failure.lock() = None;
    }

    /// An operation timed out. Logs the start of the stall, unless a failure is ongoing.
    pub(super) fn writer_stalled(&self) -> StoreError {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let was_stalled = self.stalled.swap(true, Ordering::Relaxed);
        if !was_stalled && self.failure.lock().is_none() {
            tracing::error!(
                reason = STALLED,
                "idempotency store failed, requests whose idempotency key is not in memory are rejected until the disk \
                 responds"
            );
        }
        StoreError::known(STALLED)
    }

    /// Logs the end of a stall, unless a failure is ongoing.
    pub(super) fn writer_responded(&self) {
        if self.stalled.load(Ordering::Relaxed)
            && self.stalled.swap(false, Ordering::Relaxed)
            && self.failure.lock().is_none()
        {
            tracing::info!("idempotency store responds again");
        }
    }

    /// Fails during a stall.
    pub(super) fn check_writer(&self) -> Result<(), StoreError> {
        if self.stalled.load(Ordering::Relaxed) {
            return Err(StoreError::known(STALLED));
        }
        Ok(())
    }

    pub(super) fn health(&self) -> Health {
        let failure = self.failure.lock();
        let failed = failure.as_ref().map(|failure| Arc::clone(&failure.reason));
        let stalled = || self.check_writer().err().map(|error| error.reason);
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

    fn degraded(tracker: &HealthTracker) -> Option<String> {
        tracker.health().degraded.map(|reason| reason.to_string())
    }

    #[test]
    fn the_start_of_a_failure_and_each_further_reason_are_reported_once() {
        let tracker = HealthTracker::default();
        let [full, damaged] = ["full", "damaged"].map(StoreError::new);
        assert_eq!(degraded(&tracker), None);
        for _ in 0..2 {
            assert_eq!(tracker.operation_failed(&full), FailureChange::Started);
            assert_eq!(tracker.operation_failed(&full), FailureChange::Repeated);
            assert_eq!(tracker.operation_failed(&damaged), FailureChange::NewReason);
            assert_eq!(degraded(&tracker).as_deref(), Some("damaged"));
            assert_eq!(tracker.operation_failed(&full), FailureChange::Repeated);
            assert_eq!(degraded(&tracker).as_deref(), Some("full"));
            // `POISONED` only states that an earlier write failed, so the error of that write, `full`, remains the
            // reported reason.
            assert_eq!(
                tracker.operation_failed(&StoreError::new(POISONED)),
                FailureChange::Repeated
            );
            assert_eq!(degraded(&tracker).as_deref(), Some("full"));
            tracker.store_recovered();
            assert_eq!(degraded(&tracker), None);
        }
        assert_eq!(tracker.health().failures, 10);
    }

    #[test]
    fn a_failure_with_varying_reasons_is_logged_at_most_max_reasons_times() {
        let tracker = HealthTracker::default();
        let changes = (0..1_000).map(|number| tracker.operation_failed(&StoreError::new(number)));
        let lines = changes
            .filter(|&change| change != FailureChange::Repeated)
            .count();
        assert_eq!(lines, MAX_REASONS);
    }

    #[test]
    fn a_writer_that_does_not_respond_degrades_the_store_until_it_does() {
        let tracker = HealthTracker::default();
        assert!(tracker.check_writer().is_ok());
        assert!(!tracker.writer_stalled().is_new);
        assert!(tracker.check_writer().is_err());
        assert_eq!(degraded(&tracker).as_deref(), Some(STALLED));
        tracker.writer_responded();
        assert!(tracker.check_writer().is_ok());
        assert_eq!(degraded(&tracker), None);
    }
}
