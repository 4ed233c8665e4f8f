//! How much, how fast: `burst + 1` at once, then one per interval.
//!
//! A bucket's whole state is one number, the moment it will be full again. The decision is governor's
//! GCRA; it is asked here as a pure function of state and time, so that one reading of the clock serves
//! all limits of a request and whoever keeps the state (see [`crate::store`]) can decide several buckets
//! before it commits any. A governor limiter that owned its state could do neither.
//!
//! What a quota promises: in any interval `t` at most `burst + 1 + t / interval` tokens are given out,
//! and the wait it names is exact to the nanosecond.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::RateLimiter;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use thiserror::Error;

use crate::clock::Moment;

/// The largest burst a quota may have.
pub const MAX_BURST: u32 = i32::MAX as u32;

/// The longest a bucket may take from empty to full.
pub const MAX_REFILL: Duration = Duration::from_hours(365 * 24);

/// A token bucket's size and speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Nanoseconds a token takes to come back.
    interval: u64,
    /// Tokens in a full bucket: `burst + 1`.
    capacity: NonZeroU32,
    /// Nanoseconds in which the configured rate gives `capacity` tokens, rounded up once.
    window: u64,
}

/// Why a rate and a burst make no quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QuotaError {
    /// The rate has no time to spread its requests over.
    #[error("a rate needs a period longer than zero")]
    ZeroPeriod,
    /// More than one request a nanosecond.
    #[error("a rate can be at most 1000000000/s")]
    TooFast,
    /// The burst does not fit.
    #[error("a burst can be at most {MAX_BURST}")]
    BurstTooLarge,
    /// The bucket would take too long to fill.
    #[error("a bucket must refill within 365 days")]
    RefillTooLong,
}

/// Too few tokens: come back after this long, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(pub Duration);

/// The state of a bucket, as `RateLimit` headers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whole tokens left.
    pub remaining: u32,
    /// Time to the next token; zero if the bucket is full. If the bucket `rejects`, its own wait.
    pub next: Duration,
    /// Whether this bucket rejected the request.
    pub rejects: bool,
}

impl Quota {
    /// `count` requests per `period`, and `burst` more at once.
    ///
    /// A period that `count` does not divide is rounded up to the next nanosecond a token, so the
    /// quota is never exceeded, not even in the long run.
    pub fn new(count: NonZeroU32, period: Duration, burst: u32) -> Result<Self, QuotaError> {
        let period = period.as_nanos();
        if period == 0 {
            return Err(QuotaError::ZeroPeriod);
        }
        if u128::from(count.get()) > period {
            return Err(QuotaError::TooFast);
        }
        if burst > MAX_BURST {
            return Err(QuotaError::BurstTooLarge);
        }
        let interval = period.div_ceil(u128::from(count.get()));
        let capacity = burst + 1;
        if interval * u128::from(capacity) > MAX_REFILL.as_nanos() {
            return Err(QuotaError::RefillTooLong);
        }
        let window = (period * u128::from(capacity)).div_ceil(u128::from(count.get()));
        Ok(Self {
            interval: u64::try_from(interval).expect("bounded by MAX_REFILL"),
            capacity: NonZeroU32::new(capacity).expect("burst + 1 is at least 1"),
            window: u64::try_from(window).expect("no longer than the refill time"),
        })
    }

    /// The time a token takes to come back.
    pub const fn interval(self) -> Duration {
        Duration::from_nanos(self.interval)
    }

    /// Tokens in a full bucket.
    pub const fn capacity(self) -> NonZeroU32 {
        self.capacity
    }

    /// The time in which the configured rate gives as many tokens as a full bucket has. The refill time can be longer
    /// by a nanosecond per token, because intervals are rounded up: 1 s and 30 × 33,333,334 ns for 30/s.
    pub const fn window(self) -> Duration {
        Duration::from_nanos(self.window)
    }

    /// The time an empty bucket takes to fill.
    pub const fn refill(self) -> Duration {
        Duration::from_nanos(self.interval * self.capacity.get() as u64)
    }

    /// Takes `cost` tokens at `now` from the bucket that will be full at `full_at`, and says when it
    /// will then be full; or how long until that many are there.
    ///
    /// A cost above the capacity can never be met: it waits forever.
    pub fn take(self, full_at: Moment, now: Moment, cost: NonZeroU32) -> Result<Moment, Wait> {
        if cost > self.capacity {
            return Err(Wait(Duration::MAX));
        }
        let quota = governor::Quota::with_period(self.interval())
            .expect("an interval is at least a nanosecond")
            .allow_burst(self.capacity);
        let bucket = Bucket(Cell::new(full_at));
        let limiter =
            RateLimiter::<_, _, _, NoOpMiddleware<Moment>>::new(quota, bucket, Dial::at_start());
        limiter.clock().turn_to(now);
        let outcome = if cost == NonZeroU32::MIN {
            limiter.check_key(&())
        } else {
            limiter
                .check_key_n(&(), cost)
                .expect("the cost is within the capacity")
        };
        match outcome {
            Ok(()) => Ok(limiter.into_state_store().0.get()),
            Err(not_until) => Err(Wait(not_until.wait_time_from(now))),
        }
    }

