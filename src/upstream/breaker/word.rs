//! A breaker's state in one word, so that everybody sees one state and can change it all at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Moment;

const PHASE_BITS: u32 = 2;
const STREAK_BITS: u32 = 22;
const GENERATION_SHIFT: u32 = PHASE_BITS + STREAK_BITS;

/// The longest row of failures that is told from a longer one.
pub(super) const LONGEST_STREAK: u32 = (1 << STREAK_BITS) - 1;

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

/// Phase, failures in a row, and how often the phase changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
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

    pub(super) fn streak(self) -> u32 {
        let streak = self.0 >> PHASE_BITS & u64::from(LONGEST_STREAK);
        u32::try_from(streak).expect("fewer bits than 32")
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    /// The phase that comes after this one, with no failure in it yet.
    fn next(self, phase: Phase) -> Self {
        Self::new(phase, self.generation() + 1)
    }

    fn with_streak(self, streak: u32) -> Self {
        Self(Self::new(self.phase(), self.generation()).0 | u64::from(streak) << PHASE_BITS)
    }
}

/// What everybody reads of a breaker, on cache lines of its own: while nothing fails, nobody writes them.
///
/// Phases are changed with the breaker's story locked. Two things happen without: a row of failures grows
/// and ends, and a probe gives up its place. Both only ever change the word of their own generation, so
/// neither can undo a change of phase.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Signal {
    word: AtomicU64,
    /// When the open phase ends, or a probe is no longer waited for.
    until: AtomicU64,
    /// When it was last closed after it had been open.
    recovered: AtomicU64,
    /// Whether the server is shut off as an outlier. Written only with the story locked.
    outlier: AtomicBool,
}

impl Signal {
    pub(super) fn closed() -> Self {
        Self {
            word: AtomicU64::new(Word::new(Phase::Closed, 0).0),
            until: AtomicU64::new(NEVER),
            recovered: AtomicU64::new(NEVER),
            outlier: AtomicBool::new(false),
        }
    }

    pub(super) fn read(&self) -> Word {
        // Whoever sees a phase also sees until when it lasts.
        Word(self.word.load(Ordering::Acquire))
    }

    pub(super) fn is_closed(&self) -> bool {
        Word(self.word.load(Ordering::Relaxed)).phase() == Phase::Closed
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

    /// Sets whether the server is shut off as an outlier. Only with the story locked.
    pub(super) fn set_outlier(&self, outlier: bool) {
        self.outlier.store(outlier, Ordering::Relaxed);
    }

    /// Enters another phase, and with it another generation, which it returns. Only with the story locked.
    pub(super) fn enter(&self, phase: Phase) -> u64 {
        let next = self.read().next(phase);
        self.word.store(next.0, Ordering::Release);
        next.generation()
    }

    /// Enters the open phase, which lasts until then. Only with the story locked.
    pub(super) fn open_until(&self, until: Option<Moment>) {
        self.enter_until(Phase::Open, until);
    }

    /// Enters the phase of a probe, which is waited for until then. Only with the story locked.
    pub(super) fn probe_until(&self, until: Moment) -> u64 {
        self.enter_until(Phase::Probing, Some(until))
    }

    fn enter_until(&self, phase: Phase, until: Option<Moment>) -> u64 {
        let until = until.map_or(NEVER, |until| until.as_nanos().min(NEVER - 1));
        self.until.store(until, Ordering::Relaxed);
        self.enter(phase)
    }

    /// Enters the closed phase as one that was open before. Only with the story locked.
    pub(super) fn recover(&self, now: Moment) {
        let now = now.as_nanos().min(NEVER - 1);
        self.recovered.store(now, Ordering::Relaxed);
        self.enter(Phase::Closed);
    }

    /// One failure more in a row, in this generation; how many that makes, or `None` if it is past.
    pub(super) fn lengthen_streak(&self, generation: u64) -> Option<u32> {
        self.change(generation, |word| {
            Some(word.with_streak(LONGEST_STREAK.min(word.streak() + 1)))
        })
        .map(Word::streak)
    }

    /// A success: the row of failures is at its end, if the generation is not past.
    pub(super) fn end_streak(&self, generation: u64) {
        self.change(generation, |word| {
            (word.streak() != 0).then(|| word.with_streak(0))
        });
    }

    /// A probe came to nothing: the next to come is one, unless the phase is past.
    pub(super) fn vacate(&self, generation: u64) {
        self.change(generation, |word| {
            (word.phase() == Phase::Probing).then(|| Word::new(Phase::HalfOpen, generation))
        });
    }

    /// Changes the word within a generation; the word it then is, or `None` if it was left as it was.
    fn change(&self, generation: u64, change: impl Fn(Word) -> Option<Word>) -> Option<Word> {
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
                Err(other) => word = Word(other),
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
                for streak in [0, 1, LONGEST_STREAK] {
                    let word = Word::new(phase, generation).with_streak(streak);
                    assert_eq!(word.phase(), phase);
                    assert_eq!(word.streak(), streak);
                    assert_eq!(word.generation(), generation);
                }
            }
        }
    }

    #[test]
    fn a_row_of_failures_stops_growing_before_it_changes_the_generation() {
        let signal = Signal::closed();
        let full = signal.read().with_streak(LONGEST_STREAK);
        signal.word.store(full.0, Ordering::Relaxed);
        assert_eq!(signal.lengthen_streak(0), Some(LONGEST_STREAK));
        assert_eq!(signal.read(), full);
    }

    #[test]
    fn nothing_of_a_past_generation_changes_the_word() {
        let signal = Signal::closed();
        signal.enter(Phase::Open);
        let probing = signal.enter(Phase::Probing);
        let before = signal.read();
        signal.vacate(probing - 1);
        signal.end_streak(probing - 1);
        assert_eq!(signal.lengthen_streak(probing - 1), None);
        assert_eq!(signal.read(), before);
        signal.vacate(probing);
        assert_eq!(signal.read().phase(), Phase::HalfOpen);
    }
}
