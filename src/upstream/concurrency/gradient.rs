//! The limit as a function of what was seen: no clock, no lock, no sharing.
//!
//! It moves in rounds. At the end of each, latency is compared with the baseline, which is latency at no
//! more than half of the limit: `limit × min(1, 1.25 × baseline / latency) + √limit`, in the manner of
//! Netflix's Gradient2. That one takes the long-term average for its baseline, which a lasting overload
//! drags along; so every ten seconds the limit is halved for a round to sound what latency is without a
//! queue, as Envoy does (which goes down to three). Where that is another latency than before, the next
//! sounding follows soon, until two agree. Latencies are averaged by their logarithms: one answer of a
//! minute among a hundred of 10 ms makes 9 % more that way, where the plain mean would be 60 times as much.

use std::mem;
use std::time::Duration;

use super::super::settings::ConcurrencySettings;
use super::Outcome;
use crate::clock::Moment;

/// A round has this many answers over this long at least,
const ANSWERS: u32 = 100;
const ROUND: Duration = Duration::from_millis(100);

/// or this many over this long, where there are few.
const FEW_ANSWERS: u32 = 10;
const LONG_ROUND: Duration = Duration::from_secs(2);

/// A round with more than this many has the next one note every second answer only, and so on.
const PLENTY: u32 = 1_000;

/// After a change a round waits for this many latencies, until what it sees is due to the change;
const SETTLING: f64 = 2.0;

/// but no longer than this, however slow the upstream is.
const SETTLED: Duration = Duration::from_secs(2);

/// Latency may be this many times the baseline before the limit shrinks.
const TOLERANCE: f64 = 1.25;

/// A request that was dropped counts as if it had taken this many baselines: one in ten may be, whatever
/// the reason, before the limit shrinks.
const DROPPED: f64 = 8.0;

/// Every round leaves this part of the limit at least.
const STEEPEST: f64 = 0.7;

/// The baseline is sounded this often,
const SOUNDING: Duration = Duration::from_secs(10);

/// and this soon after the first round, and after a sounding that found it beyond the tolerance.
const SOUNDING_AGAIN: Duration = Duration::from_secs(1);

/// How far a round that is faster than the baseline moves it: not all the way, or it would become the
/// luckiest round of all.
const FASTER: f64 = 0.2;

/// The limit, and what it is worked out from.
#[derive(Debug)]
pub(super) struct Gradient {
    min: f64,
    max: f64,
    limit: f64,
    /// The logarithm of latency, in nanoseconds, without a queue.
    baseline: Option<f64>,
    round: Round,
    /// Whether this round is at half of the limit, to find the baseline.
    sounding: bool,
    next_sounding: Moment,
    /// Of so many answers one was noted in this round: a power of two, less one.
    thinning: u64,
}

/// What was seen since the limit last changed.
#[derive(Debug, Default)]
struct Round {
    begin: Moment,
    /// The sum of the logarithms of latencies.
    logs: f64,
    responded: u32,
    dropped: u32,
    /// The most in flight.
    peak: u32,
}

impl Gradient {
    pub(super) fn new(settings: ConcurrencySettings) -> Self {
        let [min, max, initial] =
            [settings.min, settings.max, settings.initial].map(|count| f64::from(count.get()));
        Self {
            min,
            max: max.max(min),
            limit: initial.clamp(min, max.max(min)),
            baseline: None,
            round: Round::default(),
            sounding: false,
            next_sounding: Moment::default(),
            thinning: 0,
        }
    }

