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
    ClientHash, Fingerprint, Mismatch, Permit, RecordId, RecordState, StoredResponse, Waiter,
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
    /// The idempotency key was used for a different request.
    Mismatch(Mismatch),
    /// An equal request was sent to the upstream, but its outcome is unknown.
    Unknown,
    /// An equal request was executed, but its response is not stored.
    Tombstone,
    /// The claim is rejected: the idempotency key is new, and its scope already has `max_keys_per_scope` keys.
    ScopeFull {
        /// Lower bound of the time until the next key of the scope expires.
        min_wait: Duration,
    },
    /// The claim is rejected: the idempotency key is new, and its client already uses its share of the keys in the
    /// store.
    ClientFull {
        /// Maximum number of idempotency keys per client.
        limit: u64,
        /// Lower bound of the time until the next key of the client expires.
        min_wait: Duration,
    },
    /// The claim is rejected: the idempotency key is new, and the store has `max_keys` keys or Redis is out of memory.
    StoreFull,
}

/// Part of an idempotency record that decides a claim on its key. `T` is a point in time on the clock of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a, T> {
    /// State of the idempotency record.
    pub state: RecordState,
    /// Fingerprint of the request that created the record.
    pub fingerprint: &'a Fingerprint,
    /// Time at which the lease of a claim in progress ends. From then on, the outcome of the claim is unknown. `None`
    /// if the claim has no lease.
    pub lease_ends: Option<T>,
    /// Time at which the record expires; `None` while the record is in progress without a lease.
    pub expires: Option<T>,
}

/// Decision on a claim. It depends only on the record of the idempotency key, not on the number of keys in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimDecision {
    /// The idempotency key can be claimed.
    Available(Availability),
    /// An equal request has claimed the key and is in flight.
    InFlight,
    /// An equal request was executed, and the record contains its response.
    Replay,
    /// The key was used for a request with another fingerprint.
    Mismatch(Mismatch),
    /// An equal request was sent to the upstream. Its outcome is unknown.
    Unknown,
    /// An equal request was executed. The record does not contain its response.
    Tombstone,
}

/// Reason why an idempotency key can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// The idempotency key has no record. A claim adds a record, unless the scope, the client or the store has reached
    /// its maximum number of keys.
    New,
    /// The record of the idempotency key has expired, or its outcome is unknown and `on_unknown` is `release`. A claim
    /// replaces the record, so the number of keys does not change.
    Replace,
}

/// Decides a claim on an idempotency key at `now`. Every store except Redis calls this function. A test compares the
/// Redis script `claim.lua` with this function.
///
/// `record` is the record of the key. A store that deletes expired records passes `None` instead of an expired record.
pub(crate) fn decide_claim<T: PartialOrd + Copy>(
    record: Option<RecordView<'_, T>>,
    request: &ClaimRequest,
    now: T,
) -> ClaimDecision {
    let Some(record) = record else {
        return ClaimDecision::Available(Availability::New);
    };
    let is_over = |end: Option<T>| end.is_some_and(|end| end <= now);
    if is_over(record.expires) {
        return ClaimDecision::Available(Availability::Replace);
    }
    if let Some(mismatch) = request.fingerprint.differs_from(record.fingerprint) {
        return ClaimDecision::Mismatch(mismatch);
    }
    match record.state {
        RecordState::Completed => ClaimDecision::Replay,
        RecordState::Tombstone => ClaimDecision::Tombstone,
        RecordState::InProgress if !is_over(record.lease_ends) => ClaimDecision::InFlight,
        RecordState::InProgress | RecordState::Unknown => match request.settings.on_unknown {
            OnUnknown::Hold => ClaimDecision::Unknown,
            OnUnknown::Release => ClaimDecision::Available(Availability::Replace),
        },
    }
}

impl<'a, T> RecordView<'a, T> {
    /// Creates the view of a record that is in progress and has no lease.
    pub(crate) fn in_progress(fingerprint: &'a Fingerprint) -> Self {
        Self {
            state: RecordState::InProgress,
            fingerprint,
            lease_ends: None,
            expires: None,
        }
    }

    /// Creates the view of a record whose execution has ended and which expires at `expires`.
    pub(crate) fn ended(state: RecordState, fingerprint: &'a Fingerprint, expires: T) -> Self {
        Self {
            state,
            fingerprint,
            lease_ends: None,
            expires: Some(expires),
        }
    }
}

impl ClaimDecision {
    /// Converts the decision into a claim result that never leads to an execution. A store calls this function if it
    /// can neither grant a claim, add a waiter nor load a response.
    pub(crate) fn rejection(self) -> Claim {
        match self {
            Self::Mismatch(mismatch) => Claim::Mismatch(mismatch),
            Self::Replay | Self::Tombstone => Claim::Tombstone,
            Self::Unknown | Self::InFlight | Self::Available(_) => Claim::Unknown,
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
    use crate::idempotency::{KeyHash, ScopeHash};

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

    fn view(state: RecordState) -> RecordView<'static, u64> {
        RecordView {
            state,
            fingerprint: &FIRST,
            lease_ends: (state == RecordState::InProgress).then_some(10),
            expires: Some(20),
        }
    }

    #[test]
    fn a_claim_of_an_equal_request_depends_on_the_state_of_the_record() {
        let (hold, release) = (request(OnUnknown::Hold), request(OnUnknown::Release));
        let replace = ClaimDecision::Available(Availability::Replace);
        for (state, now, held, released) in [
            (
                RecordState::InProgress,
                9,
                ClaimDecision::InFlight,
                ClaimDecision::InFlight,
            ),
            (RecordState::InProgress, 10, ClaimDecision::Unknown, replace),
            (
                RecordState::Completed,
                19,
                ClaimDecision::Replay,
                ClaimDecision::Replay,
            ),
            (
                RecordState::Tombstone,
                19,
                ClaimDecision::Tombstone,
                ClaimDecision::Tombstone,
            ),
            (RecordState::Unknown, 19, ClaimDecision::Unknown, replace),
        ] {
            let record = Some(view(state));
            assert_eq!(decide_claim(record, &hold, now), held, "{state:?} at {now}");
            assert_eq!(
                decide_claim(record, &release, now),
                released,
                "{state:?} at {now}"
            );
        }
    }

    #[test]
    fn a_claim_without_a_lease_stays_in_flight() {
        let record = RecordView::in_progress(&FIRST);
        let decision = decide_claim(Some(record), &request(OnUnknown::Release), u64::MAX);
        assert_eq!(decision, ClaimDecision::InFlight);
    }

    #[test]
    fn a_different_request_is_a_mismatch_in_every_state_until_the_record_expires() {
        for state in RecordState::ALL {
            for on_unknown in [OnUnknown::Hold, OnUnknown::Release] {
                let mut other = request(on_unknown);
                other.fingerprint.credentials = [2; 16];
                let decision =
                    |request: &ClaimRequest, now| decide_claim(Some(view(state)), request, now);
                let credentials = ClaimDecision::Mismatch(Mismatch::Credentials);
                assert_eq!(decision(&other, 19), credentials);
                other.fingerprint.request = [2; 16];
                assert_eq!(
                    decision(&other, 19),
                    ClaimDecision::Mismatch(Mismatch::Request)
                );
                assert_eq!(
                    decision(&other, 20),
                    ClaimDecision::Available(Availability::Replace)
                );
            }
        }
    }

    #[test]
    fn a_key_without_a_record_can_be_claimed_as_new() {
        let decision = decide_claim::<u64>(None, &request(OnUnknown::Hold), 0);
        assert_eq!(decision, ClaimDecision::Available(Availability::New));
    }
}
