//! The clock of the gateway. Tests use a virtual clock, which they advance themselves.
//!
//! Rate limits use monotonic nanoseconds since the creation of the clock, so a step of the wall clock never changes a
//! decision. The wall clock is used for dates and for snapshots of rate-limit buckets. The disk store uses the boot
//! clock (`CLOCK_BOOTTIME`) within one boot, and the wall clock across reboots. The boot clock also advances while the
//! machine is suspended and while the gateway does not run.

use std::fs;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// A point in time on the gateway's monotonic clock: nanoseconds since the creation of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Returns the moment that is `nanos` nanoseconds after the creation of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the number of nanoseconds since the creation of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is after this moment.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the moment that is `wait` later than this one. If the result exceeds the range of `Moment`, returns the
    /// largest moment.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// Identifier that the kernel generates at each boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "disk", derive(serde::Serialize, serde::Deserialize))]
pub struct BootId(u128);

impl BootId {
    /// Returns the id of the current boot, or `None` if the system provides no boot id, as in some sandboxes.
    fn current() -> Option<Self> {
        static CURRENT: OnceLock<Option<BootId>> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            Self::parse(&text)
        })
    }

    /// Parses a UUID in the format of `/proc/sys/kernel/random/boot_id`: 32 hexadecimal digits with hyphens.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.trim().replace('-', "");
        if digits.len() != 32 {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Self)
    }
}

/// A real or virtual clock. Clones are cheap, and all clones of a clock show the same time.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    Real {
        origin: Instant,
    },
    Virtual {
        machine: Arc<Machine>,
        /// Value of [`Machine::running`] when the virtual process started, in nanoseconds.
        origin: u64,
    },
}

/// Clocks of a simulated machine since its boot. Times are in nanoseconds.
#[derive(Debug)]
struct Machine {
    id: BootId,
    /// How long the machine has run since its boot, without suspended time.
    running: AtomicU64,
    suspended: AtomicU64,
    wall_at_boot: SystemTime,
    /// Sum of all forward and backward steps of the wall clock.
    wall_steps: AtomicI64,
}

impl Machine {
    fn boot(wall: SystemTime) -> Arc<Self> {
        static BOOTS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: BootId(BOOTS.fetch_add(1, Ordering::Relaxed).into()),
            running: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            wall_at_boot: wall,
            wall_steps: AtomicI64::new(0),
        })
    }

    fn since_boot(&self) -> Duration {
        let nanos = [&self.running, &self.suspended].map(|nanos| nanos.load(Ordering::Acquire));
        nanos.map(Duration::from_nanos).into_iter().sum()
    }

    fn wall(&self) -> SystemTime {
        let shown = self.wall_at_boot + self.since_boot();
        let steps = self.wall_steps.load(Ordering::Acquire);
        let size = Duration::from_nanos(steps.unsigned_abs());
        if steps < 0 {
            shown - size
        } else {
            shown + size
        }
    }
}

impl Clock {
    /// Creates a clock that reads the clocks of the real machine. [`now`](Self::now) counts from this call on.
    pub fn real() -> Self {
        Self(ClockSource::Real {
            origin: Instant::now(),
        })
    }

    /// Creates the clock of a simulated machine that boots now, with its wall clock at `wall_origin`. The time changes
    /// only by calls such as [`advance`](Self::advance).
    pub fn virtual_from(wall_origin: SystemTime) -> Self {
        Self(ClockSource::Virtual {
            machine: Machine::boot(wall_origin),
            origin: 0,
        })
    }

    /// Returns the monotonic time since the clock was created.
    pub fn now(&self) -> Moment {
        match &self.0 {
            ClockSource::Real { origin } => Moment::default().after(origin.elapsed()),
            ClockSource::Virtual { machine, origin } => {
                Moment(machine.running.load(Ordering::Acquire) - origin)
            }
        }
    }

    /// Returns the time of the wall clock, which an administrator or NTP can change at any time. Use [`now`](Self::now)
    /// for timeouts and rate limits.
    pub fn wall(&self) -> SystemTime {
        match &self.0 {
            ClockSource::Real { .. } => SystemTime::now(),
            ClockSource::Virtual { machine, .. } => machine.wall(),
        }
    }

    /// Returns how long ago the machine booted, including suspended time. A step of the wall clock does not change this
    /// duration.
    pub fn since_boot(&self) -> Duration {
        match &self.0 {
            // The conversion does not fail, because the kernel never returns a negative time since boot.
            ClockSource::Real { .. } => clock_gettime(ClockId::Boottime)
                .try_into()
                .unwrap_or_default(),
            ClockSource::Virtual { machine, .. } => machine.since_boot(),
        }
    }

