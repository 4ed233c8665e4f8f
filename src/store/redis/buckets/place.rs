//! What a bucket is called in Redis, and which of them can be charged in one step.
//!
//! A single server decides all of a request's buckets together. A cluster spreads them over slots, and a
//! script works within one: there, the buckets of each slot are a group. Their names carry no hash tag:
//! to keep all buckets of a client together would put all of a busy client's load on one server, and the
//! buckets that all clients share could lie with none of them.

use crc16::{State, XMODEM};
use smallvec::SmallVec;

use super::Wanted;
use crate::throttle::BucketKey;
use crate::throttle::decision::USUAL_LIMITS;

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// What a bucket is called.
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
    use super::*;

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
