//! How full a store of idempotency records is, and how early it forgets keys: warnings, metrics, text of `/readyz`.
//!
//! A store samples its use while it handles claims, at most once per second. The growth over the last minute gives the
//! time until it is full.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Shares at which a warning is logged, in percent.
const LEVELS: [u64; 3] = [50, 80, 95];

/// A level is logged again after the share has fallen this far below it, in percent.
const HYSTERESIS: u64 = 5;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Time over which the present rate is measured, and for which the age of the last forgotten key is the effective TTL.
const WINDOW: Duration = Duration::from_mins(1);

const LOG_INTERVAL: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `max_keys` of `[store]`.
    MaxKeys,
    /// `maxmemory` of Redis, in bytes.
    MaxMemory,
}

/// Use of the capacity of a store, in the unit of `bound`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityUse {
    pub bound: Bound,
    pub used: u64,
    pub max: u64,
    /// At the present rate; `None` if the use does not grow.
    pub full_in: Option<Duration>,
}

/// With times since any fixed point.
#[derive(Debug)]
pub(super) struct UseSamples {
    bound: Bound,
    /// In milliseconds.
    due: AtomicU64,
    state: Mutex<SampleState>,
}

#[derive(Debug, Default)]
struct SampleState {
    /// Number of [`LEVELS`] that were logged.
    levels: usize,
    samples: VecDeque<(Duration, u64)>,
}

impl UseSamples {
    pub(super) fn new(bound: Bound) -> Self {
        Self {
            bound,
            due: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub(super) fn is_due(&self, at: Duration) -> bool {
        millis(at) >= self.due.load(Ordering::Relaxed)
    }

    /// Adds a sample if one is due, and logs a level that it reaches.
    pub(super) fn add(&self, at: Duration, used: u64, max: u64) -> CapacityUse {
        let mut state = self.state.lock();
        let mut reached = None;
        if self.is_due(at) {
            let due = millis(at + SAMPLE_INTERVAL);
            self.due.store(due, Ordering::Relaxed);
            reached = state.add(at, used, max);
        }
        let (bound, full_in) = (self.bound, state.full_in(at, used, max));
        drop(state);
        let capacity_use = CapacityUse {
            bound,
            used,
            max,
            full_in,
        };
        if let Some(level) = reached {
            capacity_use.log(level);
        }
        capacity_use
    }
}

impl SampleState {
    /// Returns the highest level that the sample reaches for the first time.
    fn add(&mut self, at: Duration, used: u64, max: u64) -> Option<u64> {
        // A rate needs two samples.
        while self.samples.len() > 1
            && let Some((first, _)) = self.samples.front()
            && at.saturating_sub(*first) >= WINDOW
        {
            self.samples.pop_front();
        }
        self.samples.push_back((at, used));
        if self.samples.len() < 2 {
            return None;
        }
        let reached = |below: u64| {
            let reaches = |level: &&u64| {
                u128::from(used) * 100 >= u128::from(max) * u128::from(**level - below)
            };
            LEVELS.iter().filter(reaches).count()
        };
        let (before, now) = (self.levels, reached(0));
        self.levels = before.min(reached(HYSTERESIS)).max(now);
        (now > before).then(|| LEVELS[now - 1])
    }

    fn full_in(&self, at: Duration, used: u64, max: u64) -> Option<Duration> {
        let (began, first) = self.samples.front()?;
        let grown = used.checked_sub(*first).filter(|grown| *grown > 0)?;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let ratio = max.saturating_sub(used) as f64 / grown as f64;
        Duration::try_from_secs_f64(at.saturating_sub(*began).as_secs_f64() * ratio).ok()
    }
}

impl CapacityUse {
    pub(crate) fn is_notable(&self) -> bool {
        self.percent() >= LEVELS[0]
    }

    fn percent(&self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.max.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    fn log(&self, level: u64) {
        let Self { used, max, .. } = self;
        let full_in = Estimate(self.full_in);
        match self.bound {
            Bound::MaxKeys => tracing::warn!(
                used,
                max,
                %full_in,
                "idempotency store reached {level} % of `store.max_keys`: when full it forgets completed keys older than \
                 `store.min_ttl`, and without such keys new ones get 503; raise `store.max_keys`, or shorten `ttl`"
            ),
            Bound::MaxMemory => tracing::warn!(
                used,
                max,
                %full_in,
                "Redis reached {level} % of its `maxmemory`: at 100 % new idempotency keys get 503; raise `maxmemory`, \
                 or shorten `ttl`"
            ),
        }
    }
}

impl fmt::Display for CapacityUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = match self.bound {
            Bound::MaxKeys => "max_keys",
            Bound::MaxMemory => "maxmemory of Redis",
        };
        write!(f, "{} % of {bound} in use, full in: ", self.percent())?;
        Estimate(self.full_in).fmt(f)
    }
}

/// In the largest unit of which it has at least two.
struct Estimate(Option<Duration>);

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(time) = self.0 else {
            return f.write_str("not growing");
        };
        let seconds = time.as_secs();
        let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
        let unit = units.into_iter().find(|(size, _)| seconds >= 2 * size);
        let (size, name) = unit.unwrap_or((1, "s"));
        write!(f, "{}{name}", seconds / size)
    }
}

