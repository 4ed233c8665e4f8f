//! Backoff: the delay before the next attempt if no `Retry-After` applies.
//!
//! A delay is computed as growth, cap, jitter. Jitter is last, so clients that have reached the cap still retry at
//! different times; only the formula of decorrelated jitter applies the cap last. No input causes an overflow or a
//! panic. A factor or fraction that is NaN has no effect.

use std::time::Duration;

use fastrand::Rng;

/// Rule for the delays between attempts: growth, cap and jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// How the delay grows from one retry to the next.
    pub strategy: Strategy,
    /// Delay before the first retry, without jitter.
    pub base: Duration,
    /// Maximum delay without jitter.
    pub cap: Duration,
    /// Growth per retry of an exponential delay. A value below 1 counts as 1.
    pub factor: f64,
    /// Random variation, applied after the cap.
    pub jitter: Jitter,
}

/// How the delay grows from one retry to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum Strategy {
    /// All backoffs are equal to `base`.
    Constant,
    /// Each backoff is the previous one plus `base`.
    Linear,
    /// Each backoff is the previous one multiplied by `factor`.
    Exponential,
}

/// Random variation, so that clients that failed together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// The delay does not vary.
    None,
    /// Adds a random time from zero to this duration.
    Added(Duration),
    /// Adds a random part of up to this fraction of the delay: with 0.3, a delay of 1 s becomes 1 to 1.3 s.
    Proportional(f64),
    /// Adds or subtracts a random part of up to this fraction of the delay. A value above 1 counts as 1.
    Percent(f64),
    /// A random time from zero to the delay.
    Full,
    /// A random time from half of the delay to the delay.
    Equal,
    /// A random time from `base` to three times the previous delay, at most `cap`. The strategy has no effect.
    Decorrelated,
}

impl Backoff {
    /// Returns the delay before a retry. `retry` is 0 for the first one. Only decorrelated jitter uses the `previous`
    /// delay.
    pub fn wait(&self, retry: u32, previous: Option<Duration>, random: &mut Rng) -> Duration {
        let wait = self.without_jitter(retry);
        match self.jitter {
            Jitter::None => wait,
            Jitter::Added(most) => between(wait, wait.saturating_add(most), random),
            Jitter::Proportional(part) => {
                between(wait, wait.saturating_add(fraction_of(wait, part)), random)
            }
            Jitter::Percent(part) => {
                let swing = fraction_of(wait, part.min(1.0));
                let (least, most) = (wait.saturating_sub(swing), wait.saturating_add(swing));
                between(least, most, random)
            }
            Jitter::Full => between(Duration::ZERO, wait, random),
            Jitter::Equal => between(wait / 2, wait, random),
            Jitter::Decorrelated => {
                let previous = previous.unwrap_or_default().max(self.base);
                between(self.base, previous.saturating_mul(3), random).min(self.cap)
            }
        }
    }

    fn without_jitter(&self, retry: u32) -> Duration {
        let grown = match self.strategy {
            Strategy::Constant => self.base,
            Strategy::Linear => self.base.saturating_mul(retry.saturating_add(1)),
            Strategy::Exponential => {
                // Also for NaN.
                let factor = self.factor.max(1.0);
                times(self.base, factor.powf(f64::from(retry)))
            }
        };
        grown.min(self.cap)
    }
}

/// Zero if `fraction` is negative or NaN.
fn fraction_of(wait: Duration, fraction: f64) -> Duration {
    if fraction > 0.0 {
        times(wait, fraction)
    } else {
        Duration::ZERO
    }
}

/// `by` is positive.
fn times(wait: Duration, by: f64) -> Duration {
    // A `wait` of zero multiplied by infinity would be NaN.
    let by = by.min(f64::MAX);
    Duration::try_from_secs_f64(wait.as_secs_f64() * by).unwrap_or(Duration::MAX)
}

