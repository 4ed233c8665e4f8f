//! Whether a server is asked at all: closed, open, or half-open.
//!
//! Every attempt asks [`Breaker::admit`] first and reports what became of it on the [`Ticket`] it got. A
//! ticket knows the phase it was given out in, so the answer to a request of before never speaks about
//! now: a late success closes nothing, a late failure prolongs nothing. One that is dropped has learnt
//! nothing, so the place of a probe whose caller left is free at once. Failures in a row count beside the
//! ratio, because a quiet server may never reach the volume at which a ratio speaks. While nothing fails,
//! nobody takes a lock or writes what others read. The price: a success reported in the very instant of a
//! change may be counted after it, one a worker at most.

mod report;
mod word;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use self::report::{Cause, Change, Snapshot, State};

use self::word::{LONGEST_STREAK, Phase, Signal, Word};
use super::settings::BreakerSettings;
use super::tally::Tally;
use crate::clock::Moment;

/// The kinds of a breaker's tally.
const SUCCEEDED: usize = 0;
const FAILED: usize = 1;

/// How far an open time is spread to either side: servers that failed together are not to be probed
/// together.
const JITTER: f64 = 0.1;

/// The longest open time there can be. Beyond it moments come to their end.
const LONGEST_OPEN: Duration = Duration::from_hours(24 * 365 * 100);

/// One server's breaker, shared by all workers.
#[derive(Debug)]
#[repr(align(128))] // so that what stands beside it may be written all the time
pub struct Breaker {
    signal: Arc<Signal>,
    tally: Tally<2>,
    limits: Limits,
    story: Mutex<Story>,
}

/// What it opens on, and for how long.
#[derive(Debug)]
struct Limits {
    enabled: bool,
    in_a_row: u32,
    ratio: f64,
    volume: u64,
    open: Duration,
    open_max: Duration,
    probe: Duration,
}

/// How it came to this. Locked for every change of phase.
#[derive(Debug, Default)]
struct Story {
    since: Moment,
    openings: u64,
    /// Probes that failed since it was closed.
    failed_probes: u32,
    why: Option<Cause>,
}

/// Leave to ask the server, to be handed back with what became of it.
///
/// Dropped, it says that nothing was learnt.
#[derive(Debug)]
#[must_use = "what became of the attempt has to be reported"]
pub struct Ticket {
    generation: u64,
    /// Where a probe's place is given back.
    probe: Option<Arc<Signal>>,
}

/// The server is not to be asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How long until it may be, where that is known: not while a probe is under way, and not while a
    /// person holds it open.
    pub wait: Option<Duration>,
}

impl Ticket {
    fn plain(word: Word) -> Self {
        Self {
            generation: word.generation(),
            probe: None,
        }
    }

    /// Whether this attempt is the one that finds out.
    pub fn is_probe(&self) -> bool {
        self.probe.is_some()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // After a report the phase is another one, and this changes nothing.
        if let Some(signal) = &self.probe {
            signal.vacate(self.generation);
        }
    }
}

impl Breaker {
    /// A closed breaker, for this many workers.
    /// A probe that says nothing for longer than `probe` is not waited for: its client may be the slow one.
    pub fn new(settings: &BreakerSettings, probe: Duration, workers: usize) -> Self {
        let longest_streak = NonZeroU32::new(LONGEST_STREAK).expect("not zero");
        Self {
            signal: Arc::new(Signal::closed()),
            tally: Tally::new(settings.window, workers),
            limits: Limits {
                enabled: settings.enabled,
                in_a_row: settings.consecutive_failures.min(longest_streak).get(),
                ratio: settings.failure_ratio,
                volume: settings.min_requests.get().into(),
                open: settings.open,
                open_max: settings.open_max.min(LONGEST_OPEN),
                probe,
            },
            story: Mutex::default(),
        }
    }

    /// Asks for leave to ask the server. Whoever is first after the open time gets a probe's ticket.
    pub fn admit(&self, now: Moment) -> Result<Ticket, Refused> {
        let word = self.signal.read();
        if word.phase() == Phase::Closed {
            return Ok(Ticket::plain(word));
        }
        self.refusal(now).map_or_else(|| self.probe(now), Err)
    }

    /// How long until it may be asked, where that is known; see [`Refused`].
    pub fn wait(&self, now: Moment) -> Option<Duration> {
        self.refusal(now)?.wait
    }

    /// Whether [`admit`](Self::admit) would give leave, without asking for it.
    pub fn may_admit(&self, now: Moment) -> bool {
        self.refusal(now).is_none()
    }

    /// Whether the server is asked without reserve.
    pub fn is_closed(&self) -> bool {
        self.signal.is_closed()
    }

    /// When it last closed after it had been open.
    pub fn recovered_at(&self) -> Option<Moment> {
        self.signal.recovered()
    }

    /// The server did as it was asked, or said why it would not: it is well.
    pub fn succeeded(&self, ticket: Ticket, worker: usize, now: Moment) -> Option<Change> {
        if ticket.is_probe() {
            return self.recover(ticket, now);
        }
        let word = self.signal.read();
        if word.generation() == ticket.generation {
            self.tally.add(worker, SUCCEEDED, now);
            if word.streak() != 0 {
                self.signal.end_streak(ticket.generation);
            }
        }
        None
    }

