//! Claims on a key: whether a request is executed, waits, gets a stored response or is rejected.
//!
//! A store returns a [`Claim`] for each [`ClaimRequest`]. The request that wins the claim holds a [`Permit`] until its
//! execution ends. The pure function [`decide_claim`] makes the decision for all stores. A store only looks up the
//! record and applies the decision atomically. Redis has to decide in a script. A test compares the script with
//! [`decide_claim`] on random histories.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::rule::OnUnknown;
use super::{
    ClientHash, Fingerprint, Mismatch, Permit, RecordId, RecordState, StoredResponse, Waiter,
};
use crate::clock::Moment;

/// Request to claim a key.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// Time of the claim.
    pub at: Moment,
    /// Hashes of the key and its scope.
    pub id: RecordId,
    /// Hash of the client that sent the request.
    pub client: ClientHash,
    /// Fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// Settings of the route that the store applies to the record.
    pub settings: RecordSettings,
}

/// Settings of a route that a store applies to its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// Time to live of a record after its execution has ended.
    pub ttl: Duration,
    /// Whether a key whose outcome is unknown can be claimed again.
    pub on_unknown: OnUnknown,
    /// Maximum number of keys of a scope that have not expired.
    pub max_keys_per_scope: NonZeroU32,
}

/// Result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// The request holds the key and must be executed.
    Won(Permit),
    /// An equal request was executed. This is its stored response.
    Replay(Arc<StoredResponse>),
    /// An equal request is in flight. The waiter receives its outcome.
    InFlight(Waiter),
    /// The key was used for a different request.
    Mismatch(Mismatch),
    /// An equal request was sent, and its outcome is unknown.
    Unknown,
    /// An equal request was executed, and its response is not stored.
    Tombstone,
    /// The key is new, and its scope has `max_keys_per_scope` keys.
    ScopeFull {
        /// Time until a key of the scope can expire.
        min_wait: Duration,
    },
    /// The key is new, and its client has used its share of the keys in the store.
    ClientFull {
        /// Maximum number of keys per client.
        limit: u64,
        /// Time until a key of the client can expire.
        min_wait: Duration,
    },
    /// The key is new, and the store has `max_keys` keys or its server is out of memory.
    StoreFull,
}

/// Part of a record that decides a claim on its key. `T` is a point in time on the clock of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a, T> {
    /// State of the record.
    pub state: RecordState,
    /// Fingerprint of the request that created the record.
    pub fingerprint: &'a Fingerprint,
    /// End of the lease of a claim in progress, after which its outcome is unknown; `None` if it has no lease.
    pub lease_ends: Option<T>,
    /// Time at which the record expires; `None` if it does not expire.
    pub expires: Option<T>,
}

/// Decision on a claim, which depends only on the record of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimDecision {
    /// The key can be claimed.
    Available(Availability),
    /// An equal request is in flight.
    InFlight,
    /// An equal request was executed, and its response is stored.
    Replay,
    /// The key was used for a different request.
    Mismatch(Mismatch),
    /// An equal request was sent, and its outcome is unknown.
    Unknown,
    /// An equal request was executed, and its response is not stored.
    Tombstone,
}

/// Reason why a key can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// The key has no record. A claim adds one, unless the scope, the client or the store is full.
    New,
    /// The record has expired, or its outcome is unknown and `on_unknown` is `release`. A claim replaces the record, so
    /// the number of keys does not change.
    Replace,
}

/// Decides a claim at `now`. Every store except Redis calls this function, and a test compares `claim.lua` of Redis
/// with it.
///
/// A store that deletes expired records passes `None` instead of an expired record.
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
    /// Creates the view of a claim in progress that has no lease.
    pub(crate) fn in_progress(fingerprint: &'a Fingerprint) -> Self {
        Self {
            state: RecordState::InProgress,
            fingerprint,
            lease_ends: None,
            expires: None,
        }
    }

    /// Creates the view of a record whose execution has ended.
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
    /// Converts the decision into a claim result for a store that can neither grant a claim, add a waiter nor load a
    /// response. The result never leads to an execution.
    pub(crate) fn rejection(self) -> Claim {
        match self {
            Self::Mismatch(mismatch) => Claim::Mismatch(mismatch),
            Self::Replay | Self::Tombstone => Claim::Tombstone,
            Self::Unknown | Self::InFlight | Self::Available(_) => Claim::Unknown,
        }
    }
}

impl RecordSettings {
    /// Returns whether a scope with this number of keys may not claim a new key.
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
