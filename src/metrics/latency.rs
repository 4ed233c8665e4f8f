//! Latency histograms.
//!
//! The bounds of a histogram belong to its type: an upstream takes milliseconds and a store microseconds.

use std::marker::PhantomData;
use std::time::Duration;

use super::Count;

/// Unit of the sum of all latencies. A microsecond is too coarse for a store in memory. Nanoseconds overflow 64 bits
/// after 584 years of latency, which ten thousand concurrent requests accumulate in three weeks.
const TICK: Duration = Duration::from_nanos(100);

/// Upper bounds of the buckets of a histogram.
pub(crate) trait Bounds {
    /// The bounds in microseconds, the lowest first.
    const MICROS: &'static [u64];
}

/// Bounds for upstreams: 1 ms to 30 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfUpstream;

/// Bounds for stores: 50 µs to 1 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfStore;

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct Latency<B> {
    /// One bucket for each bound, and one for larger values.
    buckets: Box<[Count]>,
    ticks: Count,
    bounds: PhantomData<B>,
}

/// The values of a histogram, or the sum of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snapshot {
    /// Upper bound in seconds and count of each bucket, not cumulative.
    pub(crate) buckets: Vec<(f64, u64)>,
    /// Sum of all latencies in seconds.
    pub(crate) sum: f64,
}

impl Bounds for OfUpstream {
    const MICROS: &'static [u64] = &[
        1_000, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000, 5_000_000, 10_000_000, 30_000_000,
    ];
}

impl Bounds for OfStore {
    const MICROS: &'static [u64] = &[
        50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
        1_000_000,
    ];
}

impl<B: Bounds> Latency<B> {
    pub(crate) fn record(&self, latency: Duration) {
        let bucket = B::MICROS
            .iter()
            .position(|&bound| latency <= Duration::from_micros(bound))
            .unwrap_or(B::MICROS.len());
        self.buckets[bucket].inc();
        let ticks = (latency + TICK / 2).as_nanos() / TICK.as_nanos();
        self.ticks.add(u64::try_from(ticks).unwrap_or(u64::MAX));
    }

    /// Adds histograms up.
    #[expect(clippy::cast_precision_loss, reason = "a scrape is for graphs")]
    pub(crate) fn sum<'a>(latencies: impl IntoIterator<Item = &'a Self>) -> Snapshot
    where
        B: 'a,
    {
        let bounds = B::MICROS.iter().map(|&micros| micros as f64 / 1e6);
        let mut buckets: Vec<_> = bounds
            .chain([f64::INFINITY])
            .map(|bound| (bound, 0))
            .collect();
        let mut ticks: u64 = 0;
        for latency in latencies {
            for ((_, total), bucket) in buckets.iter_mut().zip(&latency.buckets) {
                *total += bucket.get();
            }
            ticks = ticks.wrapping_add(latency.ticks.get());
        }
        let ticks_a_second = Duration::from_secs(1).as_nanos() / TICK.as_nanos();
        Snapshot {
            buckets,
            sum: ticks as f64 / ticks_a_second as f64,
        }
    }
}

impl<B: Bounds> Default for Latency<B> {
    fn default() -> Self {
        Self {
            buckets: (0..=B::MICROS.len()).map(|_| Count::default()).collect(),
            ticks: Count::default(),
            bounds: PhantomData,
        }
    }
}

impl Snapshot {
    /// How often it happened.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_bucket_it_does_not_exceed() {
        let latency = Latency::<OfStore>::default();
        for micros in [1, 50, 51, 1_000_000, 1_000_001] {
            latency.record(Duration::from_micros(micros));
        }
        let snapshot = Latency::sum([&latency]);
        let filled: Vec<_> = snapshot
            .buckets
            .iter()
            .copied()
            .filter(|&(_, count)| count > 0)
            .collect();
        assert_eq!(
            filled,
            [(0.000_05, 2), (0.000_1, 1), (1.0, 1), (f64::INFINITY, 1)]
        );
        assert_eq!(snapshot.count(), 5);
    }

    #[test]
    fn a_store_that_takes_less_than_a_microsecond_still_takes_time() {
        let latency = Latency::<OfStore>::default();
        for _ in 0..1_000 {
            latency.record(Duration::from_nanos(380));
        }
        let sum = Latency::sum([&latency, &latency]).sum;
        assert!((sum - 0.000_8).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn bounds_rise() {
        for bounds in [OfUpstream::MICROS, OfStore::MICROS] {
            assert!(bounds.is_sorted_by(|lower, higher| lower < higher));
        }
    }
}
