//! Restriction of claims of idempotency keys after the disk store has failed.

use std::time::{Duration, Instant};

use crate::idempotency::StoreError;

/// If there were no timeout, one slow upstream would block the claims of all routes.
const FIRST_EXECUTION_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) enum ClaimAdmission {
    /// The store works.
    All,
    /// The store was reopened and can fail again. One claim is admitted at a time, until its execution is recorded on
    /// disk or [`FIRST_EXECUTION_TIMEOUT`] has passed.
    One {
        /// Last claim before the reopening.
        last_before: u64,
        /// Of the last claim since the reopening.
        admitted: Option<Instant>,
    },
    /// The error is the reason.
    None(StoreError),
}

impl ClaimAdmission {
    /// `last_claim` is the number of the last claim before the reopening.
    pub(super) fn after_reopening(last_claim: u64) -> Self {
        Self::One {
            last_before: last_claim,
            admitted: None,
        }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self, Self::All)
    }

    pub(super) fn admit(&mut self, now: Instant) -> Result<(), StoreError> {
        match self {
            Self::All => Ok(()),
            Self::One { admitted, .. } => {
                if admitted.is_some_and(|last| {
                    now.saturating_duration_since(last) < FIRST_EXECUTION_TIMEOUT
                }) {
                    return Err(StoreError::known(
                        "the idempotency store was reopened after a failure and admits one execution at a time until a \
                         response is on disk",
                    ));
                }
                *admitted = Some(now);
                Ok(())
            }
            Self::None(reason) => Err(reason.clone()),
        }
    }

    /// The outcome of claim `number` is on disk. If it was won after the reopening, all claims are admitted again.
    pub(super) fn execution_recorded(&mut self, number: u64) {
        if let Self::One { last_before, .. } = self
            && number > *last_before
        {
            *self = Self::All;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_reopening_one_execution_is_admitted_until_it_is_recorded() {
        let now = Instant::now();
        let mut admission = ClaimAdmission::after_reopening(7);
        assert!(admission.admit(now).is_ok());
        assert!(admission.admit(now).is_err());
        // An execution that began before the store was reopened does not lift the restriction.
        admission.execution_recorded(7);
        assert!(admission.admit(now).is_err());
        admission.execution_recorded(8);
        assert!(admission.is_unlimited());
        assert!(admission.admit(now).is_ok());
    }

    #[test]
    fn a_slow_first_execution_blocks_further_claims_only_until_its_timeout() {
        let now = Instant::now();
        let mut admission = ClaimAdmission::after_reopening(0);
        assert!(admission.admit(now).is_ok());
        assert!(admission.admit(now + FIRST_EXECUTION_TIMEOUT / 2).is_err());
        assert!(admission.admit(now + FIRST_EXECUTION_TIMEOUT).is_ok());
        assert!(admission.admit(now + FIRST_EXECUTION_TIMEOUT).is_err());
    }

    #[test]
    fn a_store_that_admits_no_claims_is_not_changed_by_a_recorded_execution() {
        let mut admission = ClaimAdmission::None(StoreError::known("full"));
        assert!(admission.admit(Instant::now()).is_err());
        admission.execution_recorded(1);
        assert!(!admission.is_unlimited());
    }
}
