//! One shard of the table, locked, with what keeps it bounded.
//!
//! Which bucket is full is known without a scan: a heap holds, for each bucket, a moment before which
//! it cannot be full. A charge moves that moment ahead, so an entry is corrected when it comes up: a charge
//! to a tracked bucket does not touch the heap. Only a clamped debt moves the moment back. This happens once to
//! a bucket that was restored under a stricter limit, and its entry is corrected at once.
//!
//! Where a bucket will be kept does not matter to what it holds: one that is not tracked holds what its
//! shared bucket does, whether or not there is room to track it. So a request is decided first, and room
//! is looked for only when it was admitted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use dashmap::{RwLockWriteGuard, SharedValue};
use hashbrown::raw::RawTable;
use parking_lot::Mutex;

use crate::clock::Moment;
use crate::throttle::{BucketKey, LimitId};

/// Full buckets dropped whenever a new one comes, so that the table shrinks back while it is used.
const RECLAIMED_PER_INSERT: usize = 2;

type Table = RawTable<(BucketKey, SharedValue<Moment>)>;

/// What keeps a shard bounded.
pub(super) struct Margin {
    /// Buckets the shard may hold.
    share: usize,
    /// For each bucket of the shard a moment before which it is not full, earliest first.
    refills: BinaryHeap<Reverse<(Moment, BucketKey)>>,
    /// Shared buckets, made when a limit first needs them.
    overflow: HashMap<LimitId, Box<[Moment]>>,
    /// Shared buckets a limit has here.
    overflow_buckets: usize,
}

/// A shard of the table whose lock is held.
pub(super) struct Shard<'a> {
    table: RwLockWriteGuard<'a, Table>,
    margin: &'a Mutex<Margin>,
}

impl Margin {
    pub(super) fn new(share: usize, overflow_buckets: usize) -> Self {
        Self {
            share,
            refills: BinaryHeap::with_capacity(share),
            overflow: HashMap::new(),
            overflow_buckets,
        }
    }

    fn slot(&self, bucket: BucketKey) -> usize {
        let slots = self.overflow_buckets as u64;
        usize::try_from(bucket.low % slots).expect("less than a usize")
    }

    /// When the shared bucket that stands in for `bucket` will be full.
    fn shared(&self, limit: LimitId, bucket: BucketKey) -> Moment {
        match self.overflow.get(&limit) {
            Some(slots) => slots[self.slot(bucket)],
            None => Moment::default(),
        }
    }

    fn share(&mut self, limit: LimitId, bucket: BucketKey, full_at: Moment) {
        let slot = self.slot(bucket);
        let slots = self.overflow_buckets;
        let shared = self
            .overflow
            .entry(limit)
            .or_insert_with(|| vec![Moment::default(); slots].into());
        // A bucket that was full and lost its place to another of the same request comes here without
        // having read the shared one, which may owe more.
        shared[slot] = shared[slot].max(full_at);
    }

    /// Moves the entry of `bucket` back to `full_at` if it is later. Scans the heap.
    fn bring_forward(&mut self, bucket: BucketKey, full_at: Moment) {
        let mut entries = std::mem::take(&mut self.refills).into_vec();
        for Reverse((no_earlier, of)) in &mut entries {
            if *of == bucket {
                *no_earlier = full_at.min(*no_earlier);
            }
        }
        self.refills = entries.into();
    }

    /// Drops one bucket that is full by `now`, if there is one.
    fn drop_full(&mut self, table: &mut Table, now: Moment) -> bool {
        while let Some(&Reverse((no_earlier, bucket))) = self.refills.peek() {
            if no_earlier > now {
                return false;
            }
            self.refills.pop();
            match state(table, bucket) {
                Some(full_at) if full_at > now => self.refills.push(Reverse((full_at, bucket))),
                Some(_) => {
                    table.remove_entry(bucket.high, |(key, _)| *key == bucket);
                    return true;
                }
                None => debug_assert!(false, "a bucket leaves heap and table together"),
            }
        }
        false
    }
}

impl<'a> Shard<'a> {
    pub(super) fn new(table: RwLockWriteGuard<'a, Table>, margin: &'a Mutex<Margin>) -> Self {
        Self { table, margin }
    }

    /// When `bucket` will be full.
    pub(super) fn full_at(&self, limit: LimitId, bucket: BucketKey) -> Moment {
        match state(&self.table, bucket) {
            Some(full_at) => full_at,
            None => self.margin.lock().shared(limit, bucket),
        }
    }

    /// Returns whether `bucket` has an entry of its own.
    pub(super) fn tracks(&self, bucket: BucketKey) -> bool {
        state(&self.table, bucket).is_some()
    }

