//! Which claims a store admits after it failed.

use std::time::{Duration, Instant};

use crate::idempotency::StoreError;

/// How long the first execution after a reopening may take before the store admits another one. Without this
/// bound a slow upstream would keep the store closed for all routes.
const TRIAL: Duration = Duration::from_secs(2);

/// Which claims a store admits.
pub(super) enum Admission {
    /// The store works: all claims.
    All,
    /// The store was reopened: one execution, until its end is on disk.
    One {
        /// Claims with a higher number were made since the reopening.
        since: u64,
        /// When the last claim was admitted.
        admitted: Option<Instant>,
    },
    /// No claim, for this reason.
    None(StoreError),
}

impl Admission {
    /// Returns the admission after a reopening; `last_claim` is the number of the last claim before it.
    pub(super) fn after_reopening(last_claim: u64) -> Self {
        Self::One {
            since: last_claim,
            admitted: None,
        }
    }

    /// Whether all claims are admitted.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self, Self::All)
    }

    /// Admits a claim, or says why not.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), StoreError> {
        match self {
            Self::All => Ok(()),
            Self::One { admitted, .. } => {
                if admitted.is_some_and(|last| now.saturating_duration_since(last) < TRIAL) {
                    return Err(StoreError::known(
                        "the store was reopened and admits one execution until its end is on disk",
                    ));
                }
                *admitted = Some(now);
                Ok(())
            }
            Self::None(reason) => Err(reason.clone()),
        }
    }

    /// The end of the execution with this number is on disk.
    pub(super) fn concluded(&mut self, number: u64) {
        if let Self::One { since, .. } = self
            && number > *since
        {
            *self = Self::All;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_reopening_one_execution_is_admitted_until_its_end_is_on_disk() {
        let now = Instant::now();
        let mut admission = Admission::after_reopening(7);
        assert!(admission.admit(now).is_ok());
        assert!(admission.admit(now).is_err());
        // Executions from before the failure prove nothing about new ones.
        admission.concluded(7);
        assert!(admission.admit(now).is_err());
        admission.concluded(8);
        assert!(admission.is_unlimited());
        assert!(admission.admit(now).is_ok());
    }

    #[test]
    fn an_execution_that_takes_long_does_not_keep_the_store_closed() {
        let now = Instant::now();
        let mut admission = Admission::after_reopening(0);
        assert!(admission.admit(now).is_ok());
        assert!(admission.admit(now + TRIAL / 2).is_err());
        assert!(admission.admit(now + TRIAL).is_ok());
        assert!(admission.admit(now + TRIAL).is_err());
    }

    #[test]
    fn a_store_without_room_admits_no_claim() {
        let mut admission = Admission::None(StoreError::known("full"));
        assert!(admission.admit(Instant::now()).is_err());
        admission.concluded(1);
        assert!(!admission.is_unlimited());
    }
}
