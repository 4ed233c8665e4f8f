//! Histograms of the latency of upstreams, which take milliseconds, and of stores, which take microseconds.

use std::marker::PhantomData;
use std::time::Duration;

use super::Count;

/// Unit of the sum of all latencies. Microseconds are too coarse for a store in memory, and a sum in nanoseconds
/// overflows 64 bits after three weeks of 10,000 concurrent requests; in units of 100 ns, after almost six years.
const TICK: Duration = Duration::from_nanos(100);

pub(crate) trait HistogramBounds {
    /// Upper bounds of the buckets in microseconds, in ascending order.
    const MICROS: &'static [u64];
}

/// 1 ms to 30 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamBounds;

/// 50 µs to 1 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreBounds;

#[derive(Debug)]
pub(crate) struct LatencyHistogram<B> {
    /// The last bucket contains latencies above the largest bound.
    buckets: Box<[Count]>,
    /// Sum of all latencies, in units of [`TICK`].
    ticks: Count,
    bounds: PhantomData<B>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HistogramSnapshot {
    /// Upper bound in seconds and number of latencies of each bucket. The numbers are not cumulative.
    pub(crate) buckets: Vec<(f64, u64)>,
    /// In seconds.
    pub(crate) sum: f64,
}

impl HistogramBounds for UpstreamBounds {
    const MICROS: &'static [u64] = &[
        1_000, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000, 5_000_000, 10_000_000, 30_000_000,
    ];
}

impl HistogramBounds for StoreBounds {
    const MICROS: &'static [u64] = &[
        50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
        1_000_000,
    ];
}

impl<B: HistogramBounds> LatencyHistogram<B> {
    pub(crate) fn record(&self, latency: Duration) {
        const TICK_NANOS: u64 = TICK.subsec_nanos() as u64;
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = B::MICROS
            .iter()
            .position(|&bound| nanos <= bound * 1_000)
            .unwrap_or(B::MICROS.len());
        self.buckets[bucket].inc();
        self.ticks
            .add(nanos.saturating_add(TICK_NANOS / 2) / TICK_NANOS);
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "metrics do not need more precision"
    )]
    pub(crate) fn sum<'a>(latencies: impl IntoIterator<Item = &'a Self>) -> HistogramSnapshot
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
        let ticks_per_second = Duration::from_secs(1).as_nanos() / TICK.as_nanos();
        HistogramSnapshot {
            buckets,
            sum: ticks as f64 / ticks_per_second as f64,
        }
    }
}

impl<B: HistogramBounds> Default for LatencyHistogram<B> {
    fn default() -> Self {
        Self {
            buckets: (0..=B::MICROS.len()).map(|_| Count::default()).collect(),
            ticks: Count::default(),
            bounds: PhantomData,
        }
    }
}

impl HistogramSnapshot {
    /// The latencies after those of an earlier snapshot.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&before.buckets);
        Self {
            buckets: buckets
                .map(|(&(bound, now), &(_, before))| (bound, now.saturating_sub(before)))
                .collect(),
            sum: self.sum - before.sum,
        }
    }

    /// Returns the latency that this share of the latencies does not exceed, in seconds. They are taken as spread evenly
    /// within a bucket, as in Prometheus.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the bounds of the buckets are less precise"
    )]
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let rank = share * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for &(upper, count) in &self.buckets {
            let count = count as f64;
            if below + count >= rank && upper.is_finite() {
                return lower + (upper - lower) * (rank - below) / count.max(1.0);
            }
            if upper.is_finite() {
                (below, lower) = (below + count, upper);
            }
        }
        lower
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_counts_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let latency = LatencyHistogram::<StoreBounds>::default();
        for micros in [1, 50, 51, 1_000_000, 1_000_001] {
            latency.record(Duration::from_micros(micros));
        }
        let snapshot = LatencyHistogram::sum([&latency]);
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
    fn latencies_below_a_microsecond_add_up_in_the_sum() {
        let latency = LatencyHistogram::<StoreBounds>::default();
        for _ in 0..1_000 {
            latency.record(Duration::from_nanos(380));
        }
        let sum = LatencyHistogram::sum([&latency, &latency]).sum;
        assert!((sum - 0.000_8).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn bounds_are_in_ascending_order() {
        for bounds in [UpstreamBounds::MICROS, StoreBounds::MICROS] {
            assert!(bounds.is_sorted_by(|lower, higher| lower < higher));
        }
    }
}