    /// Every bucket that is not full by `now`, with the nanoseconds it takes to fill.
    pub(super) fn drained(&self, now: Moment) -> Vec<(BucketKey, u64)> {
        // From the heap, which names every bucket of the table; the table itself cannot be walked safely.
        let margin = self.margin.lock();
        let buckets = margin.refills.iter().map(|&Reverse((_, bucket))| bucket);
        buckets
            .filter_map(|bucket| {
                let full_at = state(&self.table, bucket)?.as_nanos();
                let left = full_at.saturating_sub(now.as_nanos());
                (left > 0).then_some((bucket, left))
            })
            .collect()
    }

    /// Takes up `bucket`, which will be full at `full_at`, if there is room for it.
    pub(super) fn restore(&mut self, bucket: BucketKey, full_at: Moment) {
        let mut margin = self.margin.lock();
        if self.table.len() < margin.share && state(&self.table, bucket).is_none() {
            let entry = (bucket, SharedValue::new(full_at));
            self.table.insert(bucket.high, entry, |(key, _)| key.high);
            margin.refills.push(Reverse((full_at, bucket)));
        }
    }

    /// Records that `bucket`, charged at `now`, will be full at `full_at`.
    pub(super) fn put(&mut self, limit: LimitId, bucket: BucketKey, full_at: Moment, now: Moment) {
        let tracked = self.table.get_mut(bucket.high, |(key, _)| *key == bucket);
        if let Some((_, state)) = tracked {
            let before = std::mem::replace(state.get_mut(), full_at);
            if full_at < before {
                self.margin.lock().bring_forward(bucket, full_at);
            }
            return;
        }
        let mut margin = self.margin.lock();
        for _ in 0..RECLAIMED_PER_INSERT {
            if !margin.drop_full(&mut self.table, now) {
                break;
            }
        }
        if self.table.len() < margin.share {
            let entry = (bucket, SharedValue::new(full_at));
            self.table.insert(bucket.high, entry, |(key, _)| key.high);
            margin.refills.push(Reverse((full_at, bucket)));
        } else {
            margin.share(limit, bucket, full_at);
        }
    }
}

fn state(table: &Table, bucket: BucketKey) -> Option<Moment> {
    table
        .get(bucket.high, |(key, _)| *key == bucket)
        .map(|(_, state)| *state.get())
}

#[cfg(test)]
mod tests {
    use dashmap::DashMap;
    use proptest::prelude::*;

    use super::super::taken::TakenAsHash;
    use super::*;

    const LIMIT: LimitId = LimitId(0);
    const OTHER: LimitId = LimitId(1);

    /// One shard with room for `share` buckets and a few shared ones.
    struct Kept {
        table: DashMap<BucketKey, Moment, TakenAsHash>,
        margin: Mutex<Margin>,
    }

    impl Kept {
        fn with_share(share: usize) -> Self {
            Self {
                table: DashMap::with_capacity_and_hasher_and_shard_amount(8, TakenAsHash, 2),
                margin: Mutex::new(Margin::new(share, 4)),
            }
        }

        fn lock(&self) -> Shard<'_> {
            Shard::new(self.table.shards()[0].write(), &self.margin)
        }

        fn put(&self, bucket: BucketKey, full_at: u64, now: u64) {
            let (full_at, now) = (Moment::from_nanos(full_at), Moment::from_nanos(now));
            self.lock().put(LIMIT, bucket, full_at, now);
        }

        fn full_at(&self, bucket: BucketKey) -> u64 {
            self.lock().full_at(LIMIT, bucket).as_nanos()
        }

        fn tracks(&self, bucket: BucketKey) -> bool {
            state(&self.lock().table, bucket).is_some()
        }

