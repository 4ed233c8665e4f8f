//! Clock of the gateway, or of a simulated machine in tests.
//!
//! Rate limits use monotonic nanoseconds since the creation of the clock, so a step of the wall clock never changes a
//! decision. The disk store uses the boot clock (`CLOCK_BOOTTIME`) within one boot, and the wall clock across reboots.
//! The boot clock also advances while the machine is suspended and while the gateway does not run.

#[cfg(any(test, feature = "internals"))]
mod simulated;

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// A point in time on a [`Clock`], in nanoseconds since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Returns the moment this long after the creation of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the creation of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the moment `wait` later, saturating.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// Id of a boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub struct BootId(u128);

impl BootId {
    /// `None` if the system provides no boot id, as in some sandboxes.
    fn current() -> Option<Self> {
        static CURRENT: OnceLock<Option<BootId>> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            Self::parse(&text)
        })
    }

    /// As in `/proc/sys/kernel/random/boot_id`: 32 hexadecimal digits with hyphens.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.trim().replace('-', "");
        if digits.len() != 32 {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Self)
    }
}

/// Clock of the gateway. All clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    /// Monotonic nanoseconds of the machine. `Instant` would take 60 instructions more per reading.
    Real { origin: u64 },
    #[cfg(any(test, feature = "internals"))]
    Simulated(simulated::Process),
}

impl Clock {
    /// Creates a clock of the real machine, on which [`now`](Self::now) counts from this call on.
    pub fn real() -> Self {
        Self(ClockSource::Real {
            origin: monotonic_nanos(),
        })
    }

    /// Returns the monotonic time since the clock was created.
    pub fn now(&self) -> Moment {
        match &self.0 {
            ClockSource::Real { origin } => Moment(monotonic_nanos().saturating_sub(*origin)),
            #[cfg(any(test, feature = "internals"))]
            ClockSource::Simulated(process) => process.now(),
        }
    }

    /// Returns the wall clock, which an administrator or NTP can change at any time.
    pub fn wall(&self) -> SystemTime {
        match &self.0 {
            ClockSource::Real { .. } => SystemTime::now(),
            #[cfg(any(test, feature = "internals"))]
            ClockSource::Simulated(process) => process.machine.wall(),
        }
    }

    /// Returns the time since the machine booted, including suspended time.
    pub fn since_boot(&self) -> Duration {
        match &self.0 {
            // The kernel never returns a negative time since boot.
            ClockSource::Real { .. } => clock_gettime(ClockId::Boottime)
                .try_into()
                .unwrap_or_default(),
            #[cfg(any(test, feature = "internals"))]
            ClockSource::Simulated(process) => process.machine.since_boot(),
        }
    }

    /// Returns the id of the current boot, if the system provides one.
    pub fn boot_id(&self) -> Option<BootId> {
        match &self.0 {
            ClockSource::Real { .. } => BootId::current(),
            #[cfg(any(test, feature = "internals"))]
            ClockSource::Simulated(process) => Some(process.machine.id),
        }
    }
}

fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither number is negative on this clock.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_at_both_ends() {
        let end = Moment::from_nanos(u64::MAX);
        assert_eq!(end.after(Duration::from_secs(1)), end);
        assert_eq!(Moment::default().since(end), Duration::ZERO);
    }

    #[test]
    fn real_clocks_share_a_running_boot_clock_and_a_boot_id() {
        let (one, two) = (Clock::real(), Clock::real());
        assert_eq!(one.boot_id(), two.boot_id());
        let before = one.since_boot();
        assert!(before > Duration::ZERO && two.since_boot() >= before);
    }

    #[test]
    fn a_boot_id_parses_as_the_kernel_writes_it_and_other_text_does_not() {
        let id = BootId::parse("4b5ffa59-7d3c-4f13-a3c8-6f5a4b4c2d1e\n");
        assert_eq!(id, Some(BootId(0x4b5f_fa59_7d3c_4f13_a3c8_6f5a_4b4c_2d1e)));
        for text in ["", "4b5ffa59", "zb5ffa59-7d3c-4f13-a3c8-6f5a4b4c2d1e"] {
            assert_eq!(BootId::parse(text), None);
        }
    }
}