    /// Returns the state at `now` of the bucket that will be full at `full_at`.
    pub fn read(self, full_at: Moment, now: Moment) -> Reading {
        let owed = full_at.as_nanos().saturating_sub(now.as_nanos());
        let capacity = u64::from(self.capacity.get());
        let taken = owed.div_ceil(self.interval).min(capacity);
        let next = match taken {
            0 => 0,
            taken => owed - (taken - 1) * self.interval,
        };
        Reading {
            remaining: u32::try_from(capacity - taken).expect("at most the capacity, a u32"),
            next: Duration::from_nanos(next),
            rejects: false,
        }
    }
}

/// The state of one bucket, lent to governor for one decision.
struct Bucket(Cell<Moment>);

impl StateStore for Bucket {
    type Key = ();

    fn measure_and_replace<T, F, E>(&self, (): &(), decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (outcome, full_at) = decide(Some(self.0.get().as_nanos().into()))?;
        self.0.set(Moment::from_nanos(full_at.as_u64()));
        Ok(outcome)
    }
}

/// A clock that shows what it was turned to. Limiters count from the moment they are made, so it starts
/// at zero: the states then are moments of the gateway's own clock.
struct Dial(Cell<Moment>);

impl Dial {
    fn at_start() -> Self {
        Self(Cell::default())
    }

    fn turn_to(&self, now: Moment) {
        self.0.set(now);
    }
}

impl governor::clock::Clock for Dial {
    type Instant = Moment;

    fn now(&self) -> Moment {
        self.0.get()
    }
}

impl std::ops::Add<Nanos> for Moment {
    type Output = Self;

    fn add(self, ahead: Nanos) -> Self {
        Self::from_nanos(self.as_nanos().saturating_add(ahead.as_u64()))
    }
}

impl governor::clock::Reference for Moment {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.as_nanos().saturating_sub(earlier.as_nanos()).into()
    }

    fn saturating_sub(&self, back: Nanos) -> Self {
        Self::from_nanos(self.as_nanos().saturating_sub(back.as_u64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(count: u32, period: Duration, burst: u32) -> Quota {
        Quota::new(NonZeroU32::new(count).unwrap(), period, burst).unwrap()
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_worked_example_of_one_a_second_with_a_burst_of_three_holds_to_the_letter() {
        let quota = quota(1, Duration::from_secs(1), 3);
        let expected = [
            (0, true),
            (300, true),
            (600, true),
            (900, true),
            (1_200, true),
            (1_400, false),
            (1_600, false),
            (1_800, false),
            (2_100, true),
        ];
        let mut full_at = Moment::default();
        for (millis, admitted) in expected {
            let outcome = quota.take(full_at, at(millis), NonZeroU32::MIN);
            assert_eq!(outcome.is_ok(), admitted, "at {millis} ms");
            full_at = outcome.unwrap_or(full_at);
        }
    }

    #[test]
    fn a_period_that_does_not_divide_is_rounded_against_the_client() {
        assert_eq!(
            quota(3, Duration::from_secs(1), 0).interval().as_nanos(),
            333_333_334
        );
    }

    #[test]
    fn a_cost_of_several_tokens_waits_for_all_of_them() {
        let quota = quota(1, Duration::from_secs(1), 3);
        let four = NonZeroU32::new(4).unwrap();
        let emptied = quota.take(at(0), at(0), four).unwrap();
        assert_eq!(
            quota.take(emptied, at(1_000), four),
            Err(Wait(Duration::from_secs(3)))
        );
        assert!(quota.take(emptied, at(4_000), four).is_ok());
        let five = NonZeroU32::new(5).unwrap();
        assert_eq!(quota.take(at(0), at(0), five), Err(Wait(Duration::MAX)));
    }

    #[test]
    fn a_cost_too_large_to_multiply_is_refused_and_not_wrapped_into_a_small_one() {
        let slow = quota(1, MAX_REFILL, 0);
        assert_eq!(
            slow.take(at(0), at(0), NonZeroU32::MAX),
            Err(Wait(Duration::MAX))
        );
    }

    #[test]
    fn a_reading_counts_whole_tokens_and_the_time_to_the_next() {
        let quota = quota(1, Duration::from_secs(1), 3);
        let read = |full_at, now| {
            let Reading {
                remaining, next, ..
            } = quota.read(at(full_at), at(now));
            (remaining, next.as_millis())
        };
        assert_eq!(read(0, 0), (4, 0));
        assert_eq!(read(1_000, 0), (3, 1_000));
        assert_eq!(read(1_000, 700), (3, 300));
        assert_eq!(read(4_000, 0), (0, 1_000));
        assert_eq!(read(5_500, 0), (0, 2_500));
    }

    #[test]
    fn quotas_nobody_could_keep_are_refused() {
        let new = |count, period, burst| Quota::new(NonZeroU32::new(count).unwrap(), period, burst);
        let second = Duration::from_secs(1);
        assert_eq!(new(1, Duration::ZERO, 0), Err(QuotaError::ZeroPeriod));
        assert_eq!(new(2_000_000_000, second, 0), Err(QuotaError::TooFast));
        assert_eq!(new(1, second, 1 << 31), Err(QuotaError::BurstTooLarge));
        assert_eq!(
            new(1, second, 365 * 24 * 60 * 60),
            Err(QuotaError::RefillTooLong)
        );
        assert!(new(1, MAX_REFILL, 0).is_ok());
        assert!(new(1_000_000, second, MAX_BURST).is_ok());
    }
}
