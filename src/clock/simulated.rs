//! Clock of a simulated machine, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::{BootId, Clock, ClockSource, Moment};

/// A process on a simulated machine.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) machine: Arc<Machine>,
    /// Value of [`Machine::running`] when the process started, in nanoseconds.
    origin: u64,
}

/// Clocks of a simulated machine since its boot. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) id: BootId,
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

    pub(super) fn since_boot(&self) -> Duration {
        let nanos = [&self.running, &self.suspended].map(|nanos| nanos.load(Ordering::Acquire));
        nanos.map(Duration::from_nanos).into_iter().sum()
    }

    pub(super) fn wall(&self) -> SystemTime {
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

impl Process {
    pub(super) fn now(&self) -> Moment {
        Moment(self.machine.running.load(Ordering::Acquire) - self.origin)
    }
}

impl Clock {
    /// Creates the clock of a simulated machine that boots now, with its wall clock at `wall_origin`. The time changes
    /// only by calls such as [`advance`](Self::advance).
    pub fn virtual_from(wall_origin: SystemTime) -> Self {
        Self(ClockSource::Simulated(Process {
            machine: Machine::boot(wall_origin),
            origin: 0,
        }))
    }

    /// Advances the monotonic, boot and wall clocks of a simulated machine by the same duration.
    pub fn advance(&self, by: Duration) {
        self.machine()
            .running
            .fetch_add(nanos(by), Ordering::AcqRel);
    }

    /// Suspends the simulated machine for `time`. The wall and boot clocks advance, but the monotonic clock does not.
    pub fn suspend(&self, time: Duration) {
        self.machine()
            .suspended
            .fetch_add(nanos(time), Ordering::AcqRel);
    }

    /// Steps the wall clock of a simulated machine forward. The monotonic and boot clocks do not change.
    pub fn step_wall(&self, by: Duration) {
        self.machine()
            .wall_steps
            .fetch_add(signed_nanos(by), Ordering::AcqRel);
    }

    /// Steps the wall clock of a simulated machine back. The monotonic and boot clocks do not change.
    pub fn step_wall_back(&self, by: Duration) {
        self.machine()
            .wall_steps
            .fetch_sub(signed_nanos(by), Ordering::AcqRel);
    }

    /// Returns the clock of a new process on the same simulated machine, within the same boot. The monotonic clock of
    /// the new process starts at zero.
    #[must_use]
    pub fn restart_process(&self) -> Self {
        let machine = self.machine();
        Self(ClockSource::Simulated(Process {
            origin: machine.running.load(Ordering::Acquire),
            machine: Arc::clone(machine),
        }))
    }

    /// Returns the clock of the same simulated machine after a reboot. The wall clock continues, and all other clocks
    /// start at zero.
    #[must_use]
    pub fn reboot(&self) -> Self {
        Self::virtual_from(self.machine().wall())
    }

    fn machine(&self) -> &Arc<Machine> {
        match &self.0 {
            ClockSource::Real { .. } => panic!("the real clock cannot be changed"),
            ClockSource::Simulated(process) => &process.machine,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("the duration is below 584 years")
}

fn signed_nanos(step: Duration) -> i64 {
    i64::try_from(step.as_nanos()).expect("the step is below 292 years")
}
