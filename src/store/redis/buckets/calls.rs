//! The script calls that charge and refund the rate limit buckets of a request, and their replies.
//!
//! On a single server, one script charges all buckets of a request. A cluster spreads the buckets over slots, and a
//! script can use the Redis keys of one slot only. So the buckets of each slot form a group. The names have no hash
//! tag. A hash tag would put the load of a busy client on one server. Buckets that all clients share could not have
//! such a tag.
//!
//! The scripts do not know the quota. A call passes the refill time of a bucket, the age of the quota, the maximum debt
//! of the bucket after the charge, and what the charge adds to the debt. A stored bucket has the refill time of its
//! last charge, and the script scales its debt if a gateway with another quota charges it. So gateways with the old and
//! the new quota share buckets while a change is rolled out. The gateway decides by the reply, with the same
//! [`decide`](crate::throttle::decide) as for buckets in memory.

use std::time::Duration;

use crc16::{State, XMODEM};
use redis::{FromRedisValue, ParsingError, Value};
use smallvec::SmallVec;

use super::RequestCharges;
use crate::clock::Moment;
use crate::store::redis::script::{CHARGE, Call, REFUND};
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{BucketKey, Charge, Exceed};

/// Number of hash slots of a Redis cluster.
const SLOTS: u16 = 16_384;

/// Maximum debt that a call passes to a script: 136 years until a bucket is full. The scripts compute exactly with
/// numbers of this size.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// The charges of a request that one script makes, because their buckets are in one slot.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Indexes into the charges of the request. The enforced charges come first.
    pub(super) indexes: SmallVec<[usize; USUAL_LIMITS]>,
    /// The number of enforced charges in this group.
    pub(super) enforced: usize,
    /// The Redis keys of the buckets.
    pub(super) names: SmallVec<[String; USUAL_LIMITS]>,
}

/// The groups of a request. On a single server, a request has one group.
pub(super) type Groups = SmallVec<[Group; 1]>;

/// The reply of the script that charges one group.
#[derive(Debug)]
pub(super) struct ChargeReply {
    /// Whether the enforced charges were made.
    pub(super) admitted: bool,
    /// The time of the charge by the clock of Redis, in seconds and microseconds since 1970.
    pub(super) at: (u64, u64),
    /// The debt of each bucket before the charge. A debt is the time until the bucket is full.
    pub(super) owed: SmallVec<[Duration; USUAL_LIMITS]>,
}

/// Divides `charges` into groups: one group for each slot on a cluster, or one group on a single server.
pub(super) fn groups(charges: &RequestCharges<'_>, prefix: &str, is_cluster: bool) -> Groups {
    let mut groups = Groups::new();
    let mut slots: SmallVec<[u16; USUAL_LIMITS]> = SmallVec::new();
    for (index, charge) in charges.all.iter().enumerate() {
        let name = name(prefix, charge.bucket);
        let slot = if is_cluster { slot(name.as_bytes()) } else { 0 };
        let known = slots.iter().position(|&it| it == slot);
        let group = known.unwrap_or_else(|| {
            slots.push(slot);
            groups.push(Group::default());
            groups.len() - 1
        });
        let group = &mut groups[group];
        group.indexes.push(index);
        group.names.push(name);
        group.enforced += usize::from(index < charges.enforced);
    }
    groups
}

impl Group {
    /// Creates the call that charges this group at `now`. `owed` has one debt for each charge of the request. Before
    /// the charge, Redis raises the debt of each bucket to at least this debt.
    pub(super) fn charge(
        &self,
        charges: &RequestCharges<'_>,
        owed: &[Duration],
        now: Moment,
    ) -> Call {
        let mut call = CHARGE.call(&self.names).arg(self.enforced);
        for charge in self.indexes.iter().map(|&index| &charges.all[index]) {
            let quota_age = now.since(charge.limit.quota_since.get());
            let refill = charge.limit.quota.refill();
            let times = [refill, quota_age, max_debt(charge), added_debt(charge)];
            call = times.into_iter().fold(call, with_time);
        }
        let owed = self.indexes.iter().map(|&index| owed[index]);
        if owed.clone().any(|owed| !owed.is_zero()) {
            call = owed.fold(call, with_time);
        }
        call
    }

