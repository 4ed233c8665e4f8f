//! Counters of events in a sliding time window, with one shard per worker.
//!
//! A single counter would make the workers contend for one cache line on every request. Each worker therefore writes
//! its own shard. A reader sums all shards, but reads are rare. A shard is a ring of 10 time slots. Each count and the
//! number of its slot share one atomic word. Old counts thus need no cleanup and are never mistaken for current ones.
//!
//! A list of timestamps would be exact, but would grow with the traffic. This window moves in steps of one slot, so it
//! covers between 90 % and 100 % of its length. A sum is not a consistent snapshot, because it can include events that
//! are added during the summation. If a worker is already in the next slot, the sum can miss the oldest slot of that
//! worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Moment;

/// Number of time slots into which a window is divided.
pub(crate) const SLOTS: u64 = RING as u64;

/// Number of entries in the ring of a shard: one for each slot of the window.
const RING: usize = 10;

/// Number of low bits of a [`SlotCount`] that contain the count. The high bits contain the slot number.
const COUNT_BITS: u32 = 32;
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Counts of `KINDS` kinds of events in a sliding window.
#[derive(Debug)]
pub(crate) struct SlidingWindow<const KINDS: usize> {
    /// Duration of a slot, in nanoseconds.
    slot: u64,
    shards: Box<[WindowShard<KINDS>]>,
}

/// Counts of one worker. They are aligned to 128 bytes, because many CPUs prefetch pairs of 64-byte cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct WindowShard<const KINDS: usize>([[SlotCount; KINDS]; RING]);

/// The count of one slot, together with the low 32 bits of the slot number.
///
/// The low bits of the slot number repeat after 2³² slots, which is 136 years with slots of 1 s. Only a count that is
/// not written for that long can be mistaken for a current one.
#[derive(Debug, Default)]
struct SlotCount(AtomicU64);

impl<const KINDS: usize> SlidingWindow<KINDS> {
    /// Creates counters without events. `window` is the length of the window, and `workers` the number of workers.
    pub(crate) fn new(window: Duration, workers: usize) -> Self {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let shard = || {
            WindowShard(std::array::from_fn(|_| {
                std::array::from_fn(|_| SlotCount::default())
            }))
        };
        Self {
            slot: (window / SLOTS).max(1),
            shards: (0..workers.max(1)).map(|_| shard()).collect(),
        }
    }

    /// Adds one event of `kind` at `now` to the shard of `worker`.
    ///
    /// # Panics
    ///
    /// Panics if `worker` or `kind` is out of range.
    pub(crate) fn add(&self, worker: usize, kind: usize, now: Moment) {
        let slot = self.slot_of(now);
        self.shards[worker].0[ring_index(slot)][kind].add(slot);
    }

    /// Returns the number of events of each kind in the window that ends at `now`. Events that other workers have added
    /// slightly after `now` are included.
    pub(crate) fn sum(&self, now: Moment) -> [u64; KINDS] {
        let slot = self.slot_of(now);
        let mut sum = [0; KINDS];
        for counts in self.shards.iter().flat_map(|shard| &shard.0) {
            for (sum, count) in sum.iter_mut().zip(counts) {
                *sum += count.within(slot);
            }
        }
        sum
    }

    /// Resets all counts to 0. Events that are added during the reset can remain.
    pub(crate) fn reset(&self) {
        let counts = self.shards.iter().flat_map(|shard| &shard.0).flatten();
        counts.for_each(SlotCount::clear);
    }

    fn slot_of(&self, now: Moment) -> u64 {
        now.as_nanos() / self.slot
    }
}

/// Returns the index of a slot number in the ring of a shard.
fn ring_index(slot: u64) -> usize {
    usize::try_from(slot % SLOTS).expect("less than the ring length")
}