    /// Returns the id of the boot that [`since_boot`](Self::since_boot) counts from, or `None` if the system provides
    /// no boot id.
    pub fn boot_id(&self) -> Option<BootId> {
        match &self.0 {
            ClockSource::Real { .. } => BootId::current(),
            ClockSource::Virtual { machine, .. } => Some(machine.id),
        }
    }

    /// Advances the monotonic, boot and wall clocks of a simulated machine by the same duration.
    ///
    /// # Panics
    ///
    /// Panics if the clock is real.
    pub fn advance(&self, by: Duration) {
        self.machine()
            .running
            .fetch_add(nanos(by), Ordering::AcqRel);
    }

    /// Suspends the simulated machine for `time`. The wall and boot clocks advance, but the monotonic clock does not.
    ///
    /// # Panics
    ///
    /// Panics if the clock is real.
    pub fn suspend(&self, time: Duration) {
        self.machine()
            .suspended
            .fetch_add(nanos(time), Ordering::AcqRel);
    }

    /// Steps the wall clock of a simulated machine forward. The monotonic and boot clocks do not change.
    ///
    /// # Panics
    ///
    /// Panics if the clock is real.
    pub fn step_wall(&self, by: Duration) {
        self.machine()
            .wall_steps
            .fetch_add(signed_nanos(by), Ordering::AcqRel);
    }

    /// Steps the wall clock of a simulated machine back. The monotonic and boot clocks do not change.
    ///
    /// # Panics
    ///
    /// Panics if the clock is real.
    pub fn step_wall_back(&self, by: Duration) {
        self.machine()
            .wall_steps
            .fetch_sub(signed_nanos(by), Ordering::AcqRel);
    }

    /// Returns the clock of a new process on the same simulated machine, within the same boot. The monotonic clock of
    /// the new process starts at zero.
    ///
    /// # Panics
    ///
    /// Panics if the clock is real.
    #[must_use]
    pub fn restart_process(&self) -> Self {
        let machine = self.machine();
        Self(ClockSource::Virtual {
            origin: machine.running.load(Ordering::Acquire),
            machine: Arc::clone(machine),
        })
    }

    /// Returns the clock of the same simulated machine after a reboot. The wall clock continues, and all other clocks
    /// start at zero.
    ///
    /// # Panics
    ///
    /// Panics if the clock is real.
    #[must_use]
    pub fn reboot(&self) -> Self {
        Self::virtual_from(self.machine().wall())
    }

    fn machine(&self) -> &Arc<Machine> {
        match &self.0 {
            ClockSource::Real { .. } => panic!("the real clock cannot be changed"),
            ClockSource::Virtual { machine, .. } => machine,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("the duration is below 584 years")
}

fn signed_nanos(step: Duration) -> i64 {
    i64::try_from(step.as_nanos()).expect("the step is below 292 years")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advancing_a_virtual_clock_advances_all_its_clones() {
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

    #[test]
    fn a_wall_step_in_either_direction_changes_only_the_wall_clock() {
        const HOUR: Duration = Duration::from_hours(1);
        let start = SystemTime::UNIX_EPOCH + HOUR * 100;
        let clock = Clock::virtual_from(start);
        clock.advance(HOUR);
        clock.step_wall(HOUR * 5);
        assert_eq!(clock.wall(), start + HOUR * 6);
        clock.step_wall_back(HOUR * 20);
        assert_eq!(clock.wall(), start - HOUR * 14);
        assert_eq!(clock.since_boot(), HOUR);
        assert_eq!(clock.now().since(Moment::default()), HOUR);
    }

    #[test]
    fn a_suspended_machine_stops_only_the_monotonic_clock() {
        const HOUR: Duration = Duration::from_hours(1);
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        clock.suspend(HOUR);
        assert_eq!(clock.now(), Moment::default());
        assert_eq!(clock.since_boot(), HOUR);
        assert_eq!(clock.wall(), SystemTime::UNIX_EPOCH + HOUR);
    }

    #[test]
    fn a_new_process_has_the_same_boot_id_and_a_reboot_changes_it() {
        const HOUR: Duration = Duration::from_hours(1);
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        clock.advance(HOUR);
        let process = clock.restart_process();
        clock.advance(HOUR);
        assert_eq!(process.boot_id(), clock.boot_id());
        assert_eq!(process.since_boot(), HOUR * 2);
        assert_eq!(process.now().since(Moment::default()), HOUR);
        let rebooted = process.reboot();
        assert_ne!(rebooted.boot_id(), clock.boot_id());
        assert_eq!(rebooted.since_boot(), Duration::ZERO);
        assert_eq!(rebooted.wall(), process.wall());
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
