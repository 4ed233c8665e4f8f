//! Quota of a rate limit, and the arithmetic of one token bucket, which is GCRA.
//!
//! The state of a bucket is the time at which it is full again, and [`Quota::take`] a pure function of state and time.
//! So a store can decide all limits of a request for the same time, and commit all states or none. A long-lived limiter
//! of the crate governor commits and reads its clock for each bucket, and its tables are unbounded. So `take` creates a
//! limiter on the stack for one bucket: 2.8 ns per decision, next to 2.0 ns of a direct implementation and more than
//! 100 ns of a complete charge.
//!
//! In any period `t`, a bucket gives at most `burst + 1 + t / interval` tokens. A wait is exact to the nanosecond.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use governor::RateLimiter;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use thiserror::Error;

use super::rate::{Rate, RateError};
use crate::clock::Moment;

/// In tokens.
pub(crate) const MAX_BURST: u32 = i32::MAX as u32;

/// For an empty bucket.
pub(crate) const MAX_REFILL: Duration = Duration::from_hours(365 * 24);

/// Capacity and refill rate of the token buckets of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The "burst size" of governor is the capacity, `burst + 1`.
    governor: governor::Quota,
    /// Time to refill an empty bucket, in nanoseconds.
    refill: u64,
    /// Before the refill interval was rounded.
    rate: Rate,
}

/// Error of a text that is not a valid quota.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseQuotaError {
    /// The text is not a rate such as `10/s`.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The rate is out of range.
    #[error(transparent)]
    Range(#[from] QuotaError),
}

/// Error of a `rate` or `burst` that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QuotaError {
    /// The period is zero.
    #[error("the period of `rate` must be longer than zero, as in `10/s`")]
    ZeroPeriod,
    /// The rate is above one request per nanosecond.
    #[error("`rate` must be at most 1000000000/s")]
    TooFast,
    /// The burst is above 2³¹ − 1.
    #[error("`burst` must be at most {MAX_BURST} requests")]
    BurstTooLarge,
    /// An empty bucket would take longer than a year to refill.
    #[error(
        "an empty bucket of this rate limit must refill within 365 days; lower `burst` or raise `rate`"
    )]
    RefillTooLong,
}

/// State of a bucket between two charges. A bucket that is not stored is full. If the quota has changed since the last
/// charge, the bucket keeps its filled fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketState {
    /// When the bucket is full.
    pub full_at: Moment,
    /// Refill time of an empty bucket under the quota of the last charge, in nanoseconds.
    pub refill: u64,
}

/// State of a bucket as `RateLimit` headers report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketReading {
    /// Number of complete tokens in the bucket.
    pub remaining: u32,
    /// Until the next token is added, or until the bucket would admit the rejected request; zero if it is full.
    pub next: Duration,
    /// Whether the limit rejected the request.
    pub rejects: bool,
}

impl Quota {
    /// Creates a quota of `count` requests per `period`, with a capacity of `burst + 1` tokens. The refill interval is
    /// rounded up to a nanosecond, so the rate is never exceeded.
    pub fn new(count: NonZeroU32, period: Duration, burst: u32) -> Result<Self, QuotaError> {
        let rate = Rate { count, period };
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
        let capacity = NonZeroU32::MIN.saturating_add(burst);
        let refill = interval * u128::from(capacity.get());
        if refill > MAX_REFILL.as_nanos() {
            return Err(QuotaError::RefillTooLong);
        }
        let [interval, refill] =
            [interval, refill].map(|nanos| u64::try_from(nanos).expect("at most MAX_REFILL"));
        Ok(Self {
            governor: governor::Quota::with_period(Duration::from_nanos(interval))
                .expect("the interval is at least a nanosecond")
                .allow_burst(capacity),
            refill,
            rate,
        })
    }

    /// Returns the quota with another burst.
    pub fn with_burst(self, burst: u32) -> Result<Self, QuotaError> {
        Self::new(self.rate.count, self.rate.period, burst)
    }

    #[cfg(feature = "gateway")]
    pub(crate) const fn rate(self) -> Rate {
        self.rate
    }

    /// Returns the time to refill one token.
    pub const fn interval(self) -> Duration {
        self.governor.replenish_interval()
    }

    /// Returns the number of tokens in a full bucket: `burst + 1`.
    pub const fn capacity(self) -> NonZeroU32 {
        self.governor.burst_size()
    }

    /// Returns how long the configured rate takes to give `capacity` tokens. The refill time can be longer by up to a
    /// nanosecond per token: for 30/s with a capacity of 30 it is 30 × 33,333,334 ns.
    pub fn window(self) -> Duration {
        let Rate { count, period } = self.rate;
        let tokens = period.as_nanos() * u128::from(self.capacity().get());
        let nanos = tokens.div_ceil(u128::from(count.get()));
        Duration::from_nanos(u64::try_from(nanos).expect("the window is at most the refill time"))
    }

    /// Returns the time to refill an empty bucket.
    pub const fn refill(self) -> Duration {
        Duration::from_nanos(self.refill)
    }

    /// Returns the state of a bucket under this quota.
    pub const fn state(self, full_at: Moment) -> BucketState {
        BucketState {
            full_at,
            refill: self.refill,
        }
    }

