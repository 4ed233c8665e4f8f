//! Delays between attempts, in seconds, and statistics over them.

use super::{GroupedTrace, ObservedRetry};

pub(super) struct Delays {
    /// One list per operation: the number of earlier retries, and the delay in seconds.
    operations: Vec<Vec<(usize, f64)>>,
}

/// Delays before one retry of many operations.
pub(super) struct Sample {
    pub(super) retry: usize,
    /// In seconds, in ascending order.
    sorted: Vec<f64>,
}

impl Delays {
    /// The delays that the client chose itself: those after responses without a stated time. Operations with fewer than
    /// `least` delays are omitted.
    pub(super) fn chosen(trace: &GroupedTrace<'_>, least: usize) -> Self {
        let mut delays = Self::of(trace, |retry| {
            let delay = retry.delay().filter(|_| !retry.stated.has_header)?;
            Some(delay.as_secs_f64())
        });
        delays.operations.retain(|delays| delays.len() >= least);
        delays
    }

    /// `value` gets the time to the retry and the stated time, both in seconds.
    pub(super) fn stated(trace: &GroupedTrace<'_>, value: impl Fn(f64, f64) -> f64) -> Self {
        Self::of(trace, |retry| {
            let stated = retry.stated.shortest()?.wait.as_secs_f64();
            Some(value(retry.gap().as_secs_f64(), stated))
        })
    }

    fn of(trace: &GroupedTrace<'_>, value: impl Fn(&ObservedRetry<'_>) -> Option<f64>) -> Self {
        let mut operations: Vec<Vec<(usize, f64)>> = vec![Vec::new(); trace.operations.len()];
        for retry in trace
            .retries
            .iter()
            .filter(|retry| retry.outcome.is_retryable())
        {
            let value = value(retry).map(|value| (retry.number, value));
            operations[retry.operation].extend(value);
        }
        operations.retain(|delays| !delays.is_empty());
        Self { operations }
    }

    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn operations(&self) -> impl Iterator<Item = Vec<f64>> {
        let operations = self.operations.iter();
        operations.map(|delays| delays.iter().map(|(_, delay)| *delay).collect())
    }

    /// By retry, first retry first. Retries with fewer than `least` delays are omitted.
    pub(super) fn samples(&self, least: usize) -> Vec<Sample> {
        let mut samples: Vec<Sample> = Vec::new();
        for &(retry, delay) in self.operations.iter().flatten() {
            while samples.len() <= retry {
                samples.push(Sample {
                    retry: samples.len(),
                    sorted: Vec::new(),
                });
            }
            samples[retry].sorted.push(delay);
        }
        samples.retain(|sample| sample.sorted.len() >= least.max(1));
        for sample in &mut samples {
            sample.sorted.sort_by(f64::total_cmp);
        }
        samples
    }
}

impl Sample {
    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(super) fn min(&self) -> f64 {
        self.sorted[0]
    }

    pub(super) fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// Interpolated between the two nearest delays. `part` is from 0 to 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a sample is small, and `part` is from 0 to 1"
    )]
    fn quantile(&self, part: f64) -> f64 {
        let position = part * (self.sorted.len() - 1) as f64;
        let (below, weight) = (position.floor() as usize, position.fract());
        let above = (below + 1).min(self.sorted.len() - 1);
        self.sorted[below] * (1.0 - weight) + self.sorted[above] * weight
    }

    /// Twice the interquartile range, which is the width of a uniform distribution. Single slow requests do not change
    /// it. The range of less than four delays is about half of the width.
    pub(super) fn width(&self) -> f64 {
        if self.len() < 4 {
            return 2.0 * (self.max() - self.min());
        }
        2.0 * (self.quantile(0.75) - self.quantile(0.25))
    }
}
