//! State of a circuit breaker, packed into one atomic word. All workers read the same word and change it atomically.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Moment;

const PHASE_BITS: u32 = 2;
const COMPARED_BITS: u32 = 1;
const LENGTH_SHIFT: u32 = PHASE_BITS + COMPARED_BITS;
const LENGTH_BITS: u32 = 21;
const GENERATION_SHIFT: u32 = LENGTH_SHIFT + LENGTH_BITS;

/// Maximum of [`FailureStreak::length`]. A longer streak is recorded with this length.
pub(super) const MAX_STREAK: u32 = (1 << LENGTH_BITS) - 1;

/// Value of an atomic time that stands for `None`.
const NEVER: u64 = u64::MAX;

/// Phase of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// All attempts are admitted.
    Closed,
    /// No attempt is admitted until the open time is over. Then the next attempt becomes the probe.
    Open,
    /// A probe ended without a result, so the next attempt becomes the probe.
    HalfOpen,
    /// The probe is in flight, and no other attempt is admitted.
    Probing,
}

/// Consecutive failures of the same kind, without a success or a failure of the other kind in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FailureStreak {
    pub(super) length: u32,
    /// Whether these failures open the circuit only if the other servers are healthy.
    pub(super) is_compared: bool,
}

impl FailureStreak {
    /// Returns the streak after one more failure. A failure of the other kind starts a new streak of length 1.
    fn after(self, is_compared: bool) -> Self {
        let length = if self.is_compared == is_compared {
            MAX_STREAK.min(self.length + 1)
        } else {
            1
        };
        Self {
            length,
            is_compared,
        }
    }
}

/// Phase, failure streak and generation in one word. The generation is the number of phase changes so far, except for
/// changes from probing to half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedState(u64);

impl PackedState {
    fn new(phase: Phase, generation: u64) -> Self {
        Self(phase as u64 | generation << GENERATION_SHIFT)
    }

    pub(super) fn phase(self) -> Phase {
        match self.0 & 3 {
            0 => Phase::Closed,
            1 => Phase::Open,
            2 => Phase::HalfOpen,
            _ => Phase::Probing,
        }
    }

    pub(super) fn streak(self) -> FailureStreak {
        let length = self.0 >> LENGTH_SHIFT & u64::from(MAX_STREAK);
        FailureStreak {
            length: u32::try_from(length).expect("the length has fewer than 32 bits"),
            is_compared: self.0 >> PHASE_BITS & 1 == 1,
        }
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    /// Returns the state after a change to `phase`: the generation is one higher, and the failure streak is empty.
    fn next_phase(self, phase: Phase) -> Self {
        Self::new(phase, self.generation() + 1)
    }

    fn with_streak(self, streak: FailureStreak) -> Self {
        let length = u64::from(streak.length) << LENGTH_SHIFT;
        let is_compared = u64::from(streak.is_compared) << PHASE_BITS;
        Self(Self::new(self.phase(), self.generation()).0 | length | is_compared)
    }
}

/// The state that every attempt reads. It has its own cache lines, so reads stay cheap while no attempt fails.
///
/// A caller must lock the history of the breaker before it changes the phase. Two changes need no lock: a failure
/// streak grows or ends, and a probe ends without a result, which changes the phase from probing to half-open. These
/// two changes do not change the generation. They have no effect if the generation has changed, so they cannot undo a
/// change of phase.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct AtomicState {
    word: AtomicU64,
    /// When the open phase ends, or when the probe times out, in nanoseconds of the clock. [`NEVER`] if an operator
    /// keeps the circuit open.
    until: AtomicU64,
    /// When the circuit last closed after it had been open, in nanoseconds of the clock. [`NEVER`] if it was never
    /// open.
    recovered: AtomicU64,
    /// Whether the circuit opened because the server was an outlier. Written only while the history is locked.
    outlier: AtomicBool,
}

impl AtomicState {
    pub(super) fn closed() -> Self {
        Self {
            word: AtomicU64::new(PackedState::new(Phase::Closed, 0).0),
            until: AtomicU64::new(NEVER),
            recovered: AtomicU64::new(NEVER),
            outlier: AtomicBool::new(false),
        }
    }

