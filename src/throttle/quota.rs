//! How much, how fast: `burst + 1` at once, then one per interval.

use std::num::NonZeroU32;
use std::time::Duration;

use thiserror::Error;

/// The largest burst a quota may have.
pub const MAX_BURST: u32 = i32::MAX as u32;

/// The longest a bucket may take from empty to full.
pub const MAX_REFILL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A token bucket's size and speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Nanoseconds a token takes to come back.
    interval: u64,
    /// Tokens in a full bucket: `burst + 1`.
    capacity: NonZeroU32,
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
        Ok(Self {
            interval: u64::try_from(interval).expect("bounded by MAX_REFILL"),
            capacity: NonZeroU32::new(capacity).expect("burst + 1 is at least 1"),
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
}
