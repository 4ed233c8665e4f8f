//! Kind of jitter, from the delays of many operations.
//!
//! The delay before a retry is uniformly distributed, and the kinds differ in how its least and greatest value depend
//! on the delay `w` without jitter:
//!
//! | kind | least | greatest |
//! |---|---|---|
//! | added | w | w + J |
//! | proportional | w | w (1 + p) |
//! | percent | w (1 − p) | w (1 + p) |
//! | equal | w / 2 | w |
//! | full | 0 | w |
//! | decorrelated | base | 3 × previous delay |
//!
//! `w` is unknown, so proportional and percent jitter are the same distributions. The reported kind is the one with the
//! rounder base, because people choose round numbers. Equal jitter is the same as proportional jitter with `p` = 1.

use std::fmt;

use super::super::backoff::seconds;
use super::super::delays::{Delays, Sample};
use super::super::readable;

/// Least growth of the delay that shows how its distribution depends on the delay.
const MIN_GROWTH: f64 = 1.3;

/// Kind of jitter with its parameters. Delays are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Adds up to this time to the delay.
    Added(f64),
    /// Adds up to the part `part` of the delay, which starts at `base`.
    Proportional { base: f64, part: f64 },
    /// Adds or subtracts up to the part `part` of the delay, which starts at `base`.
    Percent { base: f64, part: f64 },
    /// Proportional or percent: both bases are equally round.
    Scaled { least: f64, most: f64 },
    /// Half of the delay is random.
    Equal,
    /// The whole delay is random.
    Full,
    /// The delay depends on the previous one.
    Decorrelated,
    /// The delays do not show the kind, for this reason.
    Unknown(&'static str),
}

/// Distribution of the delays before one retry.
struct Uniform {
    retry: usize,
    /// Number of delays in the sample.
    number: f64,
    least: f64,
    most: f64,
}

/// Determines the kind of jitter from delays that have jitter. Retries with fewer than `least_number` delays are
/// ignored.
pub(super) fn kind(delays: &Delays, least_number: usize) -> Kind {
    let samples = delays.samples(least_number);
    if is_decorrelated(delays, &samples) {
        return Kind::Decorrelated;
    }
    let uniforms: Vec<_> = samples.iter().map(Uniform::of).collect();
    let [first, .., last] = uniforms.as_slice() else {
        return Kind::Unknown("operations need two retries without a stated time");
    };
    let ratio = mean(uniforms.iter().map(Uniform::ratio));
    let error = error(&uniforms);
    if ratio < (3.0 * error).max(0.08) {
        return Kind::Full;
    }
    if last.centre() < MIN_GROWTH * first.centre() {
        return Kind::Unknown("the delay does not grow");
    }
    if width_growth(&uniforms) < 0.5 {
        return Kind::Added(mean(uniforms.iter().map(Uniform::width)));
    }
    if (ratio - 0.5).abs() < (1.4 * error).max(0.02) {
        return Kind::Equal;
    }
    scaled(&uniforms)
}

/// Whether a delay depends on the one before it, and the least delay does not grow with the others.
fn is_decorrelated(delays: &Delays, samples: &[Sample]) -> bool {
    let [first, later @ ..] = samples else {
        return false;
    };
    let is_flat = |sample: &Sample| {
        let growth = sample.median() / first.median();
        growth > MIN_GROWTH && sample.min() < first.min() * (1.0 + 0.4 * (growth - 1.0))
    };
    if !later.iter().any(is_flat) {
        return false;
    }
    let pairs = samples.iter().map(|sample| delays.pairs(sample.retry));
    let scores: Vec<_> = pairs
        .filter(|pairs| pairs.len() >= 10)
        .take(4)
        .map(|pairs| rank_correlation_score(&pairs))
        .collect();
    let score = scores.iter().sum::<f64>() / scores.iter().map(|_| 1.0).sum::<f64>().sqrt();
    // The least delay of full jitter does not grow either, but it is close to zero.
    score > 3.0 || score > 0.0 && Uniform::of(first).ratio() > 0.2
}