    pub(super) fn read(&self) -> PackedState {
        // `Acquire` pairs with the `Release` of a phase change, so a reader that sees the new phase also sees its
        // `until`.
        PackedState(self.word.load(Ordering::Acquire))
    }

    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        PackedState(self.word.load(Ordering::Relaxed)).phase() == Phase::Closed
    }

    /// Returns when the open phase ends, or when the probe times out. `None` if an operator keeps the circuit open.
    pub(super) fn until(&self) -> Option<Moment> {
        moment(&self.until)
    }

    pub(super) fn recovered(&self) -> Option<Moment> {
        moment(&self.recovered)
    }

    /// Whether the circuit opened because the server was an outlier.
    pub(super) fn is_outlier(&self) -> bool {
        self.outlier.load(Ordering::Relaxed)
    }

    /// Sets whether the server is an outlier. The caller must have locked the history of the breaker.
    pub(super) fn set_outlier(&self, outlier: bool) {
        self.outlier.store(outlier, Ordering::Relaxed);
    }

    /// Changes the phase and returns the new generation. The caller must have locked the history of the breaker.
    pub(super) fn enter(&self, phase: Phase) -> u64 {
        let next = self.read().next_phase(phase);
        self.word.store(next.0, Ordering::Release);
        next.generation()
    }

    /// Enters the open phase, which ends at `until`, or never if it is `None`. The caller must have locked the history
    /// of the breaker.
    pub(super) fn open_until(&self, until: Option<Moment>) {
        self.enter_until(Phase::Open, until);
    }

    /// Begins a probe that times out at `until`, and returns its generation. The caller must have locked the history of
    /// the breaker.
    pub(super) fn probe_until(&self, until: Moment) -> u64 {
        self.enter_until(Phase::Probing, Some(until))
    }

    fn enter_until(&self, phase: Phase, until: Option<Moment>) -> u64 {
        let until = until.map_or(NEVER, |until| until.as_nanos().min(NEVER - 1));
        self.until.store(until, Ordering::Relaxed);
        self.enter(phase)
    }

    /// Closes the circuit and records `now` as the time of recovery. The caller must have locked the history of the
    /// breaker.
    pub(super) fn recover(&self, now: Moment) {
        let now = now.as_nanos().min(NEVER - 1);
        self.recovered.store(now, Ordering::Relaxed);
        self.enter(Phase::Closed);
    }

    /// Adds a failure to the streak and returns the new streak. `None` if the phase has changed since `generation`.
    pub(super) fn extend_streak(
        &self,
        generation: u64,
        is_compared: bool,
    ) -> Option<FailureStreak> {
        self.change(generation, |word| {
            Some(word.with_streak(word.streak().after(is_compared)))
        })
        .map(PackedState::streak)
    }

    /// Ends the failure streak, unless the phase has changed since `generation`.
    pub(super) fn end_streak(&self, generation: u64) {
        self.change(generation, |word| {
            (word.streak().length != 0).then(|| word.with_streak(FailureStreak::default()))
        });
    }

    /// Ends a probe without a result, so that the next attempt becomes the probe. Has no effect if the phase has
    /// changed since `generation`.
    pub(super) fn release_probe(&self, generation: u64) {
        self.change(generation, |word| {
            (word.phase() == Phase::Probing).then(|| PackedState::new(Phase::HalfOpen, generation))
        });
    }

    /// Replaces the word by the result of `change`. Returns the new state. Returns `None` and changes nothing if the
    /// phase has changed since `generation`, or if `change` returns `None`.
    fn change(
        &self,
        generation: u64,
        change: impl Fn(PackedState) -> Option<PackedState>,
    ) -> Option<PackedState> {
        let mut word = self.read();
        while word.generation() == generation {
            let changed = change(word)?;
            match self.word.compare_exchange_weak(
                word.0,
                changed.0,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(changed),
                Err(other) => word = PackedState(other),
            }
        }
        None
    }
}

fn moment(nanos: &AtomicU64) -> Option<Moment> {
    let nanos = nanos.load(Ordering::Relaxed);
    (nanos != NEVER).then(|| Moment::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_packed_state_do_not_overlap() {
        for phase in [Phase::Closed, Phase::Open, Phase::HalfOpen, Phase::Probing] {
            for generation in [0, 1, (1 << 40) - 1] {
                for (length, is_compared) in [(0, false), (1, true), (MAX_STREAK, false)] {
                    let streak = FailureStreak {
                        length,
                        is_compared,
                    };
                    let word = PackedState::new(phase, generation).with_streak(streak);
                    assert_eq!(word.phase(), phase);
                    assert_eq!(word.streak(), streak);
                    assert_eq!(word.generation(), generation);
                }
            }
        }
    }

    #[test]
    fn a_streak_saturates_before_it_changes_the_generation() {
        let state = AtomicState::closed();
        let longest = FailureStreak {
            length: MAX_STREAK,
            is_compared: true,
        };
        let full = state.read().with_streak(longest);
        state.word.store(full.0, Ordering::Relaxed);
        assert_eq!(state.extend_streak(0, true), Some(longest));
        assert_eq!(state.read(), full);
    }

    #[test]
    fn a_failure_of_the_other_kind_starts_a_new_streak() {
        let state = AtomicState::closed();
        let extend = |is_compared| state.extend_streak(0, is_compared).expect("current").length;
        let lengths = [true, true, false, false, true].map(extend);
        assert_eq!(lengths, [1, 2, 1, 2, 1]);
        state.end_streak(0);
        assert_eq!(state.read().streak(), FailureStreak::default());
    }

    #[test]
    fn changes_of_a_past_generation_are_ignored() {
        let state = AtomicState::closed();
        state.enter(Phase::Open);
        let probing = state.enter(Phase::Probing);
        let before = state.read();
        state.release_probe(probing - 1);
        state.end_streak(probing - 1);
        assert_eq!(state.extend_streak(probing - 1, false), None);
        assert_eq!(state.read(), before);
        state.release_probe(probing);
        assert_eq!(state.read().phase(), Phase::HalfOpen);
    }
}
