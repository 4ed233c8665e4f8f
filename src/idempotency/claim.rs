//! Claims on an idempotency key. A claim decides whether a request is executed, waits, gets a stored response or is
//! rejected.
//!
//! An idempotency store returns a [`Claim`] for each [`ClaimRequest`]. The request that wins the claim has a [`Permit`]
//! until its execution ends. The pure function [`decide_claim`] makes the decision for all stores except Redis. Such a
//! store only looks up the record and applies the decision atomically. Redis decides in the script `claim.lua`, because
//! only a script is atomic there. A test compares the script with [`decide_claim`] on random histories.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::rule::OnUnknown;
use super::{
    ClaimRejection, ClientHash, Fingerprint, Permit, RecordId, RecordState, StoredResponse, Waiter,
};
use crate::clock::Moment;

/// Data with which a request claims its idempotency key.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// Time of the claim, on the monotonic clock of this process.
    pub at: Moment,
    /// Hashes of the idempotency key and its scope.
    pub id: RecordId,
    /// Hash of the address of the client that sent the request.
    pub client: ClientHash,
    /// Fingerprint of the request, which must equal that of the first request with the same key.
    pub fingerprint: Fingerprint,
    /// Settings of the route, which the store applies to the record of the key.
    pub settings: RecordSettings,
}

/// Settings of a route that an idempotency store applies to the records of the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// How long a record is stored after its execution has ended.
    pub ttl: Duration,
    /// Whether an idempotency key whose outcome is unknown can be claimed again.
    pub on_unknown: OnUnknown,
    /// Maximum number of unexpired idempotency keys in one scope. `NonZeroU32::MAX` means no maximum, because stores
    /// count the keys of a scope in 32 bits.
    pub max_keys_per_scope: NonZeroU32,
}

/// Result of a claim on an idempotency key.
#[derive(Debug)]
pub enum Claim {
    /// The request has claimed its idempotency key and must be executed.
    Won(Permit),
    /// An equal request was executed, and this is its stored response.
    Replay(Arc<StoredResponse>),
    /// An equal request is in flight. The waiter receives the outcome of that request.
    InFlight(Waiter),
    /// The request must not be executed.
    Rejected(ClaimRejection),
}

/// Part of an idempotency record that decides a claim on its key. `T` is a point in time on the clock of the store, `F`
/// the execution of a record in flight, and `R` the response of a completed record. Both are [`Infallible`] in a store
/// that has no such records.
///
/// [`Infallible`]: std::convert::Infallible
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<T, F, R> {
    pub state: StateView<F, R>,
    /// Fingerprint of the request that created the record.
    pub fingerprint: Fingerprint,
    /// `None` if the record does not expire, because its execution is in flight or could not be recorded.
    pub expires: Option<T>,
}

/// State of a record, with what a claim on its key needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StateView<F, R> {
    InFlight(F),
    Completed(R),
    Unknown,
    Tombstone,
}

/// Decision on a claim of a key that has a record. A key without a record can be claimed if the scope, the client and
/// the store are below their maximum number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimDecision<F, R> {
    /// The claim replaces the record, which has expired, or whose outcome is unknown with `on_unknown = "release"`. The
    /// number of keys does not change.
    Available,
    InFlight(F),
    Replay(R),
    Rejected(ClaimRejection),
}

/// Decides a claim on the key of `record` at `now`. Every store except Redis calls this function. A test compares the
/// Redis script `claim.lua` with this function.
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
    /// Returns the view of a record whose execution has ended. A completed record whose response was evicted is a
    /// tombstone.
    pub(crate) fn ended(state: RecordState, response: Option<R>) -> Self {
        match (state, response) {
            (RecordState::Completed, Some(response)) => Self::Completed(response),
            (RecordState::Completed | RecordState::Tombstone, _) => Self::Tombstone,
            (RecordState::Unknown | RecordState::InProgress, _) => Self::Unknown,
        }
    }
}

impl RecordSettings {
    /// Returns whether a scope that has `keys` unexpired idempotency keys can claim no further key.
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
