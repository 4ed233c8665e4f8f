//! Names of buckets in Redis, and which buckets one script can charge.
//!
//! Each quota of a limit has its own buckets: a name includes the quota. While a change of a quota is rolled out,
//! gateways with the old and the new one would otherwise share a bucket whose debt means a different number of
//! tokens to each, and the quota that refills sooner would cancel debt of the other.
//!
//! A single server decides all buckets of a request together. A cluster spreads them over slots, and a script
//! works within one slot: there, the buckets of each slot are a group. Names have no hash tag: it would put the
//! whole load of a busy client on one server, and the buckets that all clients share belong to no client.

use std::hash::Hasher as _;

use crc16::{State, XMODEM};
use siphasher::sip128::{Hash128, Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use super::{Wanted, scripts};
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{BucketKey, Charge};

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// Returns `charge` with the bucket that belongs to its quota.
///
/// Two quotas share a bucket only if a token takes the same time to come back and the bucket has the same bound:
/// then the scripts treat it alike.
pub(super) fn per_quota<'a>(charge: &Charge<'a>) -> Charge<'a> {
    let mut quota = SipHasher13::new();
    quota.write(&charge.limit.quota.interval().as_nanos().to_le_bytes());
    quota.write(&scripts::most(charge).as_nanos().to_le_bytes());
    let Hash128 { h1, h2 } = quota.finish128();
    // The bucket is a keyed hash already, so this is as unlikely to collide as any other bucket.
    let bucket = BucketKey {
        high: charge.bucket.high ^ h1,
        low: charge.bucket.low ^ h2,
    };
    Charge { bucket, ..*charge }
}

/// Returns the name of a bucket.
pub(super) fn name(prefix: &str, bucket: BucketKey) -> String {
    format!("{prefix}:b:{:016x}{:016x}", bucket.high, bucket.low)
}

/// Charges that are made in one step, by their places among all of a request's.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The enforced ones first.
    pub(super) places: SmallVec<[usize; USUAL_LIMITS]>,
    /// How many of them are enforced.
    pub(super) enforced: usize,
    /// What their buckets are called.
    pub(super) names: SmallVec<[String; USUAL_LIMITS]>,
}

/// Few requests have limits in more than one slot, and none has on a single server.
pub(super) type Groups = SmallVec<[Group; 1]>;

/// The groups of a request's charges; `clustered` if each slot is on its own.
pub(super) fn groups(wanted: &Wanted<'_>, prefix: &str, clustered: bool) -> Groups {
    let mut groups = Groups::new();
    let mut slots: SmallVec<[u16; USUAL_LIMITS]> = SmallVec::new();
    for (place, charge) in wanted.all().enumerate() {
        let name = name(prefix, charge.bucket);
        let slot = if clustered { slot(name.as_bytes()) } else { 0 };
        let known = slots.iter().position(|&it| it == slot);
        let index = known.unwrap_or_else(|| {
            slots.push(slot);
            groups.push(Group::default());
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.places.push(place);
        group.names.push(name);
        group.enforced += usize::from(place < wanted.enforced.len());
    }
    groups
}

/// The slot of a cluster that a name is in; it has no braces, within which alone it would count.
fn slot(name: &[u8]) -> u16 {
    State::<XMODEM>::calculate(name) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

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

    /// As CLUSTER KEYSLOT tells them.
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
