//! One shard of the bucket table, and what keeps it bounded.
//!
//! A heap tells which bucket is full without a scan: it holds, for each bucket, a time before which the bucket is not
//! full. A charge moves the time of a bucket ahead and does not touch the heap: an entry is corrected when it reaches the
//! top. Only a clamped debt moves the time back. This happens once to a bucket that was restored under a stricter limit,
//! and its entry is corrected at once.
//!
//! A bucket that is not tracked has the state of its shared bucket, whether or not there is capacity to track it. So a
//! request is decided first, and the shard looks for capacity only if it is admitted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::hashers::BuildIdentityHasher;
use crate::clock::Moment;
use crate::throttle::{BucketKey, LimitId};

/// Full buckets evicted for each new one, so that the shard shrinks again while it is in use.
const EVICTED_PER_INSERT: usize = 2;

/// A shard of the bucket table.
pub(super) struct Shard {
    /// The time at which each tracked bucket is full.
    buckets: HashMap<BucketKey, Moment, BuildIdentityHasher>,
    /// Buckets that the shard may track.
    capacity: usize,
    /// For each tracked bucket a time before which it is not full, earliest first.
    refills: BinaryHeap<Reverse<(Moment, BucketKey)>>,
    /// The shared buckets of each limit, allocated when the limit first needs them.
    shared: HashMap<LimitId, Box<[Moment]>>,
    /// Shared buckets per limit.
    shared_buckets: usize,
}

impl Shard {
    /// Creates a shard that tracks `capacity` buckets and has `shared_buckets` for the others, per limit.
    pub(super) fn new(capacity: usize, shared_buckets: usize) -> Self {
        Self {
            // Allocated at once: the system provides pages only as they are used, and a growing table would take
            // memory twice. A quarter more than is ever used: in a table that is nearly full, removed entries make
            // it grow.
            buckets: HashMap::with_capacity_and_hasher(
                capacity + capacity / 4,
                BuildIdentityHasher,
            ),
            capacity,
            refills: BinaryHeap::with_capacity(capacity),
            shared: HashMap::new(),
            shared_buckets,
        }
    }

    /// The number of tracked buckets.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the time at which `bucket` is full.
    pub(super) fn full_at(&self, limit: LimitId, bucket: BucketKey) -> Moment {
        if let Some(&full_at) = self.buckets.get(&bucket) {
            return full_at;
        }
        match self.shared.get(&limit) {
            Some(shared) => shared[self.shared_index(bucket)],
            None => Moment::default(),
        }
    }

    /// Returns whether `bucket` is tracked by itself.
    pub(super) fn tracks(&self, bucket: BucketKey) -> bool {
        self.buckets.contains_key(&bucket)
    }

    /// Returns every tracked bucket that is not full at `now`, with the nanoseconds until it is.
    pub(super) fn drained(&self, now: Moment) -> impl Iterator<Item = (BucketKey, u64)> {
        self.buckets.iter().filter_map(move |(&bucket, full_at)| {
            let left = full_at.as_nanos().saturating_sub(now.as_nanos());
            (left > 0).then_some((bucket, left))
        })
    }

    /// Tracks `bucket`, which is full at `full_at`, if there is capacity and it is not tracked yet.
    pub(super) fn restore(&mut self, bucket: BucketKey, full_at: Moment) {
        if self.len() < self.capacity && !self.tracks(bucket) {
            self.track(bucket, full_at);
        }
    }

    /// Records that `bucket`, charged at `now`, is full at `full_at`.
    pub(super) fn put(&mut self, limit: LimitId, bucket: BucketKey, full_at: Moment, now: Moment) {
        if let Some(state) = self.buckets.get_mut(&bucket) {
            let before = std::mem::replace(state, full_at);
            if full_at < before {
                self.lower_refill(bucket, full_at);
            }
            return;
        }
        for _ in 0..EVICTED_PER_INSERT {
            if !self.evict_full(now) {
                break;
            }
        }
        if self.len() < self.capacity {
            self.track(bucket, full_at);
        } else {
            self.put_shared(limit, bucket, full_at);
        }
    }

