//! Claims on a key: which request executes, which waits, which receives a stored response.
//!
//! A [`ClaimRequest`] results in one case of [`Claim`]. The request that wins the key holds a [`Permit`] until its execution
//! ends. [`meet`] decides what a claim meets. It is a pure function, so that all stores decide alike; stores only look
//! up the record and apply the decision atomically. Redis has to decide in a script, which a test compares with
//! [`meet`] on random histories.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::rule::OnUnknown;
use super::{ClientHash, Fingerprint, Mismatch, Permit, RecordId, State, StoredResponse, Waiter};
use crate::clock::Moment;

/// A request to claim a key.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// When the claim is made.
    pub at: Moment,
    /// The key and its scope.
    pub id: RecordId,
    /// The client that sends the request.
    pub client: ClientHash,
    /// Fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// Settings of the route that the store applies.
    pub terms: Terms,
}

/// Settings of a route that a store applies to its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a record is stored after the execution ended.
    pub ttl: Duration,
    /// Whether a key whose outcome is unknown can be claimed again.
    pub on_unknown: OnUnknown,
    /// Number of keys that a scope may have at once.
    pub max_keys_per_scope: NonZeroU32,
}

/// The result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// The key is claimed: execute the request.
    Won(Permit),
    /// The request was executed. This is its response.
    Replay(Arc<StoredResponse>),
    /// The request is in flight.
    InFlight(Waiter),
    /// The key was used for another request.
    Mismatch(Mismatch),
    /// Whether the request was executed is unknown.
    Unknown,
    /// The request was executed, and its response is not stored.
    Tombstone,
    /// The scope has `max_keys_per_scope` keys.
    ScopeFull {
        /// Time until a key of the scope can expire.
        no_sooner: Duration,
    },
    /// The client holds its share of the store's keys, and the key is new.
    ClientFull {
        /// The share, in keys.
        limit: u64,
        /// Time until a key of the client can expire.
        no_sooner: Duration,
    },
    /// The store holds `max_keys` keys, or its server has no memory left.
    StoreFull,
}

/// What a claim depends on in the record of its key. `T` is an instant on the clock of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a, T> {
    /// State of the record.
    pub state: State,
    /// Fingerprint of the request that led to the record.
    pub fingerprint: &'a Fingerprint,
    /// When the lease of a claim in progress ends; `None` if it has no lease. From then on the outcome is unknown.
    pub lease_ends: Option<T>,
    /// When the record expires; `None` if it does not.
    pub expires: Option<T>,
}

/// What a claim meets under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// The key can be claimed.
    Vacant(Vacancy),
    /// The same request is in flight.
    InFlight,
    /// The same request was executed, and its response is stored.
    Replay,
    /// The key belongs to another request.
    Mismatch(Mismatch),
    /// The same request was sent, and its outcome is unknown.
    Unknown,
    /// The same request was executed, and its response is not stored.
    Tombstone,
}

/// Why a key can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacancy {
    /// The key has no record. A claim adds one, if the bounds of the store admit it.
    New,
    /// The record has expired, or its outcome is unknown and `on_unknown` is `release`. A claim replaces it, so the
    /// number of keys stays the same.
    Replace,
}

/// Decides what a claim meets at `now`. This is the only place that decides it: every store calls this function, and
/// a test checks `claim.lua` against it.
///
/// A store that deletes expired records passes `None` for them.
pub(crate) fn meet<T: PartialOrd + Copy>(
    record: Option<RecordView<'_, T>>,
    request: &ClaimRequest,
    now: T,
) -> Meeting {
    let Some(record) = record else {
        return Meeting::Vacant(Vacancy::New);
    };
    let is_over = |end: Option<T>| end.is_some_and(|end| end <= now);
    if is_over(record.expires) {
        return Meeting::Vacant(Vacancy::Replace);
    }
    if let Some(mismatch) = request.fingerprint.differs_from(record.fingerprint) {
        return Meeting::Mismatch(mismatch);
    }
    match record.state {
        State::Completed => Meeting::Replay,
        State::Tombstone => Meeting::Tombstone,
        State::InProgress if !is_over(record.lease_ends) => Meeting::InFlight,
        State::InProgress | State::Unknown => match request.terms.on_unknown {
            OnUnknown::Hold => Meeting::Unknown,
            OnUnknown::Release => Meeting::Vacant(Vacancy::Replace),
        },
    }
}

