//! State of a breaker in one atomic word, so that all workers see one state and change it in one step.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Moment;

const PHASE_BITS: u32 = 2;
const COMPARED_BITS: u32 = 1;
const LENGTH_SHIFT: u32 = PHASE_BITS + COMPARED_BITS;
const LENGTH_BITS: u32 = 21;
const GENERATION_SHIFT: u32 = LENGTH_SHIFT + LENGTH_BITS;

/// Upper bound of [`Row::length`]. Longer rows have this length.
pub(super) const LONGEST_ROW: u32 = (1 << LENGTH_BITS) - 1;

/// A moment that never comes.
const NEVER: u64 = u64::MAX;

/// Whether a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is.
    Closed,
    /// Not before its time.
    Open,
    /// By the next to come.
    HalfOpen,
    /// By one, whose answer all others await.
    Probing,
}

/// A row of failures: consecutive results that are failures of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) length: u32,
    /// Whether these failures count only in comparison with other servers.
    pub(super) is_compared: bool,
}

impl Row {
    /// Returns the row after another failure. A failure of the other kind begins a new row.
    fn after(self, is_compared: bool) -> Self {
        let length = if self.is_compared == is_compared {
            LONGEST_ROW.min(self.length + 1)
        } else {
            1
        };
        Self {
            length,
            is_compared,
        }
    }
}

/// Phase, row of failures, and number of phase changes.
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

    pub(super) fn row(self) -> Row {
        let length = self.0 >> LENGTH_SHIFT & u64::from(LONGEST_ROW);
        Row {
            length: u32::try_from(length).expect("fewer bits than 32"),
            is_compared: self.0 >> PHASE_BITS & 1 == 1,
        }
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    /// The phase that comes after this one, with no failure in it yet.
    fn next(self, phase: Phase) -> Self {
        Self::new(phase, self.generation() + 1)
    }

    fn with_row(self, row: Row) -> Self {
        let length = u64::from(row.length) << LENGTH_SHIFT;
        let is_compared = u64::from(row.is_compared) << PHASE_BITS;
        Self(Self::new(self.phase(), self.generation()).0 | length | is_compared)
    }
}

