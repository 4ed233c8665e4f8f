//! State of a circuit, under the lock that all workers share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::sliding_window::SlidingWindow;
use super::NotAdmitted;
use super::report::{OpenCause, PhaseChange};
use super::rule::{FailureStreak, ResultCounts};
use crate::clock::Moment;

/// Indexes of [`Circuit::results`].
pub(super) const SUCCEEDED: usize = 0;
pub(super) const UNCOMPARED: usize = 1;
pub(super) const COMPARED: usize = 2;

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct SharedCircuit {
    glance: Glance,
    pub(super) circuit: Mutex<Circuit>,
}

/// What each attempt reads of the servers that it does not choose, on other cache lines than the lock. Written only
/// while the circuit is locked.
#[derive(Debug)]
#[repr(align(128))]
struct Glance {
    is_closed: AtomicBool,
    /// When the circuit last closed after it had been open, in nanoseconds of the clock, or [`NEVER`].
    recovered: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Circuit {
    pub(super) phase: Phase,
    /// Number of phase changes so far, except for changes from probing to half-open.
    pub(super) generation: u64,
    pub(super) streak: FailureStreak,
    pub(super) results: SlidingWindow<3>,
    pub(super) is_outlier: bool,
    pub(super) since: Moment,
    pub(super) openings: u64,
    /// Failed probes since the circuit was last closed, without those after which it opens briefly. The open time doubles
    /// with each.
    pub(super) failed_probes: u32,
    pub(super) why: Option<OpenCause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Closed,
    /// After `until` the next attempt becomes the probe. `None`: an operator keeps the circuit open.
    Open {
        until: Option<Moment>,
    },
    /// A probe ended without a result, so the next attempt becomes the probe.
    HalfOpen,
    /// No other attempt is admitted, unless the probe has no result at `until`.
    Probing {
        until: Moment,
    },
}

impl SharedCircuit {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            glance: Glance {
                is_closed: AtomicBool::new(true),
                recovered: AtomicU64::new(NEVER),
            },
            circuit: Mutex::new(Circuit {
                phase: Phase::Closed,
                generation: 0,
                streak: FailureStreak::default(),
                results: SlidingWindow::new(window),
                is_outlier: false,
                since: Moment::default(),
                openings: 0,
                failed_probes: 0,
                why: None,
            }),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.glance.is_closed.load(Ordering::Relaxed)
    }

    pub(super) fn recovered_at(&self) -> Option<Moment> {
        match self.glance.recovered.load(Ordering::Relaxed) {
            NEVER => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    pub(super) fn enter(&self, circuit: &mut Circuit, phase: Phase) {
        circuit.phase = phase;
        circuit.generation += 1;
        circuit.streak = FailureStreak::default();
        let is_closed = phase == Phase::Closed;
        self.glance.is_closed.store(is_closed, Ordering::Relaxed);
    }

    pub(super) fn close(&self, circuit: &mut Circuit, now: Moment) -> PhaseChange {
        circuit.since = now;
        circuit.failed_probes = 0;
        circuit.is_outlier = false;
        circuit.results.reset();
        let recovered = &self.glance.recovered;
        recovered.store(now.as_nanos(), Ordering::Relaxed);
        self.enter(circuit, Phase::Closed);
        PhaseChange::Closed
    }
}

impl Circuit {
    /// `None` if an attempt is admitted.
    pub(super) fn not_admitted(&self, now: Moment) -> Option<NotAdmitted> {
        let wait = match self.phase {
            Phase::Closed | Phase::HalfOpen => return None,
            Phase::Open { until: Some(until) } | Phase::Probing { until } if until <= now => {
                return None;
            }
            Phase::Open { until } => until.map(|until| until.since(now)),
            Phase::Probing { .. } => None,
        };
        Some(NotAdmitted { wait })
    }

    pub(super) fn opened(&mut self, why: OpenCause, now: Moment) {
        self.since = now;
        self.openings += 1;
        self.why = Some(why);
    }

    pub(super) fn counts(&mut self, now: Moment) -> ResultCounts {
        let counts = self.results.sum(now);
        ResultCounts {
            succeeded: counts[SUCCEEDED],
            uncompared: counts[UNCOMPARED],
            compared: counts[COMPARED],
        }
    }
}
