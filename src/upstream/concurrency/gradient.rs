//! Computes the concurrency limit of an upstream from latencies.
//!
//! A round lasts at least 100 ms, or 2 s with little traffic. The baseline is the latency while at most half of the
//! limit is in flight. After a round the limit is `limit × min(1, 1.25 × baseline / latency) + √limit`, as in Gradient2
//! of Netflix's concurrency-limits. Gradient2's baseline is the long-term average, which rises during a long overload.
//! Here the limit is halved for one round every 10 s, and the latency of this round, without a queue, becomes the
//! baseline. If it differs from the previous one, the next measurement follows after 1 s.
//!
//! Latencies are averaged by their logarithms (geometric mean): one response of a minute among a hundred of 10 ms
//! raises the mean by 9 %, and the arithmetic mean to about 600 ms.

use std::mem;
use std::time::Duration;

use super::super::settings::ConcurrencySettings;
use super::LoadSample;
use crate::clock::Moment;

const MIN_RESULTS: u32 = 100;
const ROUND: Duration = Duration::from_millis(100);

/// Results that end a round after [`LONG_ROUND`].
const MIN_RESULTS_LONG: u32 = 10;
const LONG_ROUND: Duration = Duration::from_secs(2);

/// Pause between two rounds, as a multiple of the mean latency, so that most requests under the old limit have ended.
const SETTLING: f64 = 2.0;

const MAX_SETTLING: Duration = Duration::from_secs(2);

/// The limit shrinks above this ratio of mean to baseline latency.
const TOLERANCE: f64 = 1.25;

/// A dropped request counts like a response with this multiple of the baseline latency. With one dropped request in ten
/// the mean is 8^0.1 = 1.23 times the baseline, slightly below [`TOLERANCE`].
const DROPPED_LATENCY: f64 = 8.0;

/// Bound on what one round takes from the limit.
const MIN_FACTOR: f64 = 0.7;

const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

/// The same after the first round, and after a measurement that differs from the previous one.
const REMEASURE_DELAY: Duration = Duration::from_secs(1);

/// A round below the baseline latency lowers the baseline by this part of the difference. With 1 the baseline would be
/// the minimum of all rounds.
const FASTER: f64 = 0.2;

#[derive(Debug)]
pub(super) struct Gradient {
    min: f64,
    max: f64,
    limit: f64,
    /// Natural logarithm of nanoseconds. `None` before the first round has ended.
    baseline: Option<f64>,
    round: Round,
    /// The limit is halved during such a round.
    is_measuring: bool,
    next_measurement: Moment,
}

#[derive(Debug, Default)]
struct Round {
    begin: Moment,
    /// Natural logarithms of nanoseconds.
    log_sum: f64,
    responded: u32,
    dropped: u32,
    /// Most requests in flight.
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
            is_measuring: false,
            next_measurement: Moment::default(),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the limit is between min and max, which are u32"
    )]
    pub(super) fn limit(&self) -> u32 {
        let part = if self.is_measuring { 0.5 } else { 1.0 };
        (self.limit * part).max(self.min) as u32
    }

    /// Returns whether the round ended, which can change the limit.
    pub(super) fn record(&mut self, sample: LoadSample, in_flight: u32, now: Moment) -> bool {
        if now < self.round.begin {
            return false;
        }
        self.round.record(sample, in_flight);
        let over = self.round.is_over(now);
        if over {
            self.end_round(now);
        }
        over
    }

    fn end_round(&mut self, now: Moment) {
        let round = mem::take(&mut self.round);
        let is_underused = f64::from(round.peak) < self.limit / 2.0;
        if self.is_measuring || is_underused {
            self.update_baseline(&round, now);
        } else {
            self.update_limit(&round, now);
        }
        self.is_measuring = !self.is_measuring && !is_underused && self.next_measurement <= now;
        let latency = round.mean_log().or(self.baseline).map_or(0.0, f64::exp);
        let settling =
            Duration::try_from_secs_f64(SETTLING * latency / 1e9).unwrap_or(MAX_SETTLING);
        self.round.begin = now.after(settling.min(MAX_SETTLING));
    }

    fn update_baseline(&mut self, round: &Round, now: Moment) {
        let Some(mean) = round.mean_log() else {
            return;
        };
        let before = self.baseline.unwrap_or(mean);
        // Other rounds can have few responses, so they have less weight.
        let weight = if self.is_measuring {
            1.0
        } else {
            (f64::from(round.responded) / f64::from(MIN_RESULTS)).min(1.0)
        };
        self.baseline = Some(before + weight * (mean - before));
        let again = if (mean - before).abs() > TOLERANCE.ln() {
            REMEASURE_DELAY
        } else {
            MEASURE_INTERVAL
        };
        self.next_measurement = now.after(again);
    }

    /// With less than half of the limit in flight, the latency does not show whether the limit is too high or too low.
    fn update_limit(&mut self, round: &Round, now: Moment) {
        if let Some(mean) = round.mean_log() {
            let baseline = self.baseline.get_or_insert_with(|| {
                self.next_measurement = now.after(REMEASURE_DELAY);
                mean
            });
            *baseline += FASTER * (mean - *baseline).min(0.0);
        }
        let gradient = (TOLERANCE.ln() - round.rise(self.baseline)).exp();
        let headroom = self.limit.sqrt() * round.response_ratio();
        let limit = self.limit * gradient.min(1.0) + headroom;
        self.limit = limit.max(self.limit * MIN_FACTOR).clamp(self.min, self.max);
    }
}

impl Round {
    fn record(&mut self, sample: LoadSample, in_flight: u32) {
        self.peak = self.peak.max(in_flight);
        match sample {
            LoadSample::Responded { latency } => {
                self.responded += 1;
                self.log_sum += (latency.as_secs_f64() * 1e9).max(1.0).ln();
            }
            LoadSample::Dropped => self.dropped += 1,
        }
    }

    fn is_over(&self, now: Moment) -> bool {
        let all = self.responded + self.dropped;
        let lasted = now.since(self.begin);
        (all >= MIN_RESULTS && lasted >= ROUND) || (all >= MIN_RESULTS_LONG && lasted >= LONG_ROUND)
    }

    /// In nanoseconds.
    fn mean_log(&self) -> Option<f64> {
        (self.responded != 0).then(|| self.log_sum / f64::from(self.responded))
    }

    fn response_ratio(&self) -> f64 {
        f64::from(self.responded) / f64::from(self.responded + self.dropped).max(1.0)
    }

    /// Logarithm of the ratio of mean to baseline latency, with dropped requests as [`DROPPED_LATENCY`].
    fn rise(&self, baseline: Option<f64>) -> f64 {
        let responded = match (self.mean_log(), baseline) {
            (Some(mean), Some(baseline)) => (mean - baseline) * f64::from(self.responded),
            _ => 0.0,
        };
        let dropped = DROPPED_LATENCY.ln() * f64::from(self.dropped);
        (responded + dropped) / f64::from(self.responded + self.dropped).max(1.0)
    }
}
