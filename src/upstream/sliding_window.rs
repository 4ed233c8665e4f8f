//! How often something happened within the last so many seconds, counted by every worker for itself.
//!
//! One counter for all would have the workers take turns at its cache line with every request. So each
//! has a shard, on lines of its own, and whoever wants to know adds them up, which is rare. A shard is a
//! ring of slots, and every count carries its slot in the same word: nobody has to tidy up, and no reader
//! takes the count of one slot for that of another. A list of moments would be exact, and grow with the
//! traffic; here the window moves by slots, and reaches back for nine to ten tenths of its length.
//! A sum is no cut through time: what is added meanwhile may be in it or not, and it may miss the oldest
//! slot of a worker whose `now` is already in the next one. It misses no more than that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Moment;

/// Slots in a window.
pub(crate) const SLOTS: u64 = RING as u64;

/// Places of a ring, one for each slot.
const RING: usize = 10;

/// Bits of a count; those above say which slot it belongs to.
const COUNT_BITS: u32 = 32;
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// Counts of several kinds of events over a window that slides.
#[derive(Debug)]
pub(crate) struct SlidingWindow<const KINDS: usize> {
    /// Nanoseconds a slot lasts.
    slot: u64,
    shards: Box<[Shard<KINDS>]>,
}

/// What one worker counted. Two cache lines are fetched together on much hardware, hence not 64.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<const KINDS: usize>([[Count; KINDS]; RING]);

/// A count, and the low half of the number of the slot that it was made in.
///
/// The same half comes again after 2³² slots, which is 136 years where they last a second. Only a count
/// that was left alone for as long could then be taken for a new one.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl<const KINDS: usize> SlidingWindow<KINDS> {
    /// A tally over the last `window`, for this many workers.
    pub(crate) fn new(window: Duration, workers: usize) -> Self {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let shard = || {
            Shard(std::array::from_fn(|_| {
                std::array::from_fn(|_| Count::default())
            }))
        };
        Self {
            slot: (window / SLOTS).max(1),
            shards: (0..workers.max(1)).map(|_| shard()).collect(),
        }
    }

    /// Counts one of `kind`, at `now`, for `worker`. Only this worker's shard is written.
    ///
    /// # Panics
    ///
    /// If there is no such worker, or no such kind.
    pub(crate) fn add(&self, worker: usize, kind: usize, now: Moment) {
        let slot = self.slot_of(now);
        self.shards[worker].0[place(slot)][kind].add(slot);
    }

    /// How many of each kind there were within the window that ends at `now`. What another worker counted
    /// a little later than that is among them.
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

    /// Begins anew. What a worker is adding at this very moment may be kept.
    pub(crate) fn forget(&self) {
        let counts = self.shards.iter().flat_map(|shard| &shard.0).flatten();
        counts.for_each(Count::clear);
    }

    fn slot_of(&self, now: Moment) -> u64 {
        now.as_nanos() / self.slot
    }
}

/// Where a slot is in the ring.
fn place(slot: u64) -> usize {
    usize::try_from(slot % SLOTS).expect("less than the slots there are")
}

