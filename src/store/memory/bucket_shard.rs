//! A shard of the table of rate limit buckets.
//!
//! A heap finds full buckets without a scan. It has one entry per tracked bucket: a time at which the bucket can be
//! full. A charge does not change the heap; the outdated entry is corrected at the top of the heap. A bucket that is
//! full earlier, because it was refilled or a reload has raised its quota, is evicted late.
//!
//! A bucket that is not tracked has the state of its shared bucket, even if the shard has capacity to track it. So the
//! decision on a request does not depend on evictions, which follow an admission.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use crate::clock::Moment;
use crate::request::hash_keys::BuildIdentityHasher;
use crate::throttle::decision::full_at_under;
use crate::throttle::{BucketKey, BucketState, Limit};

/// Full buckets evicted per new bucket: more than one, so that the shard shrinks while it is used.
const EVICTED_PER_INSERT: usize = 2;

pub(super) struct BucketShard {
    buckets: HashMap<BucketKey, BucketState, BuildIdentityHasher>,
    capacity: usize,
    /// For each tracked bucket a time at which it can be full.
    refills: BinaryHeap<Reverse<(Moment, BucketKey)>>,
    /// By rate limit, allocated when the first one is used.
    shared: HashMap<Arc<str>, Box<[BucketState]>>,
    shared_buckets: usize,
    pub(super) shared_charges: u64,
}