    /// Takes `cost` tokens from the bucket that is full at `full_at`, and returns when it is full again. The error is
    /// the wait until the bucket has enough tokens: [`Duration::MAX`] for a cost above the capacity.
    pub fn take(self, full_at: Moment, now: Moment, cost: NonZeroU32) -> Result<Moment, Duration> {
        // governor makes this check only after a multiplication that can overflow.
        if cost > self.capacity() {
            return Err(Duration::MAX);
        }
        let limiter = RateLimiter::<_, _, _, NoOpMiddleware<Nanos>>::new(
            self.governor,
            Debt::at(now, full_at),
            FrozenClock,
        );
        let checked = limiter.check_n(cost);
        match checked.expect("the cost is within the capacity") {
            Ok(()) => Ok(now.after(limiter.into_state_store().0.get().into())),
            Err(not_until) => Err(not_until.wait_time_from(FrozenClock::TIME)),
        }
    }

    /// Returns the state at `now` of the bucket that is full at `full_at`.
    pub fn read(self, full_at: Moment, now: Moment) -> BucketReading {
        let debt = full_at.as_nanos().saturating_sub(now.as_nanos());
        let interval = Nanos::from(self.interval()).as_u64();
        let capacity = u64::from(self.capacity().get());
        let taken = debt.div_ceil(interval).min(capacity);
        let next = match taken {
            0 => 0,
            taken => debt - (taken - 1) * interval,
        };
        BucketReading {
            remaining: u32::try_from(capacity - taken).expect("the capacity is a u32"),
            next: Duration::from_nanos(next),
            rejects: false,
        }
    }
}

/// Parses a rate in the form of the configuration: `10/s`, `100/m`, `5/h`, `1000/d` or `5/10s`. The burst is the number
/// of requests minus one.
impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, ParseQuotaError> {
        let Rate { count, period } = text.parse()?;
        Ok(Self::new(count, period, count.get() - 1)?)
    }
}

/// Nanoseconds until the bucket is full.
struct Debt(Cell<Nanos>);

impl Debt {
    fn at(now: Moment, full_at: Moment) -> Self {
        let debt = full_at.as_nanos().saturating_sub(now.as_nanos());
        Self(Cell::new(debt.into()))
    }
}

impl StateStore for Debt {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (outcome, debt) = decide(Some(self.0.get()))?;
        self.0.set(debt);
        Ok(outcome)
    }
}

/// Always zero, because the debt of a bucket is measured from the time of the decision.
struct FrozenClock;

impl FrozenClock {
    const TIME: Nanos = Nanos::new(0);
}

impl governor::clock::Clock for FrozenClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Self::TIME
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
    fn a_quota_of_one_per_second_with_burst_three_admits_as_documented() {
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
    fn an_interval_that_is_not_a_whole_nanosecond_is_rounded_up() {
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
            Err(Duration::from_secs(3))
        );
        assert!(quota.take(emptied, at(4_000), four).is_ok());
        let five = NonZeroU32::new(5).unwrap();
        assert_eq!(quota.take(at(0), at(0), five), Err(Duration::MAX));
    }

    #[test]
    fn a_cost_whose_product_overflows_is_rejected() {
        let slow = quota(1, MAX_REFILL, 0);
        assert_eq!(slow.take(at(0), at(0), NonZeroU32::MAX), Err(Duration::MAX));
    }

    #[test]
    fn a_reading_has_the_complete_tokens_and_the_time_to_the_next() {
        let quota = quota(1, Duration::from_secs(1), 3);
        let read = |full_at, now| {
            let BucketReading {
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
    fn a_text_is_parsed_as_a_quota_with_the_default_burst() {
        let second = Duration::from_secs(1);
        for (text, expected) in [
            ("1/s", quota(1, second, 0)),
            ("10/s", quota(10, second, 9)),
            ("100/m", quota(100, second * 60, 99)),
            ("5/h", quota(5, second * 3_600, 4)),
            ("1000/d", quota(1_000, second * 86_400, 999)),
            ("5/10s", quota(5, second * 10, 4)),
            ("1/365d", quota(1, MAX_REFILL, 0)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!(
            "30/s".parse::<Quota>().unwrap().window(),
            second,
            "the rounded interval does not change the window"
        );
        let burst: Quota = "1/s".parse().unwrap();
        assert_eq!(burst.with_burst(3), Ok(quota(1, second, 3)));
        assert_eq!(burst.with_burst(u32::MAX), Err(QuotaError::BurstTooLarge));
    }

    #[test]
    fn a_text_that_is_not_a_quota_is_an_error_with_a_remedy() {
        for (text, message) in [
            ("", "`` is not a rate; write a number of requests per time"),
            (
                "10",
                "`10` is not a rate; write a number of requests per time",
            ),
            (
                "10/w",
                "`10/w` is not a rate; write a number of requests per time",
            ),
            (
                "+1/s",
                "`+1/s` is not a rate; write a number of requests per time",
            ),
            (
                "0/s",
                "the rate `0/s` admits no requests; write at least 1 request",
            ),
            (
                "1/0s",
                "the rate `1/0s` has a time of zero; write a time longer",
            ),
            ("2000000000/s", "`rate` must be at most 1000000000/s"),
            (
                "1/366d",
                "an empty bucket of this rate limit must refill within",
            ),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn quotas_out_of_range_are_rejected() {
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
