//! A claim decides whether a request is executed, waits, gets a stored response or is rejected.
//!
//! The pure function [`decide_claim`] decides for all stores except Redis, which only look up the record and apply the
//! decision atomically. Redis decides in the script `claim.lua`, because only a script is atomic there. A test compares
//! the script with the function on random histories.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::rule::OnUnknown;
use super::{
    ClaimRejection, ClientHash, Fingerprint, Permit, RecordId, RecordState, StoredResponse, Waiter,
};
use crate::clock::Moment;

/// What a request claims its key with.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// Time of the claim, on the monotonic clock of this process.
    pub at: Moment,
    /// Hashes of the key and its scope.
    pub id: RecordId,
    /// Hash of the address of the client.
    pub client: ClientHash,
    /// Fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// Settings of the route.
    pub settings: RecordSettings,
}

/// Settings of a route that a store applies to its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// How long a record is kept after its execution has ended.
    pub ttl: Duration,
    /// Whether a key whose outcome is unknown can be claimed again.
    pub on_unknown: OnUnknown,
    /// Maximum number of unexpired keys in one scope; `NonZeroU32::MAX` for no maximum, because stores count the keys
    /// of a scope in 32 bits.
    pub max_keys_per_scope: NonZeroU32,
}

/// Result of a claim on a key.
#[derive(Debug)]
pub enum Claim {
    /// The request must be executed.
    Won(Permit),
    /// Stored response to an equal request.
    Replay(Arc<StoredResponse>),
    /// An equal request is in flight.
    InFlight(Waiter),
    /// The request must not be executed.
    Rejected(ClaimRejection),
}

/// What decides a claim on the key of a record. `T` is a time on the clock of the store, `F` an execution in flight,
/// and `R` a stored response. `F` and `R` are [`Infallible`] in a store that has no such records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<T, F, R> {
    pub state: StateView<F, R>,
    pub fingerprint: Fingerprint,
    /// `None` while the execution is in flight, or if its end could not be recorded.
    pub expires: Option<T>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StateView<F, R> {
    InFlight(F),
    Completed(R),
    Unknown,
    Tombstone,
}

/// For a key that has a record. Without one, only the numbers of keys of scope, client and store count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimDecision<F, R> {
    /// The claim replaces the record, so the number of keys does not change.
    Available,
    InFlight(F),
    Replay(R),
    Rejected(ClaimRejection),
}

pub(crate) fn decide_claim<T: PartialOrd + Copy, F, R>(
    record: RecordView<T, F, R>,
    request: &ClaimRequest,
    now: T,
) -> ClaimDecision<F, R> {
    if record.expires.is_some_and(|expires| expires <= now) {
        return ClaimDecision::Available;
    }
    if let Some(mismatch) = request.fingerprint.differs_from(&record.fingerprint) {
        return ClaimDecision::Rejected(ClaimRejection::KeyReused(mismatch));
    }
    match record.state {
        StateView::InFlight(execution) => ClaimDecision::InFlight(execution),
        StateView::Completed(response) => ClaimDecision::Replay(response),
        StateView::Tombstone => ClaimDecision::Rejected(ClaimRejection::ResponseNotRetained),
        StateView::Unknown => match request.settings.on_unknown {
            OnUnknown::Hold => ClaimDecision::Rejected(ClaimRejection::OutcomeUnknown),
            OnUnknown::Release => ClaimDecision::Available,
        },
    }
}

impl<F, R> StateView<F, R> {
    /// A completed record whose response was evicted is a tombstone.
    pub(crate) fn ended(state: RecordState, response: Option<R>) -> Self {
        match (state, response) {
            (RecordState::Completed, Some(response)) => Self::Completed(response),
            (RecordState::Completed | RecordState::Tombstone, _) => Self::Tombstone,
            (RecordState::Unknown | RecordState::InProgress, _) => Self::Unknown,
        }
    }
}

impl RecordSettings {
    /// Whether a scope with this many unexpired keys can claim no further key.
    pub fn is_scope_full(&self, keys: u32) -> bool {
        keys >= self.max_keys_per_scope.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::{KeyHash, Mismatch, ScopeHash};

    const FIRST: Fingerprint = Fingerprint {
        request: [1; 16],
        credentials: [1; 16],
    };

    fn request(on_unknown: OnUnknown) -> ClaimRequest {
        ClaimRequest {
            at: Moment::default(),
            id: RecordId {
                key: KeyHash([1; 16]),
                scope: ScopeHash([1; 16]),
            },
            client: ClientHash(1),
            fingerprint: FIRST,
            settings: RecordSettings {
                on_unknown,
                ..RecordSettings::default()
            },
        }
    }

    fn view(state: StateView<(), ()>) -> RecordView<u64, (), ()> {
        RecordView {
            state,
            fingerprint: FIRST,
            expires: Some(20),
        }
    }

    const AVAILABLE: ClaimDecision<(), ()> = ClaimDecision::Available;

    #[test]
    fn a_claim_of_an_equal_request_depends_on_the_state_of_the_record() {
        let (hold, release) = (request(OnUnknown::Hold), request(OnUnknown::Release));
        let not_retained = ClaimDecision::Rejected(ClaimRejection::ResponseNotRetained);
        let unknown = ClaimDecision::Rejected(ClaimRejection::OutcomeUnknown);
        let in_flight = ClaimDecision::InFlight(());
        let replay = ClaimDecision::Replay(());
        for (state, held, released) in [
            (StateView::InFlight(()), in_flight, in_flight),
            (StateView::Completed(()), replay, replay),
            (StateView::Tombstone, not_retained, not_retained),
            (StateView::Unknown, unknown, AVAILABLE),
        ] {
            assert_eq!(decide_claim(view(state), &hold, 19), held, "{state:?}");
            assert_eq!(
                decide_claim(view(state), &release, 19),
                released,
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_claim_in_flight_does_not_expire() {
        let record = RecordView {
            expires: None,
            ..view(StateView::InFlight(()))
        };
        let decision = decide_claim(record, &request(OnUnknown::Release), u64::MAX);
        assert_eq!(decision, ClaimDecision::InFlight(()));
    }

    #[test]
    fn a_different_request_is_a_mismatch_in_every_state_until_the_record_expires() {
        let reused = |mismatch| ClaimDecision::Rejected(ClaimRejection::KeyReused(mismatch));
        for state in [
            StateView::InFlight(()),
            StateView::Completed(()),
            StateView::Tombstone,
            StateView::Unknown,
        ] {
            for on_unknown in [OnUnknown::Hold, OnUnknown::Release] {
                let mut other = request(on_unknown);
                other.fingerprint.credentials = [2; 16];
                let decision =
                    |request: &ClaimRequest, now| decide_claim(view(state), request, now);
                assert_eq!(decision(&other, 19), reused(Mismatch::Credentials));
                other.fingerprint.request = [2; 16];
                assert_eq!(decision(&other, 19), reused(Mismatch::Request));
                assert_eq!(decision(&other, 20), AVAILABLE);
            }
        }
    }
}
