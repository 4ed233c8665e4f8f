//! Rule `backoff`: the delay between attempts grows.
//!
//! The rule compares the medians of the delays before each retry, so that jitter and single slow requests do not change
//! the result. With one operation there is no median: its delays must grow, or stay equal, at each step.

use std::time::Duration;

use super::delays::{Delays, Sample};
use super::{Finding, GroupedTrace, count, readable};
use crate::lab::verdict::Evidence;

/// A shorter delay, in seconds, counts as none. It is the time that a client needs for an immediate retry.
const IMMEDIATE: f64 = 0.02;

/// Least growth from one delay to the next that counts as growth.
const MIN_STEP: f64 = 1.15;

/// Least number of delays of one operation that show a level.
const MIN_LEVEL: usize = 8;

pub(super) fn backoff(trace: &GroupedTrace<'_>) -> Finding {
    let delays = Delays::chosen(trace, 2);
    let operations = count(delays.len(), "operation", "operations");
    let mut samples = delays.samples(1);
    let Some(first) = samples.first().map(Sample::len) else {
        return Finding::not_enough_data("No operation has two retries without a stated time.");
    };
    // Few operations have many retries, so the last medians are not reliable.
    samples.retain(|sample| sample.len() * 10 >= first && (sample.len() > 1 || first == 1));
    let evidence: Vec<_> = samples.iter().map(describe).collect();
    let medians = samples.iter().map(Sample::median);
    if medians.clone().all(|median| median < IMMEDIATE) {
        let most = medians.fold(0.0, f64::max);
        let summary = format!(
            "Retries immediately, after {} ({operations}).",
            readable(seconds(most))
        );
        return Finding::warn(summary).with(evidence);
    }
    let is_immediate = samples[0].median() < IMMEDIATE;
    let delayed: Vec<_> = samples
        .into_iter()
        .filter(|sample| sample.median() >= IMMEDIATE)
        .collect();
    let start = if is_immediate {
        " after an immediate first retry"
    } else {
        ""
    };
    let finding = match growth(&delayed) {
        Growth::Grows => {
            let summary = format!("Delay grows{start}: {} ({operations}).", fit(&delayed));
            Finding::pass(summary)
        }
        Growth::Constant => {
            let medians = delayed.iter().map(Sample::median);
            let mean = medians.clone().sum::<f64>() / medians.map(|_| 1.0).sum::<f64>();
            let mean = readable(seconds(mean));
            Finding::warn(format!(
                "Delay does not grow{start}: {mean} ({operations})."
            ))
        }
        Growth::Unclear => {
            let number = delayed.iter().map(Sample::len).sum();
            let delays = count(number, "delay", "delays");
            Finding::not_enough_data(format!(
                "{delays} of {operations} are too few or too different to show whether the delay grows."
            ))
        }
    };
    finding.with(evidence)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Grows,
    Constant,
    Unclear,
}

fn growth(samples: &[Sample]) -> Growth {
    if samples.len() < 2 {
        return Growth::Unclear;
    }
    if samples.iter().any(|sample| sample.len() == 1) {
        return growth_of_one(samples);
    }
    let (first, largest) = (&samples[0], largest(samples));
    let growth = (largest.median() / first.median()).ln();
    let error = 2.0 * (relative_error(first) + relative_error(largest));
    if growth > error.max(0.2) {
        Growth::Grows
    } else if error < 0.35 {
        Growth::Constant
    } else {
        Growth::Unclear
    }
}

/// Jitter can look like growth, so every step must be clear.
fn growth_of_one(samples: &[Sample]) -> Growth {
    let steps: Vec<_> = steps(samples).collect();
    let is_equal = |step: &f64| (0.95..1.05).contains(step);
    if steps.iter().all(is_equal) || is_level(samples) {
        return Growth::Constant;
    }
    let growing = steps.iter().take_while(|step| **step >= MIN_STEP).count();
    let is_capped = steps[growing..].iter().all(is_equal);
    let is_doubled = (1.9..2.1).contains(&steps[0]);
    if is_capped && (growing >= 2 || growing == 1 && is_doubled) {
        Growth::Grows
    } else {
        Growth::Unclear
    }
}

/// Whether the many delays of one operation stay at one level, although each varies with the load of the machine.
fn is_level(samples: &[Sample]) -> bool {
    let delays: Vec<_> = samples.iter().map(Sample::median).collect();
    if delays.len() < MIN_LEVEL {
        return false;
    }
    let median = |delays: &[f64]| {
        let mut sorted = delays.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let is_same = |ratio: f64| (0.8..1.25).contains(&ratio);
    let (early, late) = delays.split_at(delays.len() / 2);
    is_same(median(&delays[1..]) / delays[0]) && is_same(median(late) / median(early))
}

fn fit(samples: &[Sample]) -> String {
    let base = readable(seconds(samples[0].median()));
    let mut growing: Vec<_> = steps(samples).collect();
    while growing.len() > 1 && growing.last().is_some_and(|step| *step < MIN_STEP) {
        growing.pop();
    }
    let cap = if growing.len() + 1 < samples.len() {
        format!(", cap {}", readable(seconds(largest(samples).median())))
    } else {
        String::new()
    };
    growing.sort_by(f64::total_cmp);
    let [below, above] = [(growing.len() - 1) / 2, growing.len() / 2];
    let factor = f64::midpoint(growing[below], growing[above]);
    format!("base {base}, factor {factor:.2}{cap}")
}

fn steps(samples: &[Sample]) -> impl Iterator<Item = f64> {
    let pairs = samples.windows(2);
    pairs.map(|pair| pair[1].median() / pair[0].median())
}

fn largest(samples: &[Sample]) -> &Sample {
    let by_median = |a: &&Sample, b: &&Sample| a.median().total_cmp(&b.median());
    samples
        .iter()
        .max_by(by_median)
        .expect("there are at least two samples")
}

/// Standard error of the median, relative to it. 0.36 is the factor for a uniform distribution, whose standard
/// deviation is 0.29 of its width.
#[expect(clippy::cast_precision_loss, reason = "a sample is small")]
fn relative_error(sample: &Sample) -> f64 {
    0.36 * sample.width() / sample.median() / (sample.len() as f64).sqrt()
}

pub(super) fn describe(sample: &Sample) -> Evidence {
    let [min, median, max] =
        [sample.min(), sample.median(), sample.max()].map(|delay| readable(seconds(delay)));
    let number = count(sample.len(), "delay", "delays");
    Evidence {
        attempt: None,
        text: format!(
            "retry {}: {min} to {max}, median {median} ({number})",
            sample.retry + 1
        ),
    }
}

/// Negative seconds become zero.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