/// Returns the rank correlation of pairs in standard deviations (Fisher transformation). Independent values give a
/// standard normal distribution.
#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
fn rank_correlation_score(pairs: &[(f64, f64)]) -> f64 {
    let first = ranks(pairs.iter().map(|pair| pair.0));
    let second = ranks(pairs.iter().map(|pair| pair.1));
    let number = pairs.len() as f64;
    let squares = first.iter().zip(&second).map(|(a, b)| (a - b) * (a - b));
    let correlation = 1.0 - 6.0 * squares.sum::<f64>() / (number * (number * number - 1.0));
    let bounded = correlation.clamp(-0.999, 0.999);
    bounded.atanh() * ((number - 3.0) / 1.06).sqrt()
}

#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
fn ranks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let values: Vec<_> = values.collect();
    let mut order: Vec<_> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    for (rank, index) in order.into_iter().enumerate() {
        ranks[index] = rank as f64;
    }
    ranks
}

/// Returns the exponent of the width as a power of the centre: 0 if the width is constant, 1 if it is proportional.
fn width_growth(uniforms: &[Uniform]) -> f64 {
    let points = uniforms
        .iter()
        .map(|uniform| (uniform.centre().ln(), uniform.width().ln()));
    let (x, y) = (
        mean(points.clone().map(|point| point.0)),
        mean(points.clone().map(|point| point.1)),
    );
    let covariance = mean(points.clone().map(|point| (point.0 - x) * (point.1 - y)));
    let variance = mean(points.map(|point| (point.0 - x) * (point.0 - x)));
    covariance / variance
}

/// Returns the standard error of the mean of the ends of distributions, relative to their width.
fn error(uniforms: &[Uniform]) -> f64 {
    let variance = mean(uniforms.iter().map(|uniform| uniform.number.powi(-2)));
    (variance / uniforms.iter().map(|_| 1.0).sum::<f64>()).sqrt()
}

/// Decides between proportional and percent jitter.
fn scaled(uniforms: &[Uniform]) -> Kind {
    let factor = factor(uniforms);
    // Distributions before the cap, divided by their growth, are equal to the first one.
    let firsts: Vec<_> = uniforms
        .iter()
        .map_while(|uniform| {
            let growth = factor.powi(i32::try_from(uniform.retry - uniforms[0].retry).ok()?);
            let is_before_cap =
                (uniform.centre() / growth / uniforms[0].centre() - 1.0).abs() < 0.04;
            is_before_cap.then(|| (uniform.least / growth, uniform.most / growth))
        })
        .collect();
    let least = mean(firsts.iter().map(|first| first.0));
    let most = mean(firsts.iter().map(|first| first.1));
    let centre = f64::midpoint(least, most);
    let proportional = Kind::Proportional {
        base: least,
        part: most / least - 1.0,
    };
    let percent = Kind::Percent {
        base: centre,
        part: most / centre - 1.0,
    };
    // A proportional part of more than 1 is unusual: the random part would exceed the delay.
    if most > 2.0 * least {
        return percent;
    }
    // The centre is the mean of two ends, so its error is smaller. Latency adds about 1.5 ms.
    let error = 3.0 * error(&uniforms[..firsts.len()]) * (most - least);
    let tolerances = [error / least, 0.7 * error / centre].map(|error| error.max(0.012));
    let tolerances = [
        tolerances[0] + 0.0015 / least,
        tolerances[1] + 0.0015 / centre,
    ];
    match roundness(least, tolerances[0]).cmp(&roundness(centre, tolerances[1])) {
        std::cmp::Ordering::Less => proportional,
        std::cmp::Ordering::Greater => percent,
        std::cmp::Ordering::Equal => Kind::Scaled { least, most },
    }
}

/// Returns the growth from one retry to the next. A factor close to a multiple of one half is that multiple.
fn factor(uniforms: &[Uniform]) -> f64 {
    let mut steps: Vec<_> = uniforms
        .windows(2)
        .map(|pair| pair[1].centre() / pair[0].centre())
        .collect();
    steps.sort_by(f64::total_cmp);
    // The greater of two medians: steps at the cap are smaller.
    let factor = steps[steps.len() / 2];
    let multiple = (factor * 2.0).round() / 2.0;
    if (factor / multiple - 1.0).abs() < 0.05 {
        multiple
    } else {
        factor
    }
}

