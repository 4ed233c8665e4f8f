//! Queues of ended records, from which a store takes those that have expired and those that it forgets early.
//!
//! Each TTL has its own queue, and so have records with an unknown outcome, which are never forgotten early. Within a
//! queue, the oldest record is also the first to expire. A configuration has few TTLs, so there are few queues. One
//! heap, ordered by expiry, would not find the oldest record.
//!
//! A store does not remove an entry when its record is replaced or freed. It checks each entry that it takes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

pub(super) trait StoreTime: Copy + Ord {
    fn after(self, time: Duration) -> Self;
}

impl StoreTime for Moment {
    fn after(self, time: Duration) -> Self {
        Self::after(self, time)
    }
}

#[derive(Debug)]
pub(super) struct EndedQueues<T, E>(Vec<EndedQueue<T, E>>);

#[derive(Debug)]
struct EndedQueue<T, E> {
    ttl: Duration,
    can_forget: bool,
    /// With the end of the execution.
    entries: VecDeque<(T, E)>,
}

impl<T, E> Default for EndedQueues<T, E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: StoreTime, E> EndedQueues<T, E> {
    pub(super) fn push(&mut self, since: T, ttl: Duration, can_forget: bool, entry: E) {
        let queue = self
            .0
            .iter_mut()
            .find(|queue| queue.ttl == ttl && queue.can_forget == can_forget);
        match queue {
            Some(queue) => queue.entries.push_back((since, entry)),
            None => self.0.push(EndedQueue {
                ttl,
                can_forget,
                entries: VecDeque::from([(since, entry)]),
            }),
        }
    }

    pub(super) fn pop_expired(&mut self, now: T) -> Option<E> {
        let (expires, index) = self.first(|queue| Some(queue.ttl))?;
        (expires <= now)
            .then(|| self.pop(index))?
            .map(|(_, entry)| entry)
    }

    /// The oldest record whose outcome is known, if it ended at least `min_ttl` ago.
    pub(super) fn pop_oldest(&mut self, now: T, min_ttl: Duration) -> Option<(T, E)> {
        let (matures, index) = self.first(|queue| queue.can_forget.then_some(min_ttl))?;
        (matures <= now).then(|| self.pop(index))?
    }

    /// When the oldest record whose outcome is known can be forgotten.
    pub(super) fn next_forgettable(&self, min_ttl: Duration) -> Option<T> {
        let (matures, _) = self.first(|queue| queue.can_forget.then_some(min_ttl))?;
        Some(matures)
    }

    pub(super) fn next_expiry(&self) -> Option<T> {
        Some(self.first(|queue| Some(queue.ttl))?.0)
    }

    pub(super) fn longest_ttl(&self) -> Option<Duration> {
        self.0.iter().map(|queue| queue.ttl).max()
    }

    /// When the oldest record with an unknown outcome ended. Removes older entries that are not `current`.
    pub(super) fn oldest_unknown(&mut self, mut is_current: impl FnMut(&E) -> bool) -> Option<T> {
        let mut oldest = None;
        for queue in self.0.iter_mut().filter(|queue| !queue.can_forget) {
            while let Some((since, entry)) = queue.entries.front() {
                if is_current(entry) {
                    oldest = oldest.into_iter().chain([*since]).min();
                    break;
                }
                queue.entries.pop_front();
            }
        }
        self.0.retain(|queue| !queue.entries.is_empty());
        oldest
    }

    /// The earliest time that is `delay(queue)` after the end of the first record of a queue, with its index.
    fn first(&self, delay: impl Fn(&EndedQueue<T, E>) -> Option<Duration>) -> Option<(T, usize)> {
        let queues = self.0.iter().enumerate();
        queues
            .filter_map(|(index, queue)| {
                let (since, _) = queue.entries.front()?;
                Some((since.after(delay(queue)?), index))
            })
            .min()
    }

    fn pop(&mut self, index: usize) -> Option<(T, E)> {
        let queue = &mut self.0[index];
        let popped = queue.entries.pop_front();
        if queue.entries.is_empty() {
            self.0.swap_remove(index);
        }
        popped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::default().after(SECOND * u32::try_from(seconds).unwrap())
    }

    #[test]
    fn records_of_all_ttls_expire_on_time_and_the_oldest_is_forgotten_first() {
        let mut queues = EndedQueues::default();
        for (since, ttl, can_forget, name) in [
            (0, 100, false, "unknown"),
            (1, 100, true, "oldest"),
            (2, 10, true, "short"),
            (3, 100, true, "long"),
        ] {
            queues.push(at(since), SECOND * ttl, can_forget, name);
        }
        let min_ttl = SECOND * 20;
        assert_eq!(queues.longest_ttl(), Some(SECOND * 100));
        assert_eq!(queues.next_expiry(), Some(at(12)));
        assert_eq!(queues.next_forgettable(min_ttl), Some(at(21)));
        assert_eq!(queues.pop_expired(at(11)), None);
        assert_eq!(queues.pop_expired(at(12)), Some("short"));
        assert_eq!(queues.pop_oldest(at(20), min_ttl), None);
        assert_eq!(queues.pop_oldest(at(99), min_ttl), Some((at(1), "oldest")));
        assert_eq!(queues.pop_oldest(at(99), min_ttl), Some((at(3), "long")));
        // A record whose outcome is unknown is not forgotten before it expires.
        assert_eq!(queues.pop_oldest(at(99), min_ttl), None);
        assert_eq!(queues.pop_expired(at(100)), Some("unknown"));
        assert_eq!(queues.longest_ttl(), None);
    }

    #[test]
    fn the_oldest_unknown_record_is_found_behind_replaced_ones() {
        let mut queues = EndedQueues::default();
        let at = Moment::from_nanos;
        queues.push(at(1), Duration::from_secs(1), true, 'a');
        for (since, ttl, entry) in [(2, 1, 'b'), (3, 2, 'c'), (4, 1, 'd'), (5, 2, 'e')] {
            queues.push(at(since), Duration::from_secs(ttl), false, entry);
        }
        assert_eq!(queues.oldest_unknown(|_| true), Some(at(2)));
        assert_eq!(queues.oldest_unknown(|&entry| entry > 'b'), Some(at(3)));
        assert_eq!(queues.oldest_unknown(|&entry| entry > 'c'), Some(at(4)));
        assert_eq!(queues.oldest_unknown(|_| false), None);
        // Records with a known outcome stay.
        assert_eq!(queues.next_forgettable(Duration::ZERO), Some(at(1)));
    }
}