/// What everybody reads of a breaker, on cache lines of its own: while nothing fails, nobody writes them.
///
/// Phases are changed with the breaker's history locked. Two things happen without: a row of failures grows
/// and ends, and a probe gives up its place. Both only ever change the word of their own generation, so
/// neither can undo a change of phase.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct AtomicState {
    word: AtomicU64,
    /// When the open phase ends, or a probe is no longer waited for.
    until: AtomicU64,
    /// When it was last closed after it had been open.
    recovered: AtomicU64,
    /// Whether the server is shut off as an outlier. Written only with the history locked.
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
        // Whoever sees a phase also sees until when it lasts.
        PackedState(self.word.load(Ordering::Acquire))
    }

    #[cfg(test)]
    pub(super) fn is_closed(&self) -> bool {
        PackedState(self.word.load(Ordering::Relaxed)).phase() == Phase::Closed
    }

    /// When the open phase ends, or a probe is no longer waited for; `None` where only a person ends it.
    pub(super) fn until(&self) -> Option<Moment> {
        moment(&self.until)
    }

    pub(super) fn recovered(&self) -> Option<Moment> {
        moment(&self.recovered)
    }

    /// Whether the server is shut off as an outlier.
    pub(super) fn is_outlier(&self) -> bool {
        self.outlier.load(Ordering::Relaxed)
    }

    /// Sets whether the server is shut off as an outlier. Only with the history locked.
    pub(super) fn set_outlier(&self, outlier: bool) {
        self.outlier.store(outlier, Ordering::Relaxed);
    }

    /// Enters another phase, and with it another generation, which it returns. Only with the history locked.
    pub(super) fn enter(&self, phase: Phase) -> u64 {
        let next = self.read().next(phase);
        self.word.store(next.0, Ordering::Release);
        next.generation()
    }

    /// Enters the open phase, which lasts until then. Only with the history locked.
    pub(super) fn open_until(&self, until: Option<Moment>) {
        self.enter_until(Phase::Open, until);
    }

    /// Enters the phase of a probe, which is waited for until then. Only with the history locked.
    pub(super) fn probe_until(&self, until: Moment) -> u64 {
        self.enter_until(Phase::Probing, Some(until))
    }

    fn enter_until(&self, phase: Phase, until: Option<Moment>) -> u64 {
        let until = until.map_or(NEVER, |until| until.as_nanos().min(NEVER - 1));
        self.until.store(until, Ordering::Relaxed);
        self.enter(phase)
    }

    /// Enters the closed phase as one that was open before. Only with the history locked.
    pub(super) fn recover(&self, now: Moment) {
        let now = now.as_nanos().min(NEVER - 1);
        self.recovered.store(now, Ordering::Relaxed);
        self.enter(Phase::Closed);
    }

    /// Adds a failure to the row and returns the row, or `None` if the generation is past.
    pub(super) fn lengthen_row(&self, generation: u64, is_compared: bool) -> Option<Row> {
        self.change(generation, |word| {
            Some(word.with_row(word.row().after(is_compared)))
        })
        .map(PackedState::row)
    }

    /// Ends the row of failures, unless the generation is past.
    pub(super) fn end_row(&self, generation: u64) {
        self.change(generation, |word| {
            (word.row().length != 0).then(|| word.with_row(Row::default()))
        });
    }

    /// A probe came to nothing: the next to come is one, unless the phase is past.
    pub(super) fn vacate(&self, generation: u64) {
        self.change(generation, |word| {
            (word.phase() == Phase::Probing).then(|| PackedState::new(Phase::HalfOpen, generation))
        });
    }

    /// Changes the word within a generation; the word it then is, or `None` if it was left as it was.
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
    fn the_parts_of_a_word_do_not_touch_each_other() {
        for phase in [Phase::Closed, Phase::Open, Phase::HalfOpen, Phase::Probing] {
            for generation in [0, 1, (1 << 40) - 1] {
                for (length, is_compared) in [(0, false), (1, true), (LONGEST_ROW, false)] {
                    let row = Row {
                        length,
                        is_compared,
                    };
                    let word = PackedState::new(phase, generation).with_row(row);
                    assert_eq!(word.phase(), phase);
                    assert_eq!(word.row(), row);
                    assert_eq!(word.generation(), generation);
                }
            }
        }
    }

    #[test]
    fn a_row_of_failures_stops_growing_before_it_changes_the_generation() {
        let signal = AtomicState::closed();
        let longest = Row {
            length: LONGEST_ROW,
            is_compared: true,
        };
        let full = signal.read().with_row(longest);
        signal.word.store(full.0, Ordering::Relaxed);
        assert_eq!(signal.lengthen_row(0, true), Some(longest));
        assert_eq!(signal.read(), full);
    }

    #[test]
    fn a_failure_of_the_other_kind_begins_a_new_row() {
        let signal = AtomicState::closed();
        let lengthen = |is_compared| signal.lengthen_row(0, is_compared).expect("current").length;
        let lengths = [true, true, false, false, true].map(lengthen);
        assert_eq!(lengths, [1, 2, 1, 2, 1]);
        signal.end_row(0);
        assert_eq!(signal.read().row(), Row::default());
    }

    #[test]
    fn nothing_of_a_past_generation_changes_the_word() {
        let signal = AtomicState::closed();
        signal.enter(Phase::Open);
        let probing = signal.enter(Phase::Probing);
        let before = signal.read();
        signal.vacate(probing - 1);
        signal.end_row(probing - 1);
        assert_eq!(signal.lengthen_row(probing - 1, false), None);
        assert_eq!(signal.read(), before);
        signal.vacate(probing);
        assert_eq!(signal.read().phase(), Phase::HalfOpen);
    }
}
