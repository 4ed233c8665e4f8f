//! The scripts that work on buckets, as they are called and as they answer.
//!
//! A script knows no quotas: it is told what a charge adds to a bucket, and the most a bucket may owe after
//! it, which is all that the decision takes. What its answer means for the client is worked out here, by the
//! same [`decide`](crate::throttle::decide) as for buckets in memory.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};
use smallvec::SmallVec;

use super::Wanted;
use super::place::Group;
use crate::store::redis::script::{CHARGE, Call, REFUND};
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{Charge, Exceed};

/// The longest that anything is counted: a century and more, which every number in a script can hold.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// What Redis tells of the charges of one group.
#[derive(Debug)]
pub(super) struct Told {
    /// Whether the enforced ones were made.
    pub(super) admitted: bool,
    /// When, in seconds and microseconds since 1970 by the clock of Redis.
    pub(super) at: (u64, u64),
    /// How long each bucket would have taken to be full, before the charge.
    pub(super) owed: SmallVec<[Duration; USUAL_LIMITS]>,
}

/// Charges the buckets of `group`, after it has them owe at least what they are in `owed`, by their places among
/// the charges of the request.
pub(super) fn charge(wanted: &Wanted<'_>, group: &Group, owed: &[Duration]) -> Call {
    let mut call = CHARGE.on(&group.names).arg(group.enforced);
    for charge in group.places.iter().map(|&place| wanted.get(place)) {
        call = with(with(call, most(charge)), cost(charge));
    }
    let owed = group.places.iter().map(|&place| owed[place]);
    if owed.clone().any(|owed| !owed.is_zero()) {
        call = owed.fold(call, with);
    }
    call
}

/// Takes back what was charged to the enforced buckets of `group`.
pub(super) fn refund(wanted: &Wanted<'_>, group: &Group, told: &Told, prefix: &str) -> Call {
    let (seconds, micros) = told.at;
    // By what stands in braces it is in the slot of that bucket.
    let name = &group.names[0];
    let once = format!("{prefix}:back:{{{name}}}:{:032x}", fastrand::u128(..));
    let names: SmallVec<[&str; USUAL_LIMITS]> = std::iter::once(&once)
        .chain(&group.names[..group.enforced])
        .map(String::as_str)
        .collect();
    let mut call = REFUND.on(&names);
    call = call.arg(seconds).arg(micros);
    let places = &group.places[..group.enforced];
    for (&place, &owed) in places.iter().zip(&told.owed) {
        call = with(with(call, cost(wanted.get(place))), owed);
    }
    call
}

fn with(call: Call, time: Duration) -> Call {
    call.arg(time.as_secs()).arg(time.subsec_nanos())
}

/// Returns the most a bucket can owe after a charge.
pub(super) fn most(charge: &Charge<'_>) -> Duration {
    let refill = charge.limit.quota.refill();
    match charge.limit.exceed {
        Exceed::Reject => refill,
        Exceed::Delay { max } => refill.saturating_add(max).min(LONGEST),
    }
}

/// What a charge adds to what a bucket owes.
fn cost(charge: &Charge<'_>) -> Duration {
    let quota = charge.limit.quota;
    if charge.cost > quota.capacity() {
        // No bucket ever holds that much, and no wait is long enough.
        return most(charge) + Duration::from_secs(1);
    }
    quota.interval() * charge.cost.get()
}

impl FromRedisValue for Told {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let numbers = Vec::<u64>::from_redis_value(value)?;
        let [admitted, seconds, micros, owed @ ..] = &numbers[..] else {
            return Err("a charge without its time".into());
        };
        let owed = owed.chunks_exact(2).map(|pair| {
            let nanos = u32::try_from(pair[1]).map_err(|_| "more than a second of nanoseconds")?;
            Ok(Duration::new(pair[0], nanos))
        });
        Ok(Self {
            admitted: *admitted == 1,
            at: (*seconds, *micros),
            owed: owed.collect::<Result<_, ParsingError>>()?,
        })
    }
}
