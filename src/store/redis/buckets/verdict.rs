//! What becomes of a request whose buckets Redis told of, or some of them, or none.
//!
//! A limit that Redis did not decide is treated as its `on_store_error` says. The states that it did tell
//! decide first; only if they admit are the local buckets charged, all or none, so that a refused request
//! still costs nothing.

use smallvec::SmallVec;

use crate::clock::Moment;
use crate::store::memory::MemoryBuckets;
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{Charge, OnStoreError, Outcome, Verdict, decide};

/// When each of a request's buckets will be full, where Redis told.
pub(super) type States = SmallVec<[Option<Moment>; USUAL_LIMITS]>;

/// Some of a request's charges, and their places among all of them.
#[derive(Default)]
struct Picked<'a> {
    charges: SmallVec<[Charge<'a>; USUAL_LIMITS]>,
    places: SmallVec<[usize; USUAL_LIMITS]>,
}

impl<'a> Picked<'a> {
    fn push(&mut self, place: usize, charge: &Charge<'a>) {
        self.charges.push(*charge);
        self.places.push(place);
    }

    /// Puts what was read of these buckets where it belongs.
    fn tell(&self, decided: &Verdict, verdict: &mut Verdict) {
        for (&place, reading) in self.places.iter().zip(&decided.readings) {
            verdict.readings[place] = *reading;
        }
        verdict.outcome = match (verdict.outcome, decided.outcome) {
            (Outcome::Admitted { delay }, Outcome::Admitted { delay: other }) => {
                let delay = delay.max(other);
                Outcome::Admitted { delay }
            }
            (Outcome::Admitted { .. }, Outcome::Refused { wait, by }) => {
                let by = self.places[by];
                Outcome::Refused { wait, by }
            }
            (Outcome::Admitted { .. }, Outcome::Unavailable) => Outcome::Unavailable,
            (decided, _) => decided,
        };
    }
}

/// Decides on charges that are made together. If it admits, `states` are those after it. A bucket that
/// nobody asked reads as full.
pub(super) fn judge(
    charges: &[Charge<'_>],
    states: &mut States,
    now: Moment,
    local: &MemoryBuckets,
) -> Verdict {
    let (mut told, mut untold) = (Picked::default(), Picked::default());
    let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = SmallVec::new();
    for (place, charge) in charges.iter().enumerate() {
        match (states[place], charge.limit.on_store_error) {
            (Some(state), _) => {
                told.push(place, charge);
                full_at.push(state);
            }
            (None, OnStoreError::Local) => untold.push(place, charge),
            (None, OnStoreError::Open) => {}
            (None, OnStoreError::Closed) => {
                return Verdict {
                    outcome: Outcome::Unavailable,
                    readings: SmallVec::new(),
                };
            }
        }
    }

    // Of nothing at all, and every bucket full.
    let mut verdict = decide(&[], &mut [], now);
    let full = |charge: &Charge<'_>| charge.limit.quota.read(Moment::default(), now);
    verdict.readings = charges.iter().map(full).collect();

    told.tell(&decide(&told.charges, &mut full_at, now), &mut verdict);
    if verdict.is_admitted() && !untold.charges.is_empty() {
        untold.tell(&local.charge_now(&untold.charges), &mut verdict);
    }
    if verdict.is_admitted() {
        for (&place, &state) in told.places.iter().zip(&full_at) {
            states[place] = Some(state);
        }
    }
    verdict
}
