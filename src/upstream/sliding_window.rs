//! Counts of events in a sliding time window, for the owner of a lock.
//!
//! A list of timestamps would be exact, but would grow with the traffic. This window moves in steps of one slot, so it
//! covers between 90 % and 100 % of its length.

use std::time::Duration;

use crate::clock::Moment;

pub(crate) const SLOTS: u64 = RING as u64;

const RING: usize = 10;

/// Counts of `KINDS` kinds of events.
#[derive(Debug)]
pub(crate) struct SlidingWindow<const KINDS: usize> {
    /// In nanoseconds.
    slot: u64,
    /// Number of the latest slot with an event or a sum.
    latest: u64,
    counts: [[u64; KINDS]; RING],
}

impl<const KINDS: usize> SlidingWindow<KINDS> {
    pub(crate) fn new(length: Duration) -> Self {
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Self {
            slot: (length / SLOTS).max(1),
            latest: 0,
            counts: [[0; KINDS]; RING],
        }
    }

    /// Starts again if the length changes.
    pub(crate) fn set_length(&mut self, length: Duration) {
        let new = Self::new(length);
        if self.slot != new.slot {
            *self = new;
        }
    }

    pub(crate) fn add(&mut self, kind: usize, now: Moment) {
        self.advance(now);
        self.counts[ring_index(self.latest)][kind] += 1;
    }

    /// Returns the number of events of each kind.
    pub(crate) fn sum(&mut self, now: Moment) -> [u64; KINDS] {
        self.advance(now);
        std::array::from_fn(|kind| self.counts.iter().map(|counts| counts[kind]).sum())
    }

    pub(crate) fn reset(&mut self) {
        self.counts = [[0; KINDS]; RING];
    }

    /// The clock of another worker can be slightly behind. Its events belong to the latest slot.
    fn advance(&mut self, now: Moment) {
        let slot = now.as_nanos() / self.slot;
        for passed in 0..slot.saturating_sub(self.latest).min(SLOTS) {
            self.counts[ring_index(slot - passed)] = [0; KINDS];
        }
        self.latest = self.latest.max(slot);
    }
}

fn ring_index(slot: u64) -> usize {
    usize::try_from(slot % SLOTS).expect("less than the ring length")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_slot_leaves_the_window_when_its_tenth_successor_begins() {
        let mut window = SlidingWindow::<1>::new(WINDOW);
        window.add(0, at(999));
        window.add(0, at(1_000));
        assert_eq!(window.sum(at(9_999)), [2]);
        assert_eq!(window.sum(at(10_000)), [1]);
        assert_eq!(window.sum(at(11_000)), [0]);
    }

    #[test]
    fn a_slightly_earlier_time_counts_in_the_latest_slot() {
        let mut window = SlidingWindow::<1>::new(WINDOW);
        window.add(0, at(2_000));
        assert_eq!(window.sum(at(1_999)), [1]);
        window.add(0, at(1_999));
        assert_eq!(window.sum(at(2_000)), [2]);
    }

    #[test]
    fn only_another_length_starts_the_window_again() {
        let mut window = SlidingWindow::<2>::new(WINDOW);
        window.add(1, at(5_000));
        window.set_length(WINDOW);
        assert_eq!(window.sum(at(5_000)), [0, 1]);
        window.set_length(2 * WINDOW);
        assert_eq!(window.sum(at(5_000)), [0, 0]);
    }

    #[test]
    fn extreme_windows_and_times_do_not_panic() {
        let mut window = SlidingWindow::<1>::new(Duration::ZERO);
        let end = Moment::from_nanos(u64::MAX);
        window.add(0, end);
        assert_eq!(window.sum(end), [1]);
        let mut window = SlidingWindow::<1>::new(Duration::MAX);
        window.add(0, at(0));
        assert_eq!(window.sum(at(1)), [1]);
    }

    proptest! {
        #[test]
        fn a_sum_equals_the_number_of_events_in_a_list(
            events in prop::collection::vec((0_usize..2, 0_u64..4_000), 0..200),
        ) {
            let mut window = SlidingWindow::<2>::new(WINDOW);
            let mut list = Vec::new();
            let mut millis = 0;
            for (kind, step) in events {
                millis += step;
                window.add(kind, at(millis));
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