/// Returns how round a number of seconds is. Zero is the roundest: 1, 2 or 5 times a power of ten. `tolerance` is the
/// relative error of the number.
fn roundness(number: f64, tolerance: f64) -> u32 {
    const LEVELS: [&[f64]; 2] = [&[1.0, 2.0, 5.0, 10.0], &[1.5, 2.5, 3.0, 4.0, 6.0, 7.5, 8.0]];
    let mantissa = number / 10_f64.powf(number.log10().floor());
    let level = LEVELS.iter().zip(0..).find(|(level, _)| {
        level
            .iter()
            .any(|round| (mantissa / round - 1.0).abs() < tolerance)
    });
    level.map_or(2, |(_, number)| number)
}

impl Uniform {
    /// Estimates the ends of a uniform distribution. The extremes of a sample lie inside of it, so they are extended.
    #[expect(clippy::cast_precision_loss, reason = "a sample is small")]
    fn of(sample: &Sample) -> Self {
        let (min, high) = (sample.min(), sample.quantile(0.9));
        // Single slow requests are far above the others and are no part of the distribution.
        let limit = high + 0.35 * (high - min);
        let inside: Vec<_> = sample
            .sorted
            .iter()
            .copied()
            .filter(|delay| *delay <= limit)
            .collect();
        let max = inside.last().copied().unwrap_or(high);
        let margin = (max - min) / (inside.len() as f64 - 1.0);
        Self {
            retry: sample.retry,
            number: inside.len() as f64,
            least: (min - margin).max(0.0),
            most: max + margin,
        }
    }

    fn width(&self) -> f64 {
        self.most - self.least
    }

    fn centre(&self) -> f64 {
        f64::midpoint(self.least, self.most)
    }

    fn ratio(&self) -> f64 {
        self.least / self.most
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, number) = values.fold((0.0, 0.0), |(sum, number), value| {
        (sum + value, number + 1.0)
    });
    sum / number
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |delay| readable(seconds(delay));
        match *self {
            Self::Added(most) => write!(f, "added, up to {} on each delay", text(most)),
            Self::Proportional { base, part } => {
                write!(
                    f,
                    "proportional, +{:.0} % of a delay from {}",
                    part * 100.0,
                    text(base)
                )
            }
            Self::Percent { base, part } => {
                write!(
                    f,
                    "percent, ±{:.0} % of a delay from {}",
                    part * 100.0,
                    text(base)
                )
            }
            Self::Scaled { least, most } => {
                let centre = f64::midpoint(least, most);
                let (above, around) = (most / least - 1.0, most / centre - 1.0);
                write!(
                    f,
                    "proportional (+{:.0} % of {}) or percent (±{:.0} % of {}), which are the same distribution",
                    above * 100.0,
                    text(least),
                    around * 100.0,
                    text(centre)
                )
            }
            Self::Equal => f.write_str("equal, from half of the delay to the delay"),
            Self::Full => f.write_str("full, from zero to the delay"),
            Self::Decorrelated => {
                f.write_str("decorrelated, from the base to three times the previous delay")
            }
            Self::Unknown(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_slow_requests_do_not_change_the_ends_of_a_distribution() {
        let mut sorted: Vec<_> = (0..50)
            .map(|number| 0.75 + 0.01 * f64::from(number))
            .collect();
        sorted.extend([2.0, 4.0]);
        let uniform = Uniform::of(&Sample { retry: 0, sorted });
        assert!((uniform.least - 0.74).abs() < 0.001, "{}", uniform.least);
        assert!((uniform.most - 1.25).abs() < 0.001, "{}", uniform.most);
    }

    #[test]
    fn round_numbers_are_recognised_at_every_scale() {
        for (number, expected) in [
            (0.1, 0),
            (1.0, 0),
            (0.998, 0),
            (20.0, 0),
            (0.75, 1),
            (3.0, 1),
            (1.15, 2),
            (6.25, 2),
        ] {
            assert_eq!(roundness(number, 0.012), expected, "{number}");
        }
    }
}