    /// Creates the call that refunds the enforced charges of this group.
    pub(super) fn refund(
        &self,
        charges: &RequestCharges<'_>,
        reply: &ChargeReply,
        prefix: &str,
    ) -> Call {
        let (seconds, micros) = reply.at;
        // The marker records that the refund was made, so that Redis does not make it twice. The braces are a hash tag,
        // which puts the marker in the slot of the first bucket.
        let name = &self.names[0];
        let marker = format!("{prefix}:back:{{{name}}}:{:032x}", fastrand::u128(..));
        let names: SmallVec<[&str; USUAL_LIMITS]> = std::iter::once(&marker)
            .chain(&self.names[..self.enforced])
            .map(String::as_str)
            .collect();
        let mut call = REFUND.call(&names).arg(seconds).arg(micros);
        for (&index, &owed) in self.indexes[..self.enforced].iter().zip(&reply.owed) {
            let charge = &charges.all[index];
            let times = [charge.limit.quota.refill(), added_debt(charge), owed];
            call = times.into_iter().fold(call, with_time);
        }
        call
    }
}

fn with_time(call: Call, time: Duration) -> Call {
    call.arg(time.as_secs()).arg(time.subsec_nanos())
}

/// Returns the maximum debt of a bucket after `charge`. A debt is the time until the bucket is full. The maximum is the
/// refill time, plus the longest delay if the rate limit delays requests.
fn max_debt(charge: &Charge<'_>) -> Duration {
    let refill = charge.limit.quota.refill();
    match charge.limit.exceed {
        Exceed::Reject => refill,
        Exceed::Delay { max } => refill.saturating_add(max).min(LONGEST),
    }
}

/// Returns how much `charge` adds to the debt of a bucket, which is the time until the bucket is full.
fn added_debt(charge: &Charge<'_>) -> Duration {
    let quota = charge.limit.quota;
    if charge.cost > quota.capacity() {
        // A bucket never has enough tokens for this cost. The returned debt exceeds the maximum, so the script rejects
        // the charge.
        return max_debt(charge) + Duration::from_secs(1);
    }
    quota.interval() * charge.cost.get()
}

/// Returns the Redis key of a bucket.
pub(super) fn name(prefix: &str, bucket: BucketKey) -> String {
    format!("{prefix}:b:{:016x}{:016x}", bucket.high, bucket.low)
}

/// Returns the cluster slot of a Redis key. `name` must not contain braces, which would be a hash tag.
fn slot(name: &[u8]) -> u16 {
    State::<XMODEM>::calculate(name) % SLOTS
}

impl FromRedisValue for ChargeReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let numbers = Vec::<u64>::from_redis_value(value)?;
        let [admitted, seconds, micros, owed @ ..] = &numbers[..] else {
            return Err("the reply of charge.lua has no time".into());
        };
        let owed = owed.chunks_exact(2).map(|pair| {
            let nanos = u32::try_from(pair[1]).map_err(
                |_| "the nanoseconds in the reply of charge.lua are not a 32-bit number",
            )?;
            Ok(Duration::new(pair[0], nanos))
        });
        Ok(Self {
            admitted: *admitted == 1,
            at: (*seconds, *micros),
            owed: owed.collect::<Result<_, ParsingError>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected slots are the replies of Redis to CLUSTER KEYSLOT.
    #[test]
    fn the_slot_of_a_name_is_the_one_that_redis_computes() {
        let slots = [("foo", 12_182), ("123456789", 12_739), ("user1000", 3_443)];
        for (name, expected) in slots {
            assert_eq!(slot(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn the_name_of_a_bucket_is_the_prefix_and_both_halves_of_its_key() {
        let bucket = BucketKey {
            high: 0xab,
            low: u64::MAX,
        };
        assert_eq!(
            name("gate", bucket),
            "gate:b:00000000000000abffffffffffffffff"
        );
    }
}