/// Keys that a store forgot before they expired.
#[derive(Debug, Default)]
pub(super) struct ForgottenKeys {
    count: AtomicU64,
    /// Of the last forgotten key, in milliseconds.
    age: AtomicU64,
    /// In milliseconds.
    at: AtomicU64,
    log_interval: LogInterval,
}

impl ForgottenKeys {
    /// Logs the total at most once a minute.
    pub(super) fn add(&self, at: Duration, age: Duration) {
        let forgotten = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.age.store(millis(age), Ordering::Relaxed);
        self.at.store(millis(at), Ordering::Relaxed);
        if self.log_interval.is_due(at) {
            tracing::warn!(
                forgotten,
                ?age,
                "completed idempotency keys forgotten before their TTL, because the store is full: a later retry is \
                 executed again; raise `store.max_keys`, or shorten `ttl`"
            );
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How long completed keys are presently kept: the age of a key that was forgotten within the last minute, else
    /// `longest_ttl`.
    pub(super) fn effective_ttl(
        &self,
        now: Duration,
        longest_ttl: Option<Duration>,
    ) -> Option<Duration> {
        let last = Duration::from_millis(self.at.load(Ordering::Relaxed));
        if self.count() > 0 && now.saturating_sub(last) < WINDOW {
            return Some(Duration::from_millis(self.age.load(Ordering::Relaxed)));
        }
        longest_ttl
    }
}

/// Lets one log message per minute pass.
#[derive(Debug, Default)]
pub(super) struct LogInterval {
    /// In milliseconds.
    due: AtomicU64,
}

impl LogInterval {
    pub(super) fn is_due(&self, at: Duration) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        let next = millis(at + LOG_INTERVAL);
        millis(at) >= due
            && (self.due)
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_reached_once_per_crossing() {
        let mut state = SampleState::default();
        let uses = [49, 50, 60, 81, 79, 80, 75, 80, 74, 80, 99, 0, 96];
        let expected = [
            None,
            Some(50),
            None,
            Some(80),
            None,
            None,
            None,
            None,
            None,
            Some(80),
            Some(95),
            None,
            Some(95),
        ];
        for (second, (used, expected)) in (0..).zip(uses.into_iter().zip(expected)) {
            let reached = state.add(Duration::from_secs(second), used, 100);
            assert_eq!(reached, expected, "second {second}: {used} %");
        }
    }

    #[test]
    fn the_projection_follows_the_rate_of_the_last_minute() {
        let samples = UseSamples::new(Bound::MaxKeys);
        let mut used = 0;
        let mut add = |from: u64, to: u64, rate| {
            let mut last = None;
            for second in from..to {
                used += rate;
                last = Some(samples.add(Duration::from_secs(second), used, 100_000));
            }
            last.unwrap()
        };
        let full_in = add(0, 100, 100).full_in.unwrap();
        assert_eq!(full_in.as_secs(), 90_000 / 100);
        let full_in = add(100, 200, 500).full_in.unwrap();
        assert_eq!(full_in.as_secs(), 40_000 / 500);
        assert_eq!(add(200, 300, 0).full_in, None);
    }

    #[test]
    fn an_estimate_has_at_least_two_of_its_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (86_400, "24h"),
            (172_800, "2d"),
        ] {
            let time = Some(Duration::from_secs(seconds));
            assert_eq!(Estimate(time).to_string(), text);
        }
    }

    #[test]
    fn the_effective_ttl_is_the_age_of_the_last_forgotten_key_for_a_minute() {
        let forgotten = ForgottenKeys::default();
        let (hour, ttl) = (Duration::from_hours(1), Some(Duration::from_hours(24)));
        assert_eq!(forgotten.effective_ttl(hour, ttl), ttl);
        forgotten.add(hour, hour * 2);
        assert_eq!(forgotten.effective_ttl(hour, ttl), Some(hour * 2));
        assert_eq!(forgotten.effective_ttl(hour + WINDOW, ttl), ttl);
        assert_eq!(forgotten.count(), 1);
    }
}