    /// The server failed: it answered with a 5xx, too late, or not at all.
    pub fn failed(
        &self,
        ticket: Ticket,
        worker: usize,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<Change> {
        let why = if ticket.is_probe() {
            Cause::FailedProbe
        } else {
            let streak = self.signal.lengthen_streak(ticket.generation)?;
            self.tally.add(worker, FAILED, now);
            self.judge(streak, now)?
        };
        self.open(ticket, why, now, random)
    }

    /// Nothing was learnt, as when the client left: a probe's place is free for the next to come.
    pub fn abandoned(&self, ticket: Ticket) {
        drop(ticket);
    }

    /// Keeps the server from being asked until a person closes it.
    pub fn hold_open(&self, now: Moment) -> Option<Change> {
        let mut story = self.story.lock();
        if self.signal.read().phase() == Phase::Open && self.signal.until().is_none() {
            return None;
        }
        story.opened(Cause::ByHand, now);
        self.signal.open_until(None);
        Some(Change::Opened {
            for_: Duration::MAX,
            why: Cause::ByHand,
        })
    }

    /// Has the server asked again, with all that was counted forgotten, until it fails by itself.
    pub fn close(&self, now: Moment) -> Option<Change> {
        let mut story = self.story.lock();
        if self.signal.read().phase() == Phase::Closed {
            self.tally.forget();
            self.signal.enter(Phase::Closed);
            return None;
        }
        Some(self.shut(&mut story, now))
    }

    /// How it stands.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        let story = self.story.lock();
        let word = self.signal.read();
        let until = self.signal.until();
        let (state, since) = match (word.phase(), until) {
            (Phase::Closed, _) => (State::Closed, story.since),
            (Phase::Open, Some(until)) if until <= now => (State::HalfOpen, until),
            (Phase::Open, until) => {
                let state = State::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                };
                (state, story.since)
            }
            (Phase::HalfOpen | Phase::Probing, _) => (State::HalfOpen, story.since),
        };
        let [succeeded, failed] = self.tally.sum(now);
        Snapshot {
            state,
            since,
            in_a_row: word.streak(),
            openings: story.openings,
            why: story.why,
            succeeded,
            failed,
        }
    }

    /// Why nobody is admitted, if nobody is. Should the phase change between the two readings, the second
    /// is that of a later open phase, and as true.
    fn refusal(&self, now: Moment) -> Option<Refused> {
        match self.signal.read().phase() {
            Phase::Open => match self.signal.until() {
                Some(until) if until <= now => None,
                until => Some(Refused {
                    wait: until.map(|until| until.since(now)),
                }),
            },
            Phase::Probing if self.signal.until().is_some_and(|until| until <= now) => None,
            Phase::Probing => Some(Refused { wait: None }),
            Phase::Closed | Phase::HalfOpen => None,
        }
    }

    /// Takes the probe's place, unless somebody was faster.
    fn probe(&self, now: Moment) -> Result<Ticket, Refused> {
        let mut story = self.story.lock();
        if let Some(refused) = self.refusal(now) {
            return Err(refused);
        }
        let word = self.signal.read();
        if word.phase() == Phase::Closed {
            return Ok(Ticket::plain(word));
        }
        if let (Phase::Open, Some(until)) = (word.phase(), self.signal.until()) {
            story.since = until;
        }
        Ok(Ticket {
            generation: self.signal.probe_until(now.after(self.limits.probe)),
            probe: Some(Arc::clone(&self.signal)),
        })
    }

    /// Whether a failure, the last of so many in a row, is one too many.
    fn judge(&self, streak: u32, now: Moment) -> Option<Cause> {
        if !self.limits.enabled {
            return None;
        }
        if streak >= self.limits.in_a_row {
            return Some(Cause::InARow);
        }
        let [succeeded, failed] = self.tally.sum(now);
        let all = succeeded + failed;
        (all >= self.limits.volume && reaches(failed, all, self.limits.ratio))
            .then_some(Cause::Ratio)
    }

    fn open(
        &self,
        ticket: Ticket,
        why: Cause,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<Change> {
        let mut story = self.story.lock();
        if self.signal.read().generation() != ticket.generation {
            return None;
        }
        story.opened(why, now);
        let for_ = self.limits.open_time(story.failed_probes, random);
        self.signal.open_until(Some(now.after(for_)));
        drop(ticket);
        Some(Change::Opened { for_, why })
    }

    /// The probe succeeded.
    fn recover(&self, ticket: Ticket, now: Moment) -> Option<Change> {
        let mut story = self.story.lock();
        let current = self.signal.read().generation() == ticket.generation;
        let change = current.then(|| self.shut(&mut story, now));
        drop(ticket);
        change
    }

    fn shut(&self, story: &mut Story, now: Moment) -> Change {
        story.since = now;
        story.failed_probes = 0;
        // First, or successes of the new phase would be forgotten with the old.
        self.tally.forget();
        self.signal.recover(now);
        Change::Closed
    }
}

impl Story {
    fn opened(&mut self, why: Cause, now: Moment) {
        self.since = now;
        self.openings += 1;
        self.why = Some(why);
        if why == Cause::FailedProbe {
            self.failed_probes += 1;
        }
    }
}

impl Limits {
    fn open_time(&self, failed_probes: u32, random: &mut fastrand::Rng) -> Duration {
        let doubled = self.open.saturating_mul(1 << failed_probes.min(31));
        let spread = 1.0 - JITTER + 2.0 * JITTER * random.f64();
        doubled.min(self.open_max).mul_f64(spread)
    }
}

/// Whether `part` of `all` is at least `ratio`.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a window are far below 2^52"
)]
fn reaches(part: u64, all: u64, ratio: f64) -> bool {
    part as f64 >= ratio * all as f64
}