impl SlotCount {
    fn add(&self, slot: u64) {
        // The loop rarely repeats, because a shard usually has one writer.
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let more = match count_from(word, slot) {
                0 => (slot << COUNT_BITS) | 1,
                MAX_COUNT => return,
                _ => word + 1,
            };
            match self
                .0
                .compare_exchange_weak(word, more, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns the count if its slot is in the window that ends with `slot`, or in the window that follows. Otherwise
    /// returns 0.
    fn within(&self, slot: u64) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        count_from(word, slot.wrapping_sub(SLOTS - 1))
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Returns the count in `word` if its slot is `first`, or follows `first` by less than two windows. Otherwise returns
/// 0. Slot numbers wrap around, so the function compares distances.
fn count_from(word: u64, first: u64) -> u64 {
    let distance = (word >> COUNT_BITS).wrapping_sub(first) & MAX_COUNT;
    if distance < 2 * SLOTS {
        word & MAX_COUNT
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_sum_adds_the_counts_of_all_workers_by_kind() {
        let window = SlidingWindow::<2>::new(WINDOW, 3);
        for worker in 0..3 {
            window.add(worker, 0, at(100));
            window.add(worker, 1, at(1_200));
            window.add(worker, 1, at(1_300));
        }
        assert_eq!(window.sum(at(1_300)), [3, 6]);
    }

    #[test]
    fn a_slot_leaves_the_window_when_its_tenth_successor_begins() {
        let window = SlidingWindow::<1>::new(WINDOW, 1);
        window.add(0, 0, at(999));
        window.add(0, 0, at(1_000));
        assert_eq!(window.sum(at(9_999)), [2]);
        assert_eq!(window.sum(at(10_000)), [1]);
        assert_eq!(window.sum(at(11_000)), [0]);
    }

    #[test]
    fn a_reused_ring_entry_starts_at_zero() {
        let window = SlidingWindow::<1>::new(WINDOW, 1);
        for _ in 0..5 {
            window.add(0, 0, at(500));
        }
        window.add(0, 0, at(10_500));
        assert_eq!(window.sum(at(10_500)), [1]);
    }

    #[test]
    fn a_sum_includes_events_slightly_later_than_its_time() {
        let window = SlidingWindow::<1>::new(WINDOW, 1);
        window.add(0, 0, at(2_000));
        assert_eq!(window.sum(at(1_999)), [1]);
        window.add(0, 0, at(1_999));
        assert_eq!(window.sum(at(2_000)), [2]);
    }

    #[test]
    fn a_reset_clears_all_counts() {
        let window = SlidingWindow::<2>::new(WINDOW, 2);
        window.add(0, 0, at(0));
        window.add(1, 1, at(5_000));
        window.reset();
        assert_eq!(window.sum(at(5_000)), [0, 0]);
        window.add(1, 1, at(5_000));
        assert_eq!(window.sum(at(5_000)), [0, 1]);
    }

    #[test]
    fn extreme_windows_and_times_do_not_panic() {
        let window = SlidingWindow::<1>::new(Duration::ZERO, 0);
        let end = Moment::from_nanos(u64::MAX);
        window.add(0, 0, end);
        assert_eq!(window.sum(end), [1]);
        let window = SlidingWindow::<1>::new(Duration::MAX, 1);
        window.add(0, 0, at(0));
        assert_eq!(window.sum(at(1)), [1]);
    }

    #[test]
    fn a_count_saturates_before_it_changes_the_slot_bits() {
        let count = SlotCount(AtomicU64::new(MAX_COUNT));
        count.add(0);
        assert_eq!(count.within(0), MAX_COUNT);
    }

    #[test]
    fn no_event_is_lost_if_two_threads_write_one_shard() {
        let window = SlidingWindow::<1>::new(WINDOW, 2);
        thread::scope(|scope| {
            for writer in 0..4 {
                let window = &window;
                scope.spawn(move || {
                    for millis in (0..9_000).cycle().take(300_000) {
                        window.add(writer / 2, 0, at(millis));
                    }
                });
            }
        });
        assert_eq!(window.sum(at(9_000)), [1_200_000]);
    }

    #[test]
    fn each_shard_has_its_own_cache_lines() {
        assert_eq!(align_of::<WindowShard<1>>(), 128);
        assert_eq!(size_of::<WindowShard<2>>() % 128, 0);
    }

    proptest! {
        #[test]
        fn a_sum_equals_the_number_of_events_in_a_list(
            events in prop::collection::vec((0_u64..3, 0_usize..2, 0_u64..4_000), 0..200),
        ) {
            let window = SlidingWindow::<2>::new(WINDOW, 3);
            let mut list = Vec::new();
            let mut millis = u64::from(u32::MAX) * 1_000 - 20_000;
            for (worker, kind, step) in events {
                millis += step;
                window.add(usize::try_from(worker).unwrap(), kind, at(millis));
                list.push((millis / 1_000, kind));
                let expected = [0, 1].map(|kind| {
                    list.iter()
                        .filter(|(slot, of)| *of == kind && slot + SLOTS > millis / 1_000)
                        .count() as u64
                });
                prop_assert_eq!(window.sum(at(millis)), expected);
            }
        }
    }
}
