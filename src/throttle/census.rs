//! Census of a rate limit: which keys it rejects most, which of them return before the time that their 429 stated, and
//! which keys are close to their quota.
//!
//! A gateway has one census per limit, for all workers, exact for keys with many rejections and bounded in memory for
//! any number of keys ([`Summary`]). Generations of 150 seconds are merged for a window of five minutes, and of 30
//! minutes for a window of an hour, so a window covers at least half of its length.
//!
//! The store keeps the time at which a key gets its next token. A rejected key that is rejected again before that time
//! has returned early, and one that is rejected after it was admitted in the meantime. Nothing is recorded for an
//! admitted request, unless its bucket is nearly empty.

mod summary;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use self::summary::Summary;
use super::BucketKey;
use crate::clock::Moment;
use crate::request::log_fields::ShownKey;

pub(crate) use self::summary::KeyCount;
pub(super) use self::summary::shortened;

/// For all limits of a gateway.
const MAX_BYTES: usize = 8 << 20;

/// Memory of a key in each of four generations: its entry with the unused part of the table, and two texts. The keys
/// near their quota add an eighth.
const BYTES_PER_KEY: usize =
    4 * (size_of::<(BucketKey, KeyCount)>() * 8 / 7 + 2 * (MAX_TEXT + 16)) * 9 / 8;

/// Includes each key with 0.1 % of the rejections.
const MAX_KEYS: usize = 1_792;

const MIN_KEYS: usize = 28;

/// Shorter generations.
const GENERATION: Duration = Duration::from_secs(150);

/// Shorter generations in a longer one.
const GENERATIONS_PER_HALF_HOUR: u64 = 12;

/// A request within this time after the rejection is not early, because the client can have sent it before it got the
/// response.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// A request this much before the stated time is not early, because timers can be imprecise.
const TOLERANCE: Duration = Duration::from_millis(10);

/// The User-Agent is read from each n-th rejection of a key.
const USER_AGENT_INTERVAL: u64 = 16;

/// Of a stored User-Agent or limit key, in bytes.
const MAX_TEXT: usize = 64;

/// Keys from which the used shares of the buckets are estimated.
const SAMPLE: usize = 256;

/// Rejections that a subscriber can lag behind before it loses some.
const MAX_QUEUED: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Census {
    state: Mutex<CensusState>,
    rejections: Rejections,
}

#[derive(Debug, Default)]
struct CensusState {
    rejected: Generations,
    near: Generations,
    /// Ring of keys of some of the last requests.
    sample: Vec<BucketKey>,
    next: usize,
}

/// Current and previous generation, for the short and the long window. The current short generation is not in a long
/// one yet.
#[derive(Debug, Default)]
struct Generations {
    short: [Summary; 2],
    long: [Summary; 2],
    /// Of the current short generation.
    end: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    FiveMinutes,
    Hour,
}

/// In no order.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) since: Moment,
    pub(crate) keys: Vec<(BucketKey, KeyCount)>,
}

/// For the subscribers of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Rejections {
    sender: broadcast::Sender<Arc<RejectedRequest>>,
    /// The sender can count its receivers only under a lock, which all rejections would share.
    subscribers: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(crate) struct RejectedRequest {
    pub(crate) limit: Arc<str>,
    pub(crate) route: Arc<str>,
    pub(crate) key: ShownKey,
    pub(crate) wait: Duration,
    pub(crate) early: bool,
}

pub(crate) struct RejectionReceiver {
    pub(crate) receiver: broadcast::Receiver<Arc<RejectedRequest>>,
    subscribers: Arc<AtomicUsize>,
}

impl Census {
    pub(crate) fn new(rejections: Rejections) -> Self {
        let state = Mutex::default();
        Self { state, rejections }
    }

    pub(crate) fn resize(&self, limits: usize) {
        let share = MAX_BYTES / BYTES_PER_KEY / limits.max(1);
        // A table has a power of two of slots, of which seven eighths are used.
        let slots = (share * 8 / 7 + 1).next_power_of_two() / 2;
        let keys = (slots / 8 * 7).clamp(MIN_KEYS, MAX_KEYS);
        let mut state = self.state.lock();
        state.rejected.set_capacity(keys);
        state.near.set_capacity(keys / 8);
    }

    /// Returns whether the key returned early. `wait` is the time until the key gets a token; zero in shadow mode.
    pub(super) fn rejected(
        &self,
        bucket: BucketKey,
        (now, wait): (Moment, Duration),
        headers: &HeaderMap,
        key: impl FnOnce() -> ShownKey,
    ) -> bool {
        self.state.lock().rejected.count(bucket, now, key, |entry| {
            if entry.count.is_multiple_of(USER_AGENT_INTERVAL) {
                entry.set_user_agent(headers.get(USER_AGENT).map(HeaderValue::as_bytes));
            }
            entry.reject(now, wait)
        })
    }

    pub(super) fn publish(&self, rejected: impl FnOnce() -> RejectedRequest) {
        if self.rejections.subscribers() > 0 {
            // An error means that the last subscriber has just left.
            let _ = self.rejections.sender.send(Arc::new(rejected()));
        }
    }