    /// The limit that is in force.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between min and max, which are u32"
    )]
    pub(super) fn limit(&self) -> u32 {
        let part = if self.sounding { 0.5 } else { 1.0 };
        (self.limit * part).max(self.min) as u32
    }

    /// Which answers are enough to note, of a clock's nanoseconds those without any of these bits.
    pub(super) fn thinning(&self) -> u64 {
        self.thinning
    }

    /// Takes note of a request that left when so many were in flight; whether the limit may be another.
    pub(super) fn note(&mut self, outcome: Outcome, in_flight: u32, now: Moment) -> bool {
        if now < self.round.begin {
            return false;
        }
        self.round.note(outcome, in_flight);
        let over = self.round.is_over(now);
        if over {
            self.turn(now);
        }
        over
    }

    /// Ends a round and begins the next.
    fn turn(&mut self, now: Moment) {
        let round = mem::take(&mut self.round);
        self.thin(round.responded);
        let had_room = f64::from(round.peak) < self.limit / 2.0;
        if self.sounding || had_room {
            self.sound(&round, now);
        } else {
            self.adapt(&round, now);
        }
        self.sounding = !self.sounding && !had_room && self.next_sounding <= now;
        let latency = round.mean().or(self.baseline).map_or(0.0, f64::exp);
        let settling = Duration::try_from_secs_f64(SETTLING * latency / 1e9).unwrap_or(SETTLED);
        self.round.begin = now.after(settling.min(SETTLED));
    }

    /// Has as many answers noted as a round needs, and not many more.
    fn thin(&mut self, responded: u32) {
        if responded > PLENTY {
            self.thinning = self.thinning << 1 | 1;
        } else if responded < PLENTY / 4 {
            self.thinning >>= 1;
        }
    }

    /// Takes the baseline from a round that left room.
    fn sound(&mut self, round: &Round, now: Moment) {
        let Some(mean) = round.mean() else {
            return;
        };
        let before = self.baseline.unwrap_or(mean);
        // A round that merely had room may have had few answers; there will be others like it.
        let weight = if self.sounding {
            1.0
        } else {
            (f64::from(round.responded) / f64::from(ANSWERS)).min(1.0)
        };
        self.baseline = Some(before + weight * (mean - before));
        let again = if (mean - before).abs() > TOLERANCE.ln() {
            SOUNDING_AGAIN
        } else {
            SOUNDING
        };
        self.next_sounding = now.after(again);
    }

    /// Takes the limit from a round that used it, by half at least: one nobody needs is left as it is.
    fn adapt(&mut self, round: &Round, now: Moment) {
        if let Some(mean) = round.mean() {
            let baseline = self.baseline.get_or_insert_with(|| {
                self.next_sounding = now.after(SOUNDING_AGAIN);
                mean
            });
            *baseline += FASTER * (mean - *baseline).min(0.0);
        }
        let gradient = (TOLERANCE.ln() - round.rise(self.baseline)).exp();
        let headroom = self.limit.sqrt() * round.answered_part();
        let limit = self.limit * gradient.min(1.0) + headroom;
        self.limit = limit.max(self.limit * STEEPEST).clamp(self.min, self.max);
    }
}

impl Round {
    fn note(&mut self, outcome: Outcome, in_flight: u32) {
        self.peak = self.peak.max(in_flight);
        match outcome {
            Outcome::Responded { latency } => {
                self.responded += 1;
                self.logs += (latency.as_secs_f64() * 1e9).max(1.0).ln();
            }
            Outcome::Dropped => self.dropped += 1,
        }
    }

    fn is_over(&self, now: Moment) -> bool {
        let all = self.responded + self.dropped;
        let lasted = now.since(self.begin);
        (all >= ANSWERS && lasted >= ROUND) || (all >= FEW_ANSWERS && lasted >= LONG_ROUND)
    }

    /// The logarithm of the mean latency, if anything was responded.
    fn mean(&self) -> Option<f64> {
        (self.responded != 0).then(|| self.logs / f64::from(self.responded))
    }

    fn answered_part(&self) -> f64 {
        f64::from(self.responded) / f64::from(self.responded + self.dropped).max(1.0)
    }

    /// How far latency is above the baseline, as a logarithm.
    fn rise(&self, baseline: Option<f64>) -> f64 {
        let responded = match (self.mean(), baseline) {
            (Some(mean), Some(baseline)) => (mean - baseline) * f64::from(self.responded),
            _ => 0.0,
        };
        let dropped = DROPPED.ln() * f64::from(self.dropped);
        (responded + dropped) / f64::from(self.responded + self.dropped).max(1.0)
    }
}
