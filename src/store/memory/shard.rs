//! One shard of the table, locked, with what keeps it bounded.
//!
//! Which bucket is full is known without a scan: a heap holds, for each bucket, a moment before which
//! it cannot be full. Charges only move that moment ahead, so an entry is put right when it comes up
//! and never before: a charge to a tracked bucket does not touch the heap.

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
    /// For each bucket a moment before which it is not full, earliest first.
    refills: BinaryHeap<Reverse<(Moment, BucketKey)>>,
    /// Shared buckets, made when a limit first needs them.
    overflow: HashMap<LimitId, Box<[Moment]>>,
    /// Shared buckets a limit has here.
    overflow_buckets: usize,
}

/// Where a bucket is, or is to be, kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the table.
    Tracked,
    /// Nowhere yet, and there is room in the table.
    Untracked,
    /// In a bucket shared with others.
    Shared,
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

    fn shared(&self, limit: LimitId, bucket: BucketKey) -> Moment {
        match self.overflow.get(&limit) {
            Some(slots) => slots[self.slot(bucket)],
            None => Moment::default(),
        }
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

    /// Where `bucket` is or would be kept, and when it will be full.
    pub(super) fn find(
        &mut self,
        limit: LimitId,
        bucket: BucketKey,
        now: Moment,
    ) -> (Place, Moment) {
        if let Some(full_at) = state(&self.table, bucket) {
            return (Place::Tracked, full_at);
        }
        let mut margin = self.margin.lock();
        for _ in 0..RECLAIMED_PER_INSERT {
            if !margin.drop_full(&mut self.table, now) {
                break;
            }
        }
        // Two newcomers of one request can both be promised the last room; the shard then holds one
        // more than its share until the next one comes.
        let place = if self.table.len() < margin.share { Place::Untracked } else { Place::Shared };
        (place, margin.shared(limit, bucket))
    }

    /// Records when `bucket`, found at `place`, will be full.
    pub(super) fn put(
        &mut self,
        limit: LimitId,
        bucket: BucketKey,
        place: Place,
        full_at: Moment,
    ) {
        match place {
            // A bucket found in the table may have left it since: it was full, and another charge of the
            // same request needed room.
            Place::Tracked | Place::Untracked => {
                match self.table.get_mut(bucket.high, |(key, _)| *key == bucket) {
                    Some((_, state)) => *state.get_mut() = full_at,
                    None => self.insert(bucket, full_at),
                }
            }
            Place::Shared => {
                let mut margin = self.margin.lock();
                let slot = margin.slot(bucket);
                let slots = margin.overflow_buckets;
                let shared = margin
                    .overflow
                    .entry(limit)
                    .or_insert_with(|| vec![Moment::default(); slots].into());
                shared[slot] = full_at;
            }
        }
    }

    fn insert(&mut self, bucket: BucketKey, full_at: Moment) {
        self.table.insert(bucket.high, (bucket, SharedValue::new(full_at)), |(key, _)| key.high);
        self.margin.lock().refills.push(Reverse((full_at, bucket)));
    }
}

fn state(table: &Table, bucket: BucketKey) -> Option<Moment> {
    table.get(bucket.high, |(key, _)| *key == bucket).map(|(_, state)| *state.get())
}
