//! How long to wait before the next attempt, where nobody says.
//!
//! Waits grow first, are capped next and spread last, so that callers who have reached the cap are spread
//! like all others: 30 s with 30 % of jitter is 30 to 39 s, not 30 s for everybody. Only a decorrelated wait
//! is capped last, as its formula has it.
//!
//! Chance comes from the caller, and the same seed gives the same waits.
//! Nothing here overflows or panics, whatever the numbers; a factor or a part that is not a number changes
//! nothing.

use std::time::Duration;

use fastrand::Rng;

/// How waits grow, and how they are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// How they grow.
    pub strategy: Strategy,
    /// The first.
    pub base: Duration,
    /// They grow no further; what jitter adds may go beyond.
    pub cap: Duration,
    /// What an exponential wait is multiplied by each time; less than 1 counts as 1.
    pub factor: f64,
    /// How they are spread.
    pub jitter: Jitter,
}

/// How waits grow from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Not at all.
    Constant,
    /// By the first one each time.
    Linear,
    /// By the factor each time.
    Exponential,
}

/// How waits are spread, so that callers who failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// They are not.
    None,
    /// Up to this much is added.
    Added(Duration),
    /// Up to this part of the wait is added: 0.3 makes 1 s into 1 to 1.3 s.
    Proportional(f64),
    /// Up to this part of the wait is added or taken off: 0.25 makes 2 s into 1.5 to 2.5 s. More than 1
    /// counts as 1.
    Percent(f64),
    /// Anything from nothing to the wait.
    Full,
    /// Half of the wait, and anything up to the other half.
    Equal,
    /// Anything from the first wait to three times the one before, whatever the strategy.
    Decorrelated,
}

