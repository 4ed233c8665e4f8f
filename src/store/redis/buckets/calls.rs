//! The script calls that charge and refund the rate limit buckets of a request.
//!
//! On a cluster, a script can use the Redis keys of one slot only, so the buckets of each slot form a group. The names
//! have no hash tag, which would put the load of a busy client on one server, and which buckets that all clients share
//! could not have.
//!
//! The scripts do not know the quota. A call passes the refill time of a bucket, the age of the quota, the maximum debt
//! after the charge, and what the charge adds to the debt. A stored bucket has the refill time of its last charge, and
//! the script scales its debt if a gateway with another quota charges it. So gateways with the old and the new quota
//! share buckets while a change is rolled out. The gateway decides by the reply, with the same
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

const SLOTS: u16 = 16_384;

/// 136 years until a bucket is full. The scripts compute exactly with debts up to this size.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Charges whose buckets are in one slot.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Indexes into the charges of the request, the enforced ones first.
    pub(super) indexes: SmallVec<[usize; USUAL_LIMITS]>,
    pub(super) enforced: usize,
    pub(super) names: SmallVec<[String; USUAL_LIMITS]>,
}

/// One group, unless on a cluster.
pub(super) type Groups = SmallVec<[Group; 1]>;

#[derive(Debug)]
pub(super) struct ChargeReply {
    pub(super) admitted: bool,
    /// By the clock of Redis, in seconds and microseconds since 1970.
    pub(super) at: (u64, u64),
    /// The debt of each bucket before the charge: the time until it is full.
    pub(super) owed: SmallVec<[Duration; USUAL_LIMITS]>,
}

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
    /// Redis raises the debt of each bucket to at least that in `owed`, which has one for each charge of the request.
    pub(super) fn charge(
        &self,
        charges: &RequestCharges<'_>,
        owed: &[Duration],
        now: Moment,
    ) -> Call {
        let mut call = Call::new(&CHARGE, &self.names).arg(self.enforced);
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

    pub(super) fn refund(
        &self,
        charges: &RequestCharges<'_>,
        reply: &ChargeReply,
        prefix: &str,
    ) -> Call {
        let (seconds, micros) = reply.at;
        // The marker makes the refund unique. Its braces are a hash tag, for the slot of the first bucket.
        let name = &self.names[0];
        let marker = format!("{prefix}:back:{{{name}}}:{:032x}", fastrand::u128(..));
        let names: SmallVec<[&str; USUAL_LIMITS]> = std::iter::once(&marker)
            .chain(&self.names[..self.enforced])
            .map(String::as_str)
            .collect();
        let mut call = Call::new(&REFUND, &names).arg(seconds).arg(micros);
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

/// Maximum debt after `charge`: the refill time, plus the longest delay.
fn max_debt(charge: &Charge<'_>) -> Duration {
    let refill = charge.limit.quota.refill();
    match charge.limit.exceed {
        Exceed::Reject => refill,
        Exceed::Delay { max } => refill.saturating_add(max).min(LONGEST),
    }
}

fn added_debt(charge: &Charge<'_>) -> Duration {
    let quota = charge.limit.quota;
    if charge.cost > quota.capacity() {
        // The debt exceeds the maximum, so the script rejects the charge.
        return max_debt(charge) + Duration::from_secs(1);
    }
    quota.interval() * charge.cost.get()
}

pub(super) fn name(prefix: &str, bucket: BucketKey) -> String {
    format!("{prefix}:b:{:016x}{:016x}", bucket.high, bucket.low)
}

/// `name` must not contain braces, which would be a hash tag.
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
