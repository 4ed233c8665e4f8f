//! Rule `jitter`: the delay between attempts is random.
//!
//! Jitter spreads the delays before the same retry of many operations. Some clients retry only after stated times.
//! Their spread beyond the stated time counts.
//!
//! The kind of jitter is not determined: the delays of percent and proportional jitter have the same distribution.

use std::time::Duration;

use super::backoff::{describe, seconds};
use super::delays::{Delays, Sample};
use super::{Finding, GroupedTrace, count, readable};

/// Least width of a distribution, in seconds, that counts as jitter. Clients and networks vary by less.
const MIN_WIDTH: f64 = 0.02;

/// Least width of a distribution, relative to its median, that counts as jitter.
const MIN_RELATIVE_WIDTH: f64 = 0.02;

/// Number of operations that show whether there is jitter.
const MIN_OPERATIONS: usize = 4;

pub(super) fn jitter(trace: &GroupedTrace<'_>) -> Finding {
    let chosen = Delays::chosen(trace, 1);
    if chosen.len() == 0 {
        return of_stated(trace);
    }
    let samples = chosen.samples(1);
    let number = samples.iter().map(Sample::len).max().unwrap_or_default();
    let operations = count(number, "operation", "operations");
    let without_random_numbers = || has_formula(&chosen).then_some(false);
    let finding = match presence(&chosen, trace.noise).or_else(without_random_numbers) {
        Some(true) => Finding::pass(format!("Jitter present ({operations}).")),
        Some(false) => Finding::warn(format!("Delay has no jitter ({operations}).")),
        None => Finding::not_enough_data(format!(
            "Too few operations to show whether the delay is random: {number}, {MIN_OPERATIONS} needed."
        )),
    };
    finding.with(samples.iter().map(describe))
}

/// `None` if there are too few delays.
fn presence(delays: &Delays, noise: Duration) -> Option<bool> {
    let samples = delays.samples(MIN_OPERATIONS);
    if samples.is_empty() {
        return None;
    }
    let is_wide = |sample: &Sample| {
        let least = MIN_WIDTH
            .max(noise.as_secs_f64())
            .max(sample.median() * MIN_RELATIVE_WIDTH);
        sample.width() > least
    };
    Some(samples.iter().any(is_wide))
}

/// All operations that have enough delays count.
fn has_formula(delays: &Delays) -> bool {
    let formulas: Vec<_> = delays
        .operations()
        .filter_map(|delays| is_formula(&delays))
        .collect();
    !formulas.is_empty() && formulas.iter().all(|is_formula| *is_formula)
}

/// Whether each delay of an operation is the same multiple of the one before it. `None` for less than three delays.
/// Immediate retries are ignored.
fn is_formula(delays: &[f64]) -> Option<bool> {
    let delayed: Vec<_> = delays
        .iter()
        .copied()
        .filter(|delay| *delay > MIN_WIDTH)
        .collect();
    let ratios: Vec<_> = delayed.windows(2).map(|pair| pair[1] / pair[0]).collect();
    let is_steady = |ratio: &f64| (ratio / ratios[0] - 1.0).abs() < 0.02;
    (ratios.len() >= 2).then(|| ratios.iter().all(is_steady))
}

/// A client without jitter always exceeds the stated time by the same time. If it ignores the stated time, its delays
/// are always the same.
fn of_stated(trace: &GroupedTrace<'_>) -> Finding {
    let beyond = Delays::stated(trace, |gap, stated| gap - stated);
    let gaps = Delays::stated(trace, |gap, _| gap);
    let all: Vec<_> = beyond.operations().flatten().collect();
    if all.is_empty() {
        return Finding::not_enough_data("No retry shows a delay.");
    }
    let least = all.iter().copied().fold(f64::MAX, f64::min);
    let most = all.iter().copied().fold(f64::MIN, f64::max);
    let noise = trace.noise;
    let is_random = match presence(&beyond, noise) {
        Some(is_random) => Some(is_random && presence(&gaps, noise) == Some(true)),
        None if all.len() >= 3 && most - least <= noise.as_secs_f64().max(MIN_WIDTH) => Some(false),
        None => None,
    };
    let retries = count(all.len(), "retry", "retries");
    match is_random {
        Some(true) => Finding::pass(format!(
            "Jitter present: retries arrive {} to {} after the stated time ({retries}).",
            signed(least),
            signed(most)
        )),
        Some(false) => Finding::warn(format!(
            "Delay after a stated time has no jitter ({retries})."
        )),
        None => Finding::not_enough_data(format!(
            "Too few retries to show whether the delay is random: {}.",
            all.len()
        )),
    }
}

fn signed(time: f64) -> String {
    let sign = if time < -0.0005 { "-" } else { "" };
    format!("{sign}{}", readable(seconds(time.abs())))
}