impl Backoff {
    /// The wait before the retry with this number, the first being 0; `previous` is the wait before that.
    pub fn wait(&self, retry: u32, previous: Option<Duration>, random: &mut Rng) -> Duration {
        let wait = self.grown(retry);
        match self.jitter {
            Jitter::None => wait,
            Jitter::Added(most) => between(wait, wait.saturating_add(most), random),
            Jitter::Proportional(part) => {
                between(wait, wait.saturating_add(part_of(wait, part)), random)
            }
            Jitter::Percent(part) => {
                let swing = part_of(wait, part.min(1.0));
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

    /// The wait before this retry as everybody has it: grown and capped, not yet spread.
    fn grown(&self, retry: u32) -> Duration {
        let grown = match self.strategy {
            Strategy::Constant => self.base,
            Strategy::Linear => self.base.saturating_mul(retry.saturating_add(1)),
            Strategy::Exponential => {
                // `max` also turns what is no number into 1.
                let factor = self.factor.max(1.0);
                times(self.base, factor.powf(f64::from(retry)))
            }
        };
        grown.min(self.cap)
    }
}

/// This part of a wait; none of it if it is less than nothing, or no number.
fn part_of(wait: Duration, part: f64) -> Duration {
    if part > 0.0 {
        times(wait, part)
    } else {
        Duration::ZERO
    }
}

/// `wait` times `by`, which is a positive number, stopping at the longest there is.
fn times(wait: Duration, by: f64) -> Duration {
    // Infinitely many times nothing would be no number.
    let by = by.min(f64::MAX);
    Duration::try_from_secs_f64(wait.as_secs_f64() * by).unwrap_or(Duration::MAX)
}

/// Any wait from `least` to `most`, both included, each as likely as the others.
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

    /// The shortest and the longest of many waits before one retry, in seconds.
    fn extremes(backoff: Backoff, retry: u32, previous: Option<Duration>) -> (f64, f64) {
        let mut random = Rng::with_seed(1);
        let waits = (0..20_000).map(|_| backoff.wait(retry, previous, &mut random).as_secs_f64());
        waits.fold((f64::MAX, 0.0), |(least, most), wait| {
            (wait.min(least), wait.max(most))
        })
    }

    /// Within both bounds, and near enough to both that nothing between them was left out.
    fn assert_fills((least, most): (f64, f64), from: f64, to: f64) {
        let near = (to - from) / 1_000.0;
        assert!(least >= from && least <= from + near, "{least} for {from}");
        assert!(most <= to && most >= to - near, "{most} for {to}");
    }

    #[test]
    fn plain_waits_double_up_to_the_cap() {
        let mut random = Rng::with_seed(1);
        let backoff = exponential(32, Jitter::None);
        let waits = (0..8).map(|retry| backoff.wait(retry, None, &mut random).as_secs());
        assert!(waits.eq([1, 2, 4, 8, 16, 32, 32, 32]));
    }

    #[test]
    fn linear_waits_grow_by_the_first_and_constant_ones_stay() {
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
    fn a_factor_of_three_triples_and_one_below_one_never_shrinks_a_wait() {
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
    fn with_base_1s_max_30s_and_jitter_03_waits_are_those_of_the_handbook() {
        let backoff = exponential(30, Jitter::Proportional(0.3));
        let table = [
            (1.0, 1.3),
            (2.0, 2.6),
            (4.0, 5.2),
            (8.0, 10.4),
            (16.0, 20.8),
            (30.0, 39.0),
        ];
        for (retry, (from, to)) in (0..).zip(table) {
            assert_fills(extremes(backoff, retry, None), from, to);
        }
    }

    #[test]
    fn two_seconds_with_25_percent_are_15_to_25_and_the_cap_of_32_is_spread_too() {
        let backoff = exponential(32, Jitter::Percent(0.25));
        assert_fills(extremes(backoff, 1, None), 1.5, 2.5);
        assert_fills(extremes(backoff, 9, None), 24.0, 40.0);
    }

    #[test]
    fn half_a_second_is_added_after_the_cap() {
        let backoff = Backoff {
            base: Duration::from_millis(500),
            ..exponential(20, Jitter::Added(Duration::from_millis(500)))
        };
        assert_fills(extremes(backoff, 0, None), 0.5, 1.0);
        assert_fills(extremes(backoff, 1, None), 1.0, 1.5);
        assert_fills(extremes(backoff, 40, None), 20.0, 20.5);
    }

    #[test]
    fn full_jitter_is_anything_and_equal_jitter_the_upper_half() {
        assert_fills(extremes(exponential(30, Jitter::Full), 2, None), 0.0, 4.0);
        assert_fills(extremes(exponential(30, Jitter::Equal), 2, None), 2.0, 4.0);
    }

    #[test]
    fn a_decorrelated_wait_is_up_to_three_times_the_one_before_and_capped_last() {
        let backoff = exponential(10, Jitter::Decorrelated);
        let after = |secs| extremes(backoff, 7, Some(Duration::from_secs(secs)));
        assert_fills(extremes(backoff, 0, None), 1.0, 3.0);
        assert_fills(after(2), 1.0, 6.0);
        assert_fills(after(5), 1.0, 10.0);
        assert_fills(after(0), 1.0, 3.0);
    }

    #[test]
    fn no_wait_at_all_stays_none_however_often_it_is_multiplied() {
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
        #![proptest_config(ProptestConfig {
            cases: 4_096,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_number_overflows_and_no_wait_leaves_its_bounds(
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
        fn a_plain_wait_is_never_shorter_than_the_one_before(
            backoff in any_backoff(),
            retry in any_retry(),
        ) {
            let plain = Backoff { jitter: Jitter::None, ..backoff };
            let wait = |retry| plain.wait(retry, None, &mut Rng::with_seed(1));
            prop_assert!(wait(retry) <= wait(retry.saturating_add(1)));
        }

        #[test]
        fn one_seed_gives_one_row_of_waits(backoff in any_backoff(), seed in any::<u64>()) {
            let row = || {
                let mut random = Rng::with_seed(seed);
                let mut previous = None;
                let next = |retry| {
                    previous = Some(backoff.wait(retry, previous, &mut random));
                    previous
                };
                (0..8).map(next).collect::<Vec<_>>()
            };
            prop_assert_eq!(row(), row());
        }
    }
}
