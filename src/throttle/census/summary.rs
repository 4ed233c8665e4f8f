//! Counts of the most frequent keys, in bounded memory.
//!
//! Space-saving with removals in batches: if the table is full, the eighth of the keys with the lowest counts is
//! removed, which takes constant time per insertion on average. The highest removed count becomes the error of keys
//! that are added later. After `n` counts, no error is above `n` / (7/8 × capacity), so each key with a larger count is
//! in the table. A removal per insertion would halve this error, but needs a second, ordered structure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{BucketKey, MAX_TEXT, ROUND_TRIP, TOLERANCE};
use crate::clock::Moment;
use crate::request::hash_keys::BuildIdentityHasher;
use crate::request::log_fields::ShownKey;

#[derive(Debug, Default)]
pub(super) struct Summary {
    keys: HashMap<BucketKey, KeyCount, BuildIdentityHasher>,
    capacity: usize,
    /// No key outside the table has a higher count.
    missed: u64,
    pub(super) generation: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct KeyCount {
    pub(crate) key: ShownKey,
    /// The true count is at most `error` higher.
    pub(crate) count: u64,
    pub(crate) error: u64,
    pub(crate) early: u64,
    /// Rejections after an admission.
    episodes: u64,
    /// Of the first rejection that stated `until`.
    stated: Moment,
    /// When the key gets its next token.
    until: Moment,
    pub(crate) user_agent: Option<Arc<str>>,
    pub(crate) since: Moment,
    pub(crate) last: Moment,
}

impl Summary {
    /// For the result of merges.
    pub(super) fn unbounded() -> Self {
        let capacity = usize::MAX;
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink(capacity);
        self.keys.shrink_to(capacity);
    }

    pub(super) fn restart(&mut self, generation: u64) {
        self.keys.clear();
        self.missed = 0;
        self.generation = generation;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.keys.capacity()
    }

    pub(super) fn contains(&self, bucket: BucketKey) -> bool {
        self.keys.contains_key(&bucket)
    }

    pub(super) fn get(&self, bucket: BucketKey) -> Option<&KeyCount> {
        self.keys.get(&bucket)
    }

    pub(super) fn get_mut(&mut self, bucket: BucketKey) -> Option<&mut KeyCount> {
        self.keys.get_mut(&bucket)
    }

    #[cold]
    pub(super) fn insert(&mut self, bucket: BucketKey, count: KeyCount) {
        self.shrink(self.capacity.saturating_sub(1));
        let error = self.missed;
        self.keys.insert(bucket, KeyCount { error, ..count });
    }

    fn shrink(&mut self, most: usize) {
        if self.keys.len() <= most {
            return;
        }
        let excess = self.keys.len() - most + self.capacity / 8;
        let mut counts: Vec<u64> = self.keys.values().map(KeyCount::most).collect();
        let last = excess.min(counts.len()) - 1;
        let (_, &mut threshold, _) = counts.select_nth_unstable(last);
        // `retain` would leave marks in the table, which would later double its size.
        let kept: Vec<_> = (self.keys.drain())
            .filter(|(_, count)| count.most() > threshold)
            .collect();
        self.keys.extend(kept);
        self.missed = threshold;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (bucket, count) in &mut self.keys {
            if !other.contains(*bucket) {
                count.error += other.missed;
            }
        }
        // New keys are added at the end, or in another table if they do not fit, so that this table does not grow.
        let mut all = HashMap::default();
        for (&bucket, count) in &other.keys {
            if let Some(known) = self.keys.get_mut(&bucket) {
                known.add(count);
            } else {
                let error = count.error + self.missed;
                let count = count.clone();
                all.insert(bucket, KeyCount { error, ..count });
            }
        }
        self.missed += other.missed;
        if self.keys.len() + all.len() <= self.capacity {
            self.keys.extend(all);
            return;
        }
        all.extend(self.keys.drain());
        std::mem::swap(&mut self.keys, &mut all);
        self.shrink(self.capacity);
        all.extend(self.keys.drain());
        self.keys = all;
    }

    pub(super) fn into_keys(self) -> Vec<(BucketKey, KeyCount)> {
        self.keys.into_iter().collect()
    }
}

impl KeyCount {
    /// `before` is an earlier count of the same key.
    pub(super) fn new(key: ShownKey, now: Moment, before: Option<&Self>) -> Self {
        Self {
            key,
            count: 0,
            error: 0,
            early: 0,
            episodes: 0,
            stated: before.map_or(now, |before| before.stated),
            until: before.map_or(now, |before| before.until),
            user_agent: None,
            since: now,
            last: now,
        }
    }

    fn most(&self) -> u64 {
        self.count + self.error
    }

    /// Returns whether the key has returned early.
    pub(super) fn reject(&mut self, now: Moment, wait: Duration) -> bool {
        self.count += 1;
        self.last = now;
        let until = now.after(wait);
        // A shorter wait means that the bucket was refilled, or that the request costs less.
        if now >= self.until || until.after(TOLERANCE) < self.until {
            self.episodes += 1;
            self.stated = now;
            self.until = until;
            return false;
        }
        let is_early = now >= self.stated.after(ROUND_TRIP) && now.after(TOLERANCE) <= self.until;
        self.until = self.until.max(until);
        self.early += u64::from(is_early);
        is_early
    }

    pub(super) fn set_user_agent(&mut self, bytes: Option<&[u8]>) {
        let known = self.user_agent.as_deref().map(str::as_bytes);
        if known != bytes {
            self.user_agent = bytes.map(shortened);
        }
    }

    /// Until a request that was rejected at first is admitted, on average.
    pub(crate) fn attempts_per_admission(&self) -> f64 {
        let episodes = self.episodes.max(1);
        #[expect(
            clippy::cast_precision_loss,
            reason = "a ratio for display needs few digits"
        )]
        let ratio = (self.count + episodes) as f64 / episodes as f64;
        ratio
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.error += other.error;
        self.early += other.early;
        self.episodes += other.episodes;
        self.since = self.since.min(other.since);
        if other.last > self.last {
            self.last = other.last;
            (self.stated, self.until) = (other.stated, other.until);
            if other.user_agent.is_some() {
                self.user_agent.clone_from(&other.user_agent);
            }
        }
    }
}

pub(in crate::throttle) fn shortened(bytes: &[u8]) -> Arc<str> {
    let start = &bytes[..bytes.len().min(MAX_TEXT)];
    let text = String::from_utf8_lossy(start);
    text.trim_end_matches(char::REPLACEMENT_CHARACTER).into()
}