        /// Heap and table name the same buckets, none twice, and no entry of the heap is too late.
        fn is_sound(&self) -> bool {
            let shard = self.lock();
            let margin = self.margin.lock();
            let mut entries: Vec<_> = margin.refills.iter().map(|entry| entry.0).collect();
            entries.sort_unstable_by_key(|&(_, bucket)| bucket);
            entries.dedup_by_key(|&mut (_, bucket)| bucket);
            let timely = entries.iter().all(|&(no_earlier, bucket)| {
                state(&shard.table, bucket).is_some_and(|full_at| no_earlier <= full_at)
            });
            timely
                && entries.len() == margin.refills.len()
                && entries.len() == shard.table.len()
                && entries.len() <= margin.share
        }
    }

    /// Buckets with the same number share a shared bucket if there are four.
    fn bucket(high: u64, low: u64) -> BucketKey {
        BucketKey { high, low }
    }

    #[test]
    fn an_unknown_bucket_is_full() {
        assert_eq!(Kept::with_share(1).full_at(bucket(1, 0)), 0);
    }

    #[test]
    fn a_full_bucket_makes_room_and_one_that_is_not_never_does() {
        let kept = Kept::with_share(2);
        let [early, late, newcomer] = [1, 2, 3].map(|high| bucket(high, 0));
        kept.put(early, 100, 0);
        kept.put(late, 200, 0);
        kept.put(newcomer, 150, 99);
        assert!(kept.tracks(early) && kept.tracks(late) && !kept.tracks(newcomer));
        kept.put(newcomer, 250, 100);
        assert!(!kept.tracks(early) && kept.tracks(late) && kept.tracks(newcomer));
        assert!(kept.is_sound());
    }

    #[test]
    fn a_bucket_charged_again_is_kept_for_as_long_as_it_now_takes() {
        let kept = Kept::with_share(2);
        let [again, once, newcomer] = [1, 2, 3].map(|high| bucket(high, 0));
        kept.put(again, 100, 0);
        kept.put(once, 200, 0);
        kept.put(again, 500, 50);
        kept.put(newcomer, 600, 300);
        assert!(kept.tracks(again) && !kept.tracks(once) && kept.tracks(newcomer));
        assert_eq!(kept.full_at(again), 500);
        assert!(kept.is_sound());
    }

    #[test]
    fn a_bucket_whose_debt_is_lowered_makes_room_when_it_is_full() {
        let kept = Kept::with_share(1);
        let [lowered, newcomer] = [1, 2].map(|high| bucket(high, 0));
        kept.put(lowered, 1_000, 0);
        kept.put(lowered, 50, 10);
        assert!(kept.is_sound());
        kept.put(newcomer, 200, 60);
        assert!(!kept.tracks(lowered) && kept.tracks(newcomer));
    }

    #[test]
    fn a_shard_that_was_full_shrinks_back_while_it_is_used() {
        let kept = Kept::with_share(64);
        for high in 0..64 {
            kept.put(bucket(high, 0), 100, 0);
        }
        for step in 0..70 {
            let now = 1_000 + step * 10;
            kept.put(bucket(1_000 + step, 0), now + 1, now);
        }
        assert_eq!(kept.lock().table.len(), 1);
        assert!(kept.is_sound());
    }

    #[test]
    fn what_cannot_be_tracked_is_counted_together_limit_by_limit() {
        let kept = Kept::with_share(0);
        kept.put(bucket(1, 5), 100, 0);
        assert_eq!(kept.full_at(bucket(2, 1)), 100, "the same shared bucket");
        assert_eq!(kept.full_at(bucket(1, 6)), 0, "another shared bucket");
        let of_other = kept.lock().full_at(OTHER, bucket(1, 5));
        assert_eq!(of_other.as_nanos(), 0, "the same one of another limit");
    }

    #[test]
    fn a_bucket_that_finds_room_takes_what_it_owed_along() {
        let kept = Kept::with_share(1);
        let [first, second] = [1, 2].map(|high| bucket(high, 0));
        kept.put(first, 100, 0);
        kept.put(second, 900, 50);
        assert_eq!(kept.full_at(second), 900, "kept in the shared bucket");
        kept.put(second, kept.full_at(second) + 10, 100);
        assert!(kept.tracks(second));
        assert_eq!(kept.full_at(second), 910);
        // Others who share the bucket it came from owe no more and no less for it.
        assert_eq!(kept.full_at(bucket(3, 0)), 900);
    }

    #[test]
    fn a_shared_bucket_never_owes_less_than_it_did() {
        let kept = Kept::with_share(0);
        kept.put(bucket(1, 0), 900, 0);
        kept.put(bucket(2, 0), 100, 0);
        assert_eq!(kept.full_at(bucket(2, 0)), 900);
    }

    proptest! {
        /// After any charges and lowered debts, heap and table agree, the share is kept, and no bucket that is not
        /// full is dropped.
        #[test]
        fn a_shard_stays_sound(
            share in 0_usize..6,
            charges in prop::collection::vec((0_u64..12, 0_u64..20, 1_u64..60, any::<bool>()), 1..200),
        ) {
            let kept = Kept::with_share(share);
            let mut owed = [0_u64; 12];
            let mut now = 0;
            for (index, step, cost, lowers) in charges {
                now += step;
                let bucket = bucket(index, index);
                let owes = &mut owed[usize::try_from(index).unwrap()];
                let before = if lowers { 0 } else { kept.full_at(bucket) };
                *owes = if lowers { now } else { (*owes).max(now) } + cost;
                kept.put(bucket, before.max(now) + cost, now);
                prop_assert!(kept.is_sound());
                for (index, &owes) in (0..).zip(&owed) {
                    let held = kept.full_at(self::bucket(index, index));
                    prop_assert!(owes <= now || held >= owes, "{index} owes {owes}, not {held}");
                }
            }
        }
    }
}