impl BucketShard {
    pub(super) fn new(capacity: usize, shared_buckets: usize) -> Self {
        Self {
            // The table has its final size, because a growing table needs memory for two copies, and unused pages cost
            // none. It is 25 % larger than `capacity`, because removed entries would make a nearly full table grow.
            buckets: HashMap::with_capacity_and_hasher(
                capacity + capacity / 4,
                BuildIdentityHasher,
            ),
            capacity,
            refills: BinaryHeap::with_capacity(capacity),
            shared: HashMap::new(),
            shared_buckets,
            shared_charges: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// An untracked bucket has the state of its shared bucket.
    pub(super) fn state(&self, limit: &Limit, bucket: BucketKey) -> BucketState {
        if let Some(&state) = self.buckets.get(&bucket) {
            return state;
        }
        match self.shared.get(&limit.name) {
            Some(shared) => shared[self.shared_index(bucket)],
            None => BucketState::default(),
        }
    }

    pub(super) fn tracks(&self, bucket: BucketKey) -> bool {
        self.buckets.contains_key(&bucket)
    }

    pub(super) fn drained(&self, now: Moment) -> impl Iterator<Item = (BucketKey, BucketState)> {
        let all = self.buckets.iter().map(|(&bucket, &state)| (bucket, state));
        all.filter(move |(_, state)| state.full_at > now)
    }

    /// Does nothing if the shard has no capacity or already tracks the bucket.
    pub(super) fn restore(&mut self, bucket: BucketKey, state: BucketState) {
        if self.len() < self.capacity && !self.tracks(bucket) {
            self.track(bucket, state);
        }
    }

    pub(super) fn retain_limits(&mut self, limits: &[&str]) {
        self.shared.retain(|name, _| limits.contains(&&**name));
    }

    /// A bucket that cannot be tracked is charged to its shared bucket.
    pub(super) fn put(&mut self, limit: &Limit, bucket: BucketKey, full_at: Moment, now: Moment) {
        let state = limit.quota.state(full_at);
        if let Some(known) = self.buckets.get_mut(&bucket) {
            *known = state;
            return;
        }
        for _ in 0..EVICTED_PER_INSERT {
            if !self.evict_full(now) {
                break;
            }
        }
        if self.len() < self.capacity {
            self.track(bucket, state);
        } else {
            self.put_shared(limit, bucket, full_at, now);
        }
    }

    fn track(&mut self, bucket: BucketKey, state: BucketState) {
        self.buckets.insert(bucket, state);
        self.refills.push(Reverse((state.full_at, bucket)));
    }

    fn put_shared(&mut self, limit: &Limit, bucket: BucketKey, full_at: Moment, now: Moment) {
        self.shared_charges += 1;
        let index = self.shared_index(bucket);
        let shared = self
            .shared
            .entry(Arc::clone(&limit.name))
            .or_insert_with(|| vec![BucketState::default(); self.shared_buckets].into());
        // `full_at` can be earlier than that of the shared bucket, if `bucket` was tracked when the request was
        // decided, and then evicted for another bucket of the same request.
        let known = full_at_under(limit, shared[index], now);
        shared[index] = limit.quota.state(known.max(full_at));
    }

    fn shared_index(&self, bucket: BucketKey) -> usize {
        let index = bucket.low % self.shared_buckets as u64;
        usize::try_from(index).expect("the index of a shared bucket fits into a usize")
    }

    /// Returns `false` if no bucket is full.
    fn evict_full(&mut self, now: Moment) -> bool {
        while let Some(&Reverse((no_earlier, bucket))) = self.refills.peek() {
            if no_earlier > now {
                return false;
            }
            self.refills.pop();
            match self.buckets.get(&bucket) {
                Some(state) if state.full_at > now => {
                    self.refills.push(Reverse((state.full_at, bucket)));
                }
                Some(_) => {
                    self.buckets.remove(&bucket);
                    return true;
                }
                None => debug_assert!(false, "the heap has a bucket that the table does not have"),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limit(name: &str) -> Limit {
        Limit::per_client(name, "1/s".parse().unwrap())
    }

    /// Creates a shard that tracks up to `capacity` buckets and has four shared buckets per rate limit.
    fn shard(capacity: usize) -> BucketShard {
        BucketShard::new(capacity, 4)
    }

    impl BucketShard {
        fn charge(&mut self, bucket: BucketKey, full_at: u64, now: u64) {
            let (full_at, now) = (Moment::from_nanos(full_at), Moment::from_nanos(now));
            self.put(&limit("device"), bucket, full_at, now);
        }

        fn nanos(&self, bucket: BucketKey) -> u64 {
            self.state(&limit("device"), bucket).full_at.as_nanos()
        }

        /// Returns whether the heap and the table have the same buckets, each once.
        fn is_consistent(&self) -> bool {
            let mut entries: Vec<_> = self.refills.iter().map(|entry| entry.0).collect();
            entries.sort_unstable_by_key(|&(_, bucket)| bucket);
            entries.dedup_by_key(|&mut (_, bucket)| bucket);
            entries.iter().all(|(_, bucket)| self.tracks(*bucket))
                && entries.len() == self.refills.len()
                && entries.len() == self.len()
                && entries.len() <= self.capacity
        }
    }

    /// Returns a bucket key. In a shard with four shared buckets, `low` modulo 4 selects the shared bucket of this key.
    fn bucket(high: u64, low: u64) -> BucketKey {
        BucketKey { high, low }
    }

    #[test]
    fn an_untracked_bucket_is_full() {
        assert_eq!(shard(1).nanos(bucket(1, 0)), 0);
    }

    #[test]
    fn only_full_buckets_are_evicted_for_new_ones() {
        let mut shard = shard(2);
        let [early, late, newcomer] = [1, 2, 3].map(|high| bucket(high, 0));
        shard.charge(early, 100, 0);
        shard.charge(late, 200, 0);
        shard.charge(newcomer, 150, 99);
        assert!(shard.tracks(early) && shard.tracks(late) && !shard.tracks(newcomer));
        shard.charge(newcomer, 250, 100);
        assert!(!shard.tracks(early) && shard.tracks(late) && shard.tracks(newcomer));
        assert!(shard.is_consistent());
    }

    #[test]
    fn a_bucket_charged_again_is_not_evicted_before_it_is_full() {
        let mut shard = shard(2);
        let [again, once, newcomer] = [1, 2, 3].map(|high| bucket(high, 0));
        shard.charge(again, 100, 0);
        shard.charge(once, 200, 0);
        shard.charge(again, 500, 50);
        shard.charge(newcomer, 600, 300);
        assert!(shard.tracks(again) && !shard.tracks(once) && shard.tracks(newcomer));
        assert_eq!(shard.nanos(again), 500);
        assert!(shard.is_consistent());
    }

    #[test]
    fn a_full_shard_shrinks_while_it_is_used() {
        let mut shard = shard(64);
        for high in 0..64 {
            shard.charge(bucket(high, 0), 100, 0);
        }
        for step in 0..70 {
            let now = 1_000 + step * 10;
            shard.charge(bucket(1_000 + step, 0), now + 1, now);
        }
        assert_eq!(shard.len(), 1);
        assert!(shard.is_consistent());
    }

    #[test]
    fn untracked_buckets_of_a_limit_share_a_bucket() {
        let mut shard = shard(0);
        shard.charge(bucket(1, 5), 100, 0);
        assert_eq!(shard.nanos(bucket(2, 1)), 100, "the same shared bucket");
        assert_eq!(shard.nanos(bucket(1, 6)), 0, "another shared bucket");
        assert_eq!(shard.shared_charges, 1);
        let other = limit("other");
        let of_other = |shard: &BucketShard| shard.state(&other, bucket(1, 5)).full_at.as_nanos();
        assert_eq!(of_other(&shard), 0, "the shared bucket of another limit");
        shard.retain_limits(&[&*other.name]);
        assert_eq!(shard.nanos(bucket(2, 1)), 0, "after its limit is removed");
    }

    #[test]
    fn a_bucket_that_becomes_tracked_starts_with_the_state_of_its_shared_bucket() {
        let mut shard = shard(1);
        let [first, second] = [1, 2].map(|high| bucket(high, 0));
        shard.charge(first, 100, 0);
        shard.charge(second, 900, 50);
        assert_eq!(shard.nanos(second), 900, "state of the shared bucket");
        let full_at = shard.nanos(second) + 10;
        shard.charge(second, full_at, 100);
        assert!(shard.tracks(second));
        assert_eq!(shard.nanos(second), 910);
        // The charge to the tracked bucket has not changed the shared bucket.
        assert_eq!(shard.nanos(bucket(3, 0)), 900);
    }

    #[test]
    fn a_charge_never_lowers_the_refill_time_of_a_shared_bucket() {
        let mut shard = shard(0);
        shard.charge(bucket(1, 0), 900, 0);
        shard.charge(bucket(2, 0), 100, 0);
        assert_eq!(shard.nanos(bucket(2, 0)), 900);
    }

    proptest! {
        /// Applies a random sequence of charges, and of changes that bring forward the time at which a bucket is full.
        /// Afterwards, the heap and the table are consistent, the shard does not exceed its capacity, and no bucket is
        /// full before the time that its charges and changes imply.
        #[test]
        fn random_charges_keep_a_shard_consistent(
            capacity in 0_usize..6,
            charges in prop::collection::vec((0_u64..12, 0_u64..20, 1_u64..60, any::<bool>()), 1..200),
        ) {
            let mut shard = shard(capacity);
            let mut expected = [0_u64; 12];
            let mut now = 0;
            for (index, step, cost, lowers) in charges {
                now += step;
                let bucket = bucket(index, index);
                let full_at = &mut expected[usize::try_from(index).unwrap()];
                let before = if lowers { 0 } else { shard.nanos(bucket) };
                *full_at = if lowers { now } else { (*full_at).max(now) } + cost;
                shard.charge(bucket, before.max(now) + cost, now);
                prop_assert!(shard.is_consistent());
                for (index, &full_at) in (0..).zip(&expected) {
                    let actual = shard.nanos(self::bucket(index, index));
                    prop_assert!(
                        full_at <= now || actual >= full_at,
                        "bucket {index} is full at {actual}, expected {full_at} or later"
                    );
                }
            }
        }
    }
}
