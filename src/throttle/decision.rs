//! All limits of a request, decided together.
//!
//! The rule: every limit is asked at the same moment, and only if all agree is any charged. A limit
//! that delays agrees as long as its slot is no further away than its `max`; the request then waits for
//! the latest of its slots. A limit that refuses names its wait, and the request's is the longest.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::quota::Wait;
use super::{BucketKey, Exceed, Limit, Reading};
use crate::clock::Moment;

/// A request's limits are few; this many need no allocation.
pub const USUAL_LIMITS: usize = 4;

/// One bucket asked for its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit whose quota counts.
    pub limit: &'a Limit,
    /// The bucket charged.
    pub bucket: BucketKey,
    /// Tokens taken.
    pub cost: NonZeroU32,
}

/// What became of a request's charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may pass.
    pub outcome: Outcome,
    /// What each bucket holds after it, in the order of the charges.
    pub readings: SmallVec<[Reading; USUAL_LIMITS]>,
}

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may, after this long; all its charges were made.
    Admitted {
        /// Zero unless a limit delays.
        delay: Duration,
    },
    /// It may not; none of its charges was made.
    Refused {
        /// How long until all its limits would admit it.
        wait: Duration,
        /// The charge with the longest wait, by its place among the charges.
        by: usize,
    },
}

/// Whoever keeps the buckets.
pub trait Buckets: Send + Sync + 'static {
    /// Makes all charges, or none if any is refused, as one atomic step.
    fn charge(&self, charges: &[Charge<'_>]) -> impl Future<Output = Verdict> + Send;
}

/// Decides `charges` at `now`, given when each bucket will be full. If the request is admitted,
/// `full_at` holds the new states and they are to be committed together; otherwise it is as it was.
pub fn decide(charges: &[Charge<'_>], full_at: &mut [Moment], now: Moment) -> Verdict {
    debug_assert_eq!(charges.len(), full_at.len());
    let mut taken: SmallVec<[Moment; USUAL_LIMITS]> = SmallVec::new();
    let mut waits: SmallVec<[Option<Duration>; USUAL_LIMITS]> = SmallVec::new();
    let mut delay = Duration::ZERO;
    for (charge, &full_at) in charges.iter().zip(full_at.iter()) {
        match take(charge, full_at, now) {
            Ok((after, wait)) => {
                delay = delay.max(wait);
                taken.push(after);
                waits.push(None);
            }
            Err(Wait(wait)) => {
                taken.push(full_at);
                waits.push(Some(wait));
            }
        }
    }

    let longest = waits
        .iter()
        .enumerate()
        .filter_map(|(by, wait)| wait.map(|wait| (wait, by)))
        .max_by_key(|&(wait, _)| wait);
    let outcome = if let Some((wait, by)) = longest {
        Outcome::Refused { wait, by }
    } else {
        full_at.copy_from_slice(&taken);
        Outcome::Admitted { delay }
    };

    let readings = charges
        .iter()
        .zip(full_at.iter())
        .zip(&waits)
        .map(|((charge, &full_at), wait)| {
            let reading = charge.limit.quota.read(full_at, now);
            Reading { next: wait.unwrap_or(reading.next), ..reading }
        })
        .collect();
    Verdict { outcome, readings }
}

/// One charge by itself: the bucket's state after it and the delay it asks for, or the wait.
fn take(charge: &Charge<'_>, full_at: Moment, now: Moment) -> Result<(Moment, Duration), Wait> {
    let quota = charge.limit.quota;
    match (quota.take(full_at, now, charge.cost), charge.limit.exceed) {
        (Ok(after), _) => Ok((after, Duration::ZERO)),
        (Err(Wait(wait)), Exceed::Delay { max }) if wait <= max => {
            let slot = now.after(wait);
            quota.take(full_at, slot, charge.cost).map(|after| (after, wait))
        }
        // Once the slot is no further away than `max`, the request would be let in to wait for it.
        (Err(Wait(wait)), Exceed::Delay { max }) => Err(Wait(wait - max)),
        (Err(wait), Exceed::Reject) => Err(wait),
    }
}