    fn track(&mut self, bucket: BucketKey, full_at: Moment) {
        self.buckets.insert(bucket, full_at);
        self.refills.push(Reverse((full_at, bucket)));
    }

    fn put_shared(&mut self, limit: LimitId, bucket: BucketKey, full_at: Moment) {
        let index = self.shared_index(bucket);
        let shared = self
            .shared
            .entry(limit)
            .or_insert_with(|| vec![Moment::default(); self.shared_buckets].into());
        // A full bucket can be evicted for another bucket of the same request. Its state was then not read from the
        // shared bucket, which can owe more.
        shared[index] = shared[index].max(full_at);
    }

    fn shared_index(&self, bucket: BucketKey) -> usize {
        let index = bucket.low % self.shared_buckets as u64;
        usize::try_from(index).expect("less than a usize")
    }

    /// Lowers the time of `bucket` in the heap to `full_at`, in a scan of the heap.
    fn lower_refill(&mut self, bucket: BucketKey, full_at: Moment) {
        let mut entries = std::mem::take(&mut self.refills).into_vec();
        for Reverse((no_earlier, of)) in &mut entries {
            if *of == bucket {
                *no_earlier = full_at.min(*no_earlier);
            }
        }
        self.refills = entries.into();
    }

    /// Evicts one bucket that is full at `now`. Returns whether there was one.
    fn evict_full(&mut self, now: Moment) -> bool {
        while let Some(&Reverse((no_earlier, bucket))) = self.refills.peek() {
            if no_earlier > now {
                return false;
            }
            self.refills.pop();
            match self.buckets.get(&bucket) {
                Some(&full_at) if full_at > now => self.refills.push(Reverse((full_at, bucket))),
                Some(_) => {
                    self.buckets.remove(&bucket);
                    return true;
                }
                None => debug_assert!(false, "a bucket leaves heap and table together"),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: LimitId = LimitId(0);
    const OTHER: LimitId = LimitId(1);

    /// A shard that tracks `capacity` buckets and has four shared ones per limit.
    fn shard(capacity: usize) -> Shard {
        Shard::new(capacity, 4)
    }

    impl Shard {
        fn charge(&mut self, bucket: BucketKey, full_at: u64, now: u64) {
            let (full_at, now) = (Moment::from_nanos(full_at), Moment::from_nanos(now));
            self.put(LIMIT, bucket, full_at, now);
        }

        fn nanos(&self, bucket: BucketKey) -> u64 {
            self.full_at(LIMIT, bucket).as_nanos()
        }

        /// Returns whether heap and table have the same buckets, none twice, and no entry of the heap is too late.
        fn is_sound(&self) -> bool {
            let mut entries: Vec<_> = self.refills.iter().map(|entry| entry.0).collect();
            entries.sort_unstable_by_key(|&(_, bucket)| bucket);
            entries.dedup_by_key(|&mut (_, bucket)| bucket);
            let timely = entries.iter().all(|(no_earlier, bucket)| {
                let full_at = self.buckets.get(bucket);
                full_at.is_some_and(|full_at| no_earlier <= full_at)
            });
            timely
                && entries.len() == self.refills.len()
                && entries.len() == self.len()
                && entries.len() <= self.capacity
        }
    }

    /// Buckets with the same number share a shared bucket if there are four.
    fn bucket(high: u64, low: u64) -> BucketKey {
        BucketKey { high, low }
    }

    #[test]
    fn an_unknown_bucket_is_full() {
        assert_eq!(shard(1).nanos(bucket(1, 0)), 0);
    }

    #[test]
    fn a_full_bucket_makes_room_and_one_that_is_not_never_does() {
        let mut shard = shard(2);
        let [early, late, newcomer] = [1, 2, 3].map(|high| bucket(high, 0));
        shard.charge(early, 100, 0);
        shard.charge(late, 200, 0);
        shard.charge(newcomer, 150, 99);
        assert!(shard.tracks(early) && shard.tracks(late) && !shard.tracks(newcomer));
        shard.charge(newcomer, 250, 100);
        assert!(!shard.tracks(early) && shard.tracks(late) && shard.tracks(newcomer));
        assert!(shard.is_sound());
    }

    #[test]
    fn a_bucket_charged_again_is_kept_for_as_long_as_it_now_takes() {
        let mut shard = shard(2);
        let [again, once, newcomer] = [1, 2, 3].map(|high| bucket(high, 0));
        shard.charge(again, 100, 0);
        shard.charge(once, 200, 0);
        shard.charge(again, 500, 50);
        shard.charge(newcomer, 600, 300);
        assert!(shard.tracks(again) && !shard.tracks(once) && shard.tracks(newcomer));
        assert_eq!(shard.nanos(again), 500);
        assert!(shard.is_sound());
    }

    #[test]
    fn a_bucket_whose_debt_is_lowered_makes_room_when_it_is_full() {
        let mut shard = shard(1);
        let [lowered, newcomer] = [1, 2].map(|high| bucket(high, 0));
        shard.charge(lowered, 1_000, 0);
        shard.charge(lowered, 50, 10);
        assert!(shard.is_sound());
        shard.charge(newcomer, 200, 60);
        assert!(!shard.tracks(lowered) && shard.tracks(newcomer));
    }

    #[test]
    fn a_shard_that_was_full_shrinks_back_while_it_is_used() {
        let mut shard = shard(64);
        for high in 0..64 {
            shard.charge(bucket(high, 0), 100, 0);
        }
        for step in 0..70 {
            let now = 1_000 + step * 10;
            shard.charge(bucket(1_000 + step, 0), now + 1, now);
        }
        assert_eq!(shard.len(), 1);
        assert!(shard.is_sound());
    }

    #[test]
    fn what_cannot_be_tracked_is_counted_together_limit_by_limit() {
        let mut shard = shard(0);
        shard.charge(bucket(1, 5), 100, 0);
        assert_eq!(shard.nanos(bucket(2, 1)), 100, "the same shared bucket");
        assert_eq!(shard.nanos(bucket(1, 6)), 0, "another shared bucket");
        let of_other = shard.full_at(OTHER, bucket(1, 5));
        assert_eq!(of_other.as_nanos(), 0, "the same one of another limit");
    }

    #[test]
    fn a_bucket_that_finds_room_takes_what_it_owed_along() {
        let mut shard = shard(1);
        let [first, second] = [1, 2].map(|high| bucket(high, 0));
        shard.charge(first, 100, 0);
        shard.charge(second, 900, 50);
        assert_eq!(shard.nanos(second), 900, "kept in the shared bucket");
        let full_at = shard.nanos(second) + 10;
        shard.charge(second, full_at, 100);
        assert!(shard.tracks(second));
        assert_eq!(shard.nanos(second), 910);
        // Others who share the bucket it came from owe no more and no less for it.
        assert_eq!(shard.nanos(bucket(3, 0)), 900);
    }

    #[test]
    fn a_shared_bucket_never_owes_less_than_it_did() {
        let mut shard = shard(0);
        shard.charge(bucket(1, 0), 900, 0);
        shard.charge(bucket(2, 0), 100, 0);
        assert_eq!(shard.nanos(bucket(2, 0)), 900);
    }

    proptest! {
        /// After any charges and lowered debts, heap and table agree, the share is kept, and no bucket that is not
        /// full is dropped.
        #[test]
        fn a_shard_stays_sound(
            share in 0_usize..6,
            charges in prop::collection::vec((0_u64..12, 0_u64..20, 1_u64..60, any::<bool>()), 1..200),
        ) {
            let mut shard = shard(share);
            let mut owed = [0_u64; 12];
            let mut now = 0;
            for (index, step, cost, lowers) in charges {
                now += step;
                let bucket = bucket(index, index);
                let owes = &mut owed[usize::try_from(index).unwrap()];
                let before = if lowers { 0 } else { shard.nanos(bucket) };
                *owes = if lowers { now } else { (*owes).max(now) } + cost;
                shard.charge(bucket, before.max(now) + cost, now);
                prop_assert!(shard.is_sound());
                for (index, &owes) in (0..).zip(&owed) {
                    let held = shard.nanos(self::bucket(index, index));
                    prop_assert!(owes <= now || held >= owes, "{index} owes {owes}, not {held}");
                }
            }
        }
    }
}