/// Inclusive.
fn between(least: Duration, most: Duration, random: &mut Rng) -> Duration {
    let span = most.saturating_sub(least).as_nanos();
    least + Duration::from_nanos_u128(random.u128(0..=span))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, ProptestConfig, any, prop_compose, prop_oneof, proptest};
    use proptest::strategy::Strategy as Any;
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    const BASE: Duration = Duration::from_secs(1);

    fn exponential(cap: u64, jitter: Jitter) -> Backoff {
        Backoff {
            strategy: Strategy::Exponential,
            base: BASE,
            cap: Duration::from_secs(cap),
            factor: 2.0,
            jitter,
        }
    }

    /// Computes the delay before one retry 20,000 times. Returns the shortest and the longest delay, in seconds.
    fn extremes(backoff: Backoff, retry: u32, previous: Option<Duration>) -> (f64, f64) {
        let mut random = Rng::with_seed(1);
        let waits = (0..20_000).map(|_| backoff.wait(retry, previous, &mut random).as_secs_f64());
        waits.fold((f64::MAX, 0.0), |(least, most), wait| {
            (wait.min(least), wait.max(most))
        })
    }

    /// Asserts that `least` is `from` or slightly more, and that `most` is `to` or slightly less. The differences must
    /// not exceed a thousandth of the range from `from` to `to`.
    fn assert_fills((least, most): (f64, f64), from: f64, to: f64) {
        let near = (to - from) / 1_000.0;
        assert!(least >= from && least <= from + near, "{least} for {from}");
        assert!(most <= to && most >= to - near, "{most} for {to}");
    }

    #[test]
    fn exponential_delays_double_up_to_the_cap() {
        let mut random = Rng::with_seed(1);
        let backoff = exponential(32, Jitter::None);
        let waits = (0..8).map(|retry| backoff.wait(retry, None, &mut random).as_secs());
        assert!(waits.eq([1, 2, 4, 8, 16, 32, 32, 32]));
    }

    #[test]
    fn linear_delays_grow_by_the_base_and_constant_delays_do_not_grow() {
        let waits = |strategy| {
            let backoff = Backoff {
                strategy,
                ..exponential(3, Jitter::None)
            };
            [0, 1, 2, 3, u32::MAX]
                .map(|retry| backoff.wait(retry, None, &mut Rng::with_seed(1)).as_secs())
        };
        assert_eq!(waits(Strategy::Linear), [1, 2, 3, 3, 3]);
        assert_eq!(waits(Strategy::Constant), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_factor_of_three_triples_the_delay_and_a_factor_below_one_counts_as_one() {
        let waits = |factor| {
            let backoff = Backoff {
                factor,
                ..exponential(1_000, Jitter::None)
            };
            [0, 1, 2, 3].map(|retry| backoff.wait(retry, None, &mut Rng::with_seed(1)).as_secs())
        };
        assert_eq!(waits(3.0), [1, 3, 9, 27]);
        for factor in [0.5, 0.0, -2.0, f64::NAN] {
            assert_eq!(waits(factor), [1, 1, 1, 1], "{factor}");
        }
    }

    #[test]
    fn percent_jitter_varies_in_both_directions_also_at_the_cap() {
        let backoff = exponential(32, Jitter::Percent(0.25));
        assert_fills(extremes(backoff, 1, None), 1.5, 2.5);
        assert_fills(extremes(backoff, 9, None), 24.0, 40.0);
    }

    #[test]
    fn added_jitter_is_applied_after_the_cap() {
        let backoff = Backoff {
            base: Duration::from_millis(500),
            ..exponential(20, Jitter::Added(Duration::from_millis(500)))
        };
        assert_fills(extremes(backoff, 0, None), 0.5, 1.0);
        assert_fills(extremes(backoff, 1, None), 1.0, 1.5);
        assert_fills(extremes(backoff, 40, None), 20.0, 20.5);
    }

    #[test]
    fn full_jitter_covers_the_whole_delay_and_equal_jitter_its_upper_half() {
        assert_fills(extremes(exponential(30, Jitter::Full), 2, None), 0.0, 4.0);
        assert_fills(extremes(exponential(30, Jitter::Equal), 2, None), 2.0, 4.0);
    }

    #[test]
    fn a_decorrelated_delay_is_at_most_three_times_the_previous_one_and_capped_last() {
        let backoff = exponential(10, Jitter::Decorrelated);
        let after = |secs| extremes(backoff, 7, Some(Duration::from_secs(secs)));
        assert_fills(extremes(backoff, 0, None), 1.0, 3.0);
        assert_fills(after(2), 1.0, 6.0);
        assert_fills(after(5), 1.0, 10.0);
        assert_fills(after(0), 1.0, 3.0);
    }

    #[test]
    fn a_base_of_zero_stays_zero() {
        let backoff = Backoff {
            base: Duration::ZERO,
            ..exponential(30, Jitter::Proportional(f64::INFINITY))
        };
        let wait = backoff.wait(u32::MAX, None, &mut Rng::with_seed(1));
        assert_eq!(wait, Duration::ZERO);
    }

    fn any_number() -> impl Any<Value = f64> {
        prop_oneof![0.0..10.0, proptest::num::f64::ANY]
    }

    fn any_duration() -> impl Any<Value = Duration> {
        let any = (any::<u64>(), 0_u32..1_000_000_000);
        prop_oneof![
            (0_u64..100_000).prop_map(Duration::from_millis),
            any.prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
        ]
    }

    fn any_jitter() -> impl Any<Value = Jitter> {
        prop_oneof![
            Just(Jitter::None),
            any_duration().prop_map(Jitter::Added),
            any_number().prop_map(Jitter::Proportional),
            any_number().prop_map(Jitter::Percent),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            Just(Jitter::Decorrelated),
        ]
    }

    prop_compose! {
        fn any_backoff()(
            strategy in prop_oneof![
                Just(Strategy::Constant),
                Just(Strategy::Linear),
                Just(Strategy::Exponential),
            ],
            base in any_duration(),
            cap in any_duration(),
            factor in any_number(),
            jitter in any_jitter(),
        ) -> Backoff {
            Backoff { strategy, base, cap, factor, jitter }
        }
    }

    fn any_retry() -> impl Any<Value = u32> {
        prop_oneof![0_u32..70, any::<u32>(), Just(u32::MAX)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_096))]

        #[test]
        fn no_input_overflows_and_every_delay_stays_within_its_bounds(
            backoff in any_backoff(),
            retry in any_retry(),
            previous in proptest::option::of(any_duration()),
            seed in any::<u64>(),
        ) {
            let wait = backoff.wait(retry, previous, &mut Rng::with_seed(seed));
            let plain = Backoff { jitter: Jitter::None, ..backoff }
                .wait(retry, previous, &mut Rng::with_seed(seed));
            prop_assert!(plain <= backoff.cap);
            match backoff.jitter {
                Jitter::None => prop_assert_eq!(wait, plain),
                Jitter::Added(most) => {
                    prop_assert!(wait >= plain && wait <= plain.saturating_add(most));
                }
                Jitter::Proportional(_) => prop_assert!(wait >= plain),
                Jitter::Percent(_) => prop_assert!(wait <= plain.saturating_mul(2)),
                Jitter::Full => prop_assert!(wait <= plain),
                Jitter::Equal => prop_assert!(wait >= plain / 2 && wait <= plain),
                Jitter::Decorrelated => {
                    prop_assert!(wait <= backoff.cap);
                    prop_assert!(wait >= backoff.base.min(backoff.cap));
                }
            }
        }

        #[test]
        fn a_delay_without_jitter_is_never_shorter_than_the_previous_one(
            backoff in any_backoff(),
            retry in any_retry(),
        ) {
            let plain = Backoff { jitter: Jitter::None, ..backoff };
            let wait = |retry| plain.wait(retry, None, &mut Rng::with_seed(1));
            prop_assert!(wait(retry) <= wait(retry.saturating_add(1)));
        }
    }
}