    pub(super) fn near(&self, bucket: BucketKey, now: Moment, key: impl FnOnce() -> ShownKey) {
        self.state.lock().near.count(bucket, now, key, |entry| {
            entry.count += 1;
            entry.last = now;
        });
    }

    pub(super) fn sample(&self, bucket: BucketKey) {
        let mut state = self.state.lock();
        let next = state.next % SAMPLE;
        match state.sample.get_mut(next) {
            Some(oldest) => *oldest = bucket,
            None => state.sample.push(bucket),
        }
        state.next = next + 1;
    }

    /// Without duplicates.
    pub(crate) fn sampled(&self) -> Vec<BucketKey> {
        let sample: BTreeSet<_> = self.state.lock().sample.iter().copied().collect();
        sample.into_iter().collect()
    }

    pub(crate) fn most_rejected(&self, window: Window, now: Moment) -> Counted {
        self.state.lock().rejected.counted(window, now)
    }

    /// Without keys that were rejected.
    pub(crate) fn nearest(&self, window: Window, now: Moment) -> Counted {
        let mut state = self.state.lock();
        let mut near = state.near.counted(window, now);
        let rejected = state.rejected.counted(window, now);
        let rejected: BTreeSet<_> = rejected.keys.into_iter().map(|(key, _)| key).collect();
        near.keys.retain(|(key, _)| !rejected.contains(key));
        near
    }

    /// In the last hour.
    pub(crate) fn find(&self, bucket: BucketKey, now: Moment) -> Option<KeyCount> {
        let mut state = self.state.lock();
        let summaries = state.rejected.of_window(Window::Hour, now).1;
        let mut counts = summaries.filter_map(|summary| summary.get(bucket));
        let mut sum = counts.next()?.clone();
        counts.for_each(|count| sum.add(count));
        Some(sum)
    }
}

impl Generations {
    fn set_capacity(&mut self, keys: usize) {
        for summary in self.short.iter_mut().chain(&mut self.long) {
            summary.set_capacity(keys);
        }
    }

    fn count<T>(
        &mut self,
        bucket: BucketKey,
        now: Moment,
        key: impl FnOnce() -> ShownKey,
        change: impl FnOnce(&mut KeyCount) -> T,
    ) -> T {
        self.rotate(now);
        let [current, previous] = &mut self.short;
        if let Some(known) = current.get_mut(bucket) {
            return change(known);
        }
        // A key keeps its stated time beyond the generation.
        let mut before = [&*previous].into_iter().chain(&self.long);
        let before = before.find_map(|summary| summary.get(bucket));
        let mut count = KeyCount::new(key(), now, before);
        let result = change(&mut count);
        current.insert(bucket, count);
        result
    }

    fn rotate(&mut self, now: Moment) {
        if now < self.end {
            return;
        }
        let number = generation(now);
        self.end = start(number + 1);
        self.short.swap(0, 1);
        let [current, finished] = &mut self.short;
        current.restart(number);
        let half_hour = finished.generation / GENERATIONS_PER_HALF_HOUR;
        if self.long[0].generation != half_hour {
            self.long.swap(0, 1);
            self.long[0].restart(half_hour);
        }
        self.long[0].merge(finished);
    }

    fn counted(&mut self, window: Window, now: Moment) -> Counted {
        let (since, summaries) = self.of_window(window, now);
        let mut all = Summary::unbounded();
        summaries.for_each(|summary| all.merge(summary));
        let keys = all.into_keys();
        Counted { since, keys }
    }

    /// Returns the start of the window, too.
    fn of_window(
        &mut self,
        window: Window,
        now: Moment,
    ) -> (Moment, impl Iterator<Item = &Summary>) {
        self.rotate(now);
        let number = generation(now);
        let half_hour = number / GENERATIONS_PER_HALF_HOUR;
        let [current, previous] = &self.short;
        let (first, earlier, generation) = match window {
            Window::FiveMinutes => (
                number.saturating_sub(1),
                std::slice::from_ref(previous),
                number,
            ),
            Window::Hour => {
                let first = half_hour.saturating_sub(1) * GENERATIONS_PER_HALF_HOUR;
                (first, &self.long[..], half_hour)
            }
        };
        let recent = earlier
            .iter()
            .filter(move |it| it.generation + 1 >= generation);
        (start(first), std::iter::once(current).chain(recent))
    }
}

fn generation(now: Moment) -> u64 {
    now.since(Moment::default()).as_secs() / GENERATION.as_secs()
}

fn start(generation: u64) -> Moment {
    let generation = u32::try_from(generation).unwrap_or(u32::MAX);
    Moment::default().after(GENERATION.saturating_mul(generation))
}

impl Default for Rejections {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(MAX_QUEUED),
            subscribers: Arc::default(),
        }
    }
}

impl Rejections {
    /// `None` if `max` subscribers exist.
    pub(crate) fn subscribe(&self, max: usize) -> Option<RejectionReceiver> {
        let subscribers = Arc::clone(&self.subscribers);
        let add = |count| (count < max).then_some(count + 1);
        subscribers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(RejectionReceiver {
            receiver: self.sender.subscribe(),
            subscribers,
        })
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::Relaxed)
    }
}

impl Drop for RejectionReceiver {
    fn drop(&mut self) {
        self.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
