//! One clock for the whole gateway, real or virtual.
//!
//! Buckets count monotonic nanoseconds since the clock was made, so a step of the wall clock never
//! reaches a decision (an hour back or a year ahead admits nobody extra). The wall clock is asked for the
//! date in a `Retry-After` that a limit wants written as an HTTP date, and for how long a process was not
//! running whose store is on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A moment on the gateway's monotonic clock: nanoseconds since the clock was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment `nanos` nanoseconds after the clock was made.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock was made.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment moved ahead by `wait`, stopping at the end of time.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The source of time: cheap to clone, every clone tells the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Real {
        origin: Instant,
    },
    Virtual {
        nanos: Arc<AtomicU64>,
        wall_origin: SystemTime,
        /// Nanoseconds the wall clock was set ahead.
        stepped: Arc<AtomicU64>,
    },
}

impl Clock {
    /// The machine's monotonic clock, counting from now.
    pub fn real() -> Self {
        Self(Source::Real {
            origin: Instant::now(),
        })
    }

    /// A clock that stands still until [`advance`](Self::advance) moves it; its wall clock starts at
    /// `wall_origin`.
    pub fn virtual_from(wall_origin: SystemTime) -> Self {
        Self(Source::Virtual {
            nanos: Arc::default(),
            wall_origin,
            stepped: Arc::default(),
        })
    }

    /// The time now.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::Real { origin } => Moment::default().after(origin.elapsed()),
            Source::Virtual { nanos, .. } => Moment(nanos.load(Ordering::Acquire)),
        }
    }

    /// The wall clock's time now, for dates and for what outlives a process; never for a decision.
    pub fn wall(&self) -> SystemTime {
        match &self.0 {
            Source::Real { .. } => SystemTime::now(),
            Source::Virtual {
                nanos,
                wall_origin,
                stepped,
            } => {
                let since = [nanos, stepped].map(|nanos| nanos.load(Ordering::Acquire));
                *wall_origin
                    + since
                        .into_iter()
                        .map(Duration::from_nanos)
                        .sum::<Duration>()
            }
        }
    }

    /// Moves a virtual clock ahead.
    ///
    /// # Panics
    ///
    /// On a real clock, which nobody can move.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::Real { .. } => panic!("only a virtual clock can be advanced"),
            Source::Virtual { nanos, .. } => add(nanos, by),
        }
    }

    /// Sets only the wall clock of a virtual clock ahead, as somebody may do who finds it slow.
    ///
    /// # Panics
    ///
    /// On a real clock, which is not ours to set.
    pub fn step_wall(&self, by: Duration) {
        match &self.0 {
            Source::Real { .. } => panic!("only a virtual clock's wall clock can be set"),
            Source::Virtual { stepped, .. } => add(stepped, by),
        }
    }
}

fn add(nanos: &AtomicU64, by: Duration) {
    let by = u64::try_from(by.as_nanos()).expect("a step of less than 584 years");
    nanos.fetch_add(by, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_moves_only_when_told_and_all_clones_agree() {
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        let twin = clock.clone();
        assert_eq!(clock.now(), Moment::default());
        clock.advance(Duration::from_millis(1_500));
        assert_eq!(
            twin.now().since(Moment::default()),
            Duration::from_millis(1_500)
        );
        assert_eq!(
            twin.wall(),
            SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)
        );
    }

    #[test]
    fn moments_saturate_at_both_ends() {
        let end = Moment::from_nanos(u64::MAX);
        assert_eq!(end.after(Duration::from_secs(1)), end);
        assert_eq!(Moment::default().since(end), Duration::ZERO);
    }
}