impl Count {
    fn add(&self, slot: u64) {
        // A shard has one writer as a rule, so this seldom goes round twice.
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let more = match count_from(word, slot) {
                0 => (slot << COUNT_BITS) | 1,
                MOST => return,
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

    /// The count, if it is of `slot`, of one of those just before it, or of one ahead.
    fn within(&self, slot: u64) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        count_from(word, slot.wrapping_sub(SLOTS - 1))
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The count in a word if it was made in slot `first` or after it, within two windows; else none. Halves of
/// numbers go round, so it is distances that are compared.
fn count_from(word: u64, first: u64) -> u64 {
    let distance = (word >> COUNT_BITS).wrapping_sub(first) & MOST;
    if distance < 2 * SLOTS { word & MOST } else { 0 }
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
    fn what_all_workers_counted_is_summed_up_by_kind() {
        let tally = SlidingWindow::<2>::new(WINDOW, 3);
        for worker in 0..3 {
            tally.add(worker, 0, at(100));
            tally.add(worker, 1, at(1_200));
            tally.add(worker, 1, at(1_300));
        }
        assert_eq!(tally.sum(at(1_300)), [3, 6]);
    }

    #[test]
    fn a_slot_leaves_when_its_tenth_successor_begins() {
        let tally = SlidingWindow::<1>::new(WINDOW, 1);
        tally.add(0, 0, at(999));
        tally.add(0, 0, at(1_000));
        assert_eq!(tally.sum(at(9_999)), [2]);
        assert_eq!(tally.sum(at(10_000)), [1]);
        assert_eq!(tally.sum(at(11_000)), [0]);
    }

    #[test]
    fn a_place_in_the_ring_is_taken_over_with_nothing_left_in_it() {
        let tally = SlidingWindow::<1>::new(WINDOW, 1);
        for _ in 0..5 {
            tally.add(0, 0, at(500));
        }
        tally.add(0, 0, at(10_500));
        assert_eq!(tally.sum(at(10_500)), [1]);
    }

    #[test]
    fn what_was_counted_ahead_of_the_reader_is_not_overlooked() {
        let tally = SlidingWindow::<1>::new(WINDOW, 1);
        tally.add(0, 0, at(2_000));
        assert_eq!(tally.sum(at(1_999)), [1]);
        tally.add(0, 0, at(1_999));
        assert_eq!(tally.sum(at(2_000)), [2]);
    }

    #[test]
    fn nothing_is_left_when_all_is_forgotten() {
        let tally = SlidingWindow::<2>::new(WINDOW, 2);
        tally.add(0, 0, at(0));
        tally.add(1, 1, at(5_000));
        tally.forget();
        assert_eq!(tally.sum(at(5_000)), [0, 0]);
        tally.add(1, 1, at(5_000));
        assert_eq!(tally.sum(at(5_000)), [0, 1]);
    }

    #[test]
    fn a_window_of_no_length_and_the_end_of_time_are_survived() {
        let tally = SlidingWindow::<1>::new(Duration::ZERO, 0);
        let end = Moment::from_nanos(u64::MAX);
        tally.add(0, 0, end);
        assert_eq!(tally.sum(end), [1]);
        let tally = SlidingWindow::<1>::new(Duration::MAX, 1);
        tally.add(0, 0, at(0));
        assert_eq!(tally.sum(at(1)), [1]);
    }

    #[test]
    fn a_count_stops_where_it_would_run_into_its_slot() {
        let count = Count(AtomicU64::new(MOST));
        count.add(0);
        assert_eq!(count.within(0), MOST);
    }

    #[test]
    fn no_count_is_lost_even_where_workers_share_a_shard() {
        let tally = SlidingWindow::<1>::new(WINDOW, 2);
        thread::scope(|scope| {
            for writer in 0..4 {
                let tally = &tally;
                scope.spawn(move || {
                    for millis in (0..9_000).cycle().take(300_000) {
                        tally.add(writer / 2, 0, at(millis));
                    }
                });
            }
        });
        assert_eq!(tally.sum(at(9_000)), [1_200_000]);
    }

    #[test]
    fn shards_lie_on_cache_lines_of_their_own() {
        assert_eq!(align_of::<Shard<1>>(), 128);
        assert_eq!(size_of::<Shard<2>>() % 128, 0);
    }

    proptest! {
        #[test]
        fn a_sum_is_that_of_a_list_of_events(
            events in prop::collection::vec((0_u64..3, 0_usize..2, 0_u64..4_000), 0..200),
        ) {
            let tally = SlidingWindow::<2>::new(WINDOW, 3);
            let mut list = Vec::new();
            let mut millis = u64::from(u32::MAX) * 1_000 - 20_000;
            for (worker, kind, step) in events {
                millis += step;
                tally.add(usize::try_from(worker).unwrap(), kind, at(millis));
                list.push((millis / 1_000, kind));
                let expected = [0, 1].map(|kind| {
                    list.iter()
                        .filter(|(slot, of)| *of == kind && slot + SLOTS > millis / 1_000)
                        .count() as u64
                });
                prop_assert_eq!(tally.sum(at(millis)), expected);
            }
        }
    }
}
