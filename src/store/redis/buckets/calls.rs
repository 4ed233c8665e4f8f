//! The script calls of a request: which buckets one script can charge, their names, the calls and their replies.
//!
//! Each quota of a limit has its own buckets: a name includes the quota. While a change of a quota is rolled out,
//! gateways with the old and the new one would otherwise share a bucket whose debt means a different number of
//! tokens to each, and the quota that refills sooner would cancel debt of the other.
//!
//! A single server decides all buckets of a request together. A cluster spreads them over slots, and a script
//! works within one slot: there, the buckets of each slot are a group. Names have no hash tag: it would put the
//! whole load of a busy client on one server, and the buckets that all clients share belong to no client.
//!
//! The scripts know no quotas. A call passes what a charge adds to a bucket, and the most that a bucket may owe after
//! it. Its reply is decided here, by the same [`decide`](crate::throttle::decide) as for buckets in memory.

use std::hash::Hasher as _;
use std::time::Duration;

use crc16::{State, XMODEM};
use redis::{FromRedisValue, ParsingError, Value};
use siphasher::sip128::{Hash128, Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use super::Charges;
use crate::store::redis::script::{CHARGE, Call, REFUND};
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{BucketKey, Charge, Exceed};

/// Number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// The longest debt, 136 years, which a number in a script can hold.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Charges of a request that one script makes.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Indexes among the charges of the request, the enforced ones first.
    pub(super) indexes: SmallVec<[usize; USUAL_LIMITS]>,
    /// The number of enforced charges.
    pub(super) enforced: usize,
    /// The names of the buckets.
    pub(super) names: SmallVec<[String; USUAL_LIMITS]>,
}

/// On a single server there is one group.
pub(super) type Groups = SmallVec<[Group; 1]>;

/// The reply of the script that charges one group.
#[derive(Debug)]
pub(super) struct ChargeReply {
    /// Whether the enforced charges were made.
    pub(super) admitted: bool,
    /// The time of the charge by the clock of Redis, in seconds and microseconds since 1970.
    pub(super) at: (u64, u64),
    /// The time until each bucket would have been full, before the charge.
    pub(super) owed: SmallVec<[Duration; USUAL_LIMITS]>,
}

/// Returns the groups of `charges`: one for each slot on a cluster, otherwise one.
pub(super) fn groups(charges: &Charges<'_>, prefix: &str, is_cluster: bool) -> Groups {
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
    /// Returns the call that charges this group, after each bucket owes at least its entry in `owed`, which has one
    /// for each charge of the request.
    pub(super) fn charge(&self, charges: &Charges<'_>, owed: &[Duration]) -> Call {
        let mut call = CHARGE.on(&self.names).arg(self.enforced);
        for charge in self.indexes.iter().map(|&index| &charges.all[index]) {
            call = with_time(with_time(call, most(charge)), cost(charge));
        }
        let owed = self.indexes.iter().map(|&index| owed[index]);
        if owed.clone().any(|owed| !owed.is_zero()) {
            call = owed.fold(call, with_time);
        }
        call
    }

    /// Returns the call that refunds the enforced charges of this group.
    pub(super) fn refund(&self, charges: &Charges<'_>, reply: &ChargeReply, prefix: &str) -> Call {
        let (seconds, micros) = reply.at;
        // The braces put it in the slot of that bucket.
        let name = &self.names[0];
        let once = format!("{prefix}:back:{{{name}}}:{:032x}", fastrand::u128(..));
        let names: SmallVec<[&str; USUAL_LIMITS]> = std::iter::once(&once)
            .chain(&self.names[..self.enforced])
            .map(String::as_str)
            .collect();
        let mut call = REFUND.on(&names).arg(seconds).arg(micros);
        for (&index, &owed) in self.indexes[..self.enforced].iter().zip(&reply.owed) {
            call = with_time(with_time(call, cost(&charges.all[index])), owed);
        }
        call
    }
}

fn with_time(call: Call, time: Duration) -> Call {
    call.arg(time.as_secs()).arg(time.subsec_nanos())
}

/// Returns the most that a bucket can owe after a charge.
fn most(charge: &Charge<'_>) -> Duration {
    let refill = charge.limit.quota.refill();
    match charge.limit.exceed {
        Exceed::Reject => refill,
        Exceed::Delay { max } => refill.saturating_add(max).min(LONGEST),
    }
}

/// Returns what a charge adds to the debt of a bucket.
fn cost(charge: &Charge<'_>) -> Duration {
    let quota = charge.limit.quota;
    if charge.cost > quota.capacity() {
        // No bucket holds this many tokens, so the script must reject the charge.
        return most(charge) + Duration::from_secs(1);
    }
    quota.interval() * charge.cost.get()
}

/// Returns `charge` with the bucket that belongs to its quota.
///
/// Two quotas share a bucket only if a token takes the same time to come back and the bucket has the same bound:
/// then the scripts treat it alike.
pub(super) fn per_quota<'a>(charge: &Charge<'a>) -> Charge<'a> {
    let mut quota = SipHasher13::new();
    quota.write(&charge.limit.quota.interval().as_nanos().to_le_bytes());
    quota.write(&most(charge).as_nanos().to_le_bytes());
    let Hash128 { h1, h2 } = quota.finish128();
    // The bucket is a keyed hash already, so this is as unlikely to collide as any other bucket.
    let bucket = BucketKey {
        high: charge.bucket.high ^ h1,
        low: charge.bucket.low ^ h2,
    };
    Charge { bucket, ..*charge }
}

/// Returns the name of a bucket in Redis.
pub(super) fn name(prefix: &str, bucket: BucketKey) -> String {
    format!("{prefix}:b:{:016x}{:016x}", bucket.high, bucket.low)
}

/// Returns the slot of a name without braces.
fn slot(name: &[u8]) -> u16 {
    State::<XMODEM>::calculate(name) % SLOTS
}

impl FromRedisValue for ChargeReply {
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::throttle::{Exceed, Limit, Quota};

    #[test]
    fn each_quota_of_a_limit_has_its_own_bucket() {
        let bucket = BucketKey { high: 1, low: 2 };
        let of = |count, period, burst, exceed| {
            let count = NonZeroU32::new(count).unwrap();
            let quota = Quota::new(count, Duration::from_secs(period), burst).unwrap();
            let limit = Limit {
                exceed,
                ..Limit::per_client("device", quota)
            };
            let cost = NonZeroU32::MIN;
            let limit = &limit;
            per_quota(&Charge {
                limit,
                bucket,
                cost,
            })
            .bucket
        };
        let max = Duration::from_secs(1);
        let buckets = [
            of(1, 1, 0, Exceed::Reject),
            of(1, 1, 3, Exceed::Reject),
            of(1, 60, 0, Exceed::Reject),
            of(1, 1, 1, Exceed::Delay { max }),
        ];
        for (index, bucket) in buckets.iter().enumerate() {
            assert!(!buckets[..index].contains(bucket), "{index}");
        }
        assert_eq!(of(1, 1, 3, Exceed::Reject), of(2, 2, 3, Exceed::Reject));
        // Gateways of any architecture and version find the same bucket.
        assert_eq!(
            name("gate", buckets[0]),
            "gate:b:c451ddef8f8bf9a100f7efc471e96c8e"
        );
    }

    /// The expected slots are those of CLUSTER KEYSLOT.
    #[test]
    fn names_are_in_the_slots_that_redis_puts_them_in() {
        let slots = [("foo", 12_182), ("123456789", 12_739), ("user1000", 3_443)];
        for (name, expected) in slots {
            assert_eq!(slot(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn a_name_is_the_prefix_and_both_halves_in_full() {
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