impl<'a, T> RecordView<'a, T> {
    /// Returns the view of a claim in progress that has no lease.
    pub(crate) fn in_progress(fingerprint: &'a Fingerprint) -> Self {
        Self {
            state: State::InProgress,
            fingerprint,
            lease_ends: None,
            expires: None,
        }
    }

    /// Returns the view of a record in a final state.
    pub(crate) fn ended(state: State, fingerprint: &'a Fingerprint, expires: T) -> Self {
        Self {
            state,
            fingerprint,
            lease_ends: None,
            expires: Some(expires),
        }
    }
}

impl Meeting {
    /// Returns the result of a claim that the store cannot serve in a better way: it makes no new claim, has no
    /// waiters and has no stored response. Never leads to an execution.
    pub(crate) fn rejection(self) -> Claim {
        match self {
            Self::Mismatch(mismatch) => Claim::Mismatch(mismatch),
            Self::Replay | Self::Tombstone => Claim::Tombstone,
            Self::Unknown | Self::InFlight | Self::Vacant(_) => Claim::Unknown,
        }
    }
}

impl Terms {
    /// Whether a scope that has `keys` keys may claim no new one.
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
            terms: Terms {
                on_unknown,
                ..Terms::default()
            },
        }
    }

    fn view(state: State) -> RecordView<'static, u64> {
        RecordView {
            state,
            fingerprint: &FIRST,
            lease_ends: (state == State::InProgress).then_some(10),
            expires: Some(20),
        }
    }

    #[test]
    fn the_same_request_meets_the_state_of_its_record() {
        let (hold, release) = (request(OnUnknown::Hold), request(OnUnknown::Release));
        let replace = Meeting::Vacant(Vacancy::Replace);
        for (state, now, held, released) in [
            (State::InProgress, 9, Meeting::InFlight, Meeting::InFlight),
            (State::InProgress, 10, Meeting::Unknown, replace),
            (State::Completed, 19, Meeting::Replay, Meeting::Replay),
            (State::Tombstone, 19, Meeting::Tombstone, Meeting::Tombstone),
            (State::Unknown, 19, Meeting::Unknown, replace),
        ] {
            let record = Some(view(state));
            assert_eq!(meet(record, &hold, now), held, "{state:?} at {now}");
            assert_eq!(meet(record, &release, now), released, "{state:?} at {now}");
        }
    }

    #[test]
    fn a_claim_without_a_lease_stays_in_flight() {
        let record = RecordView::in_progress(&FIRST);
        let meeting = meet(Some(record), &request(OnUnknown::Release), u64::MAX);
        assert_eq!(meeting, Meeting::InFlight);
    }

    #[test]
    fn another_request_meets_a_mismatch_in_every_state_until_the_record_expires() {
        for state in State::ALL {
            for on_unknown in [OnUnknown::Hold, OnUnknown::Release] {
                let mut other = request(on_unknown);
                other.fingerprint.credentials = [2; 16];
                let meeting = |request: &ClaimRequest, now| meet(Some(view(state)), request, now);
                let credentials = Meeting::Mismatch(Mismatch::Credentials);
                assert_eq!(meeting(&other, 19), credentials);
                other.fingerprint.request = [2; 16];
                assert_eq!(meeting(&other, 19), Meeting::Mismatch(Mismatch::Request));
                assert_eq!(meeting(&other, 20), Meeting::Vacant(Vacancy::Replace));
            }
        }
    }

    #[test]
    fn a_key_without_a_record_is_new() {
        let meeting = meet::<u64>(None, &request(OnUnknown::Hold), 0);
        assert_eq!(meeting, Meeting::Vacant(Vacancy::New));
    }
}
