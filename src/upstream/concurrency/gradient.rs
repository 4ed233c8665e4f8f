//! Computes the concurrency limit of an upstream from latencies. The caller provides the time and the lock.
//!
//! The computation works in rounds of at least 100 ms, or 2 s with little traffic. The baseline is the latency while at
//! most half of the limit is in flight. At the end of a round, the new limit follows from the mean latency: `limit ×
//! min(1, 1.25 × baseline / latency) + √limit`.
//!
//! This formula is that of Gradient2 in Netflix's concurrency-limits. The baseline differs: Gradient2 uses the
//! long-term average, which rises during a long overload. Here the limit is halved for one round every 10 s, and the
//! latency of this round, without a queue, becomes the baseline. Envoy also lowers the limit to measure the baseline,
//! but to three requests. If the measured baseline differs from the previous one, the next measurement follows after
//! 1 s, until two measurements agree.
//!
//! Latencies are averaged by their logarithms (geometric mean). One response of a minute among a hundred responses of
//! 10 ms then raises the mean by 9 %. The arithmetic mean would rise to about 600 ms.

use std::mem;
use std::time::Duration;

use super::super::settings::ConcurrencySettings;
use super::LoadSample;
use crate::clock::Moment;

/// A round ends when it has this many results and has lasted for [`ROUND`].
const MIN_RESULTS: u32 = 100;
const ROUND: Duration = Duration::from_millis(100);

/// A round with fewer than [`MIN_RESULTS`] results ends when it has this many results and has lasted for
/// [`LONG_ROUND`].
const MIN_RESULTS_LONG: u32 = 10;
const LONG_ROUND: Duration = Duration::from_secs(2);

/// If a round has recorded more responses than this, the sampling rate is halved for the next round.
const MAX_RESPONSES: u32 = 1_000;

/// Pause between two rounds, as a multiple of the mean latency. Most requests that were sent under the old concurrency
/// limit end during the pause, so they do not affect the next round.
const SETTLING: f64 = 2.0;

/// Maximum pause between two rounds.
const MAX_SETTLING: Duration = Duration::from_secs(2);

/// The concurrency limit shrinks if the mean latency is more than this many times the baseline latency.
const TOLERANCE: f64 = 1.25;

/// A dropped request counts like a response with a latency of this many times the baseline latency. If one request in
/// ten is dropped and the others have the baseline latency, the mean latency is 8^0.1 = 1.23 times the baseline. This
/// is slightly below [`TOLERANCE`], so the concurrency limit shrinks if more requests are dropped.
const DROPPED_LATENCY: f64 = 8.0;

/// One round reduces the concurrency limit to no less than this fraction of its previous value.
const MIN_FACTOR: f64 = 0.7;

/// How long after a measurement of the baseline latency the next measurement follows.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

/// After the first round, and after a measurement of the baseline latency that differs from the previous one, the next
/// measurement follows after this time.
const REMEASURE_DELAY: Duration = Duration::from_secs(1);

/// A round with a mean latency below the baseline latency lowers the baseline by this fraction of the difference. If
/// the fraction were 1, the baseline would become the minimum of all rounds.
const FASTER: f64 = 0.2;

/// The concurrency limit and the measurements from which it is computed.
#[derive(Debug)]
pub(super) struct Gradient {
    min: f64,
    max: f64,
    limit: f64,
    /// Natural logarithm of the latency without a queue, in nanoseconds. `None` before the first round has ended.
    baseline: Option<f64>,
    round: Round,
    /// Whether this round measures the baseline latency. The concurrency limit is halved during such a round.
    is_measuring: bool,
    next_measurement: Moment,
    /// Bit mask that selects one response in `sampling_mask + 1`. The mask is a power of two minus one.
    sampling_mask: u64,
}

/// Results of the requests in the current round.
#[derive(Debug, Default)]
struct Round {
    begin: Moment,
    /// Sum of the natural logarithms of the latencies in nanoseconds.
    log_sum: f64,
    responded: u32,
    dropped: u32,
    /// Highest number of requests in flight during the round.
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
            sampling_mask: 0,
        }
    }

    /// Returns the current concurrency limit, in requests in flight. It is halved while the baseline latency is
    /// measured.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the limit is between min and max, which are u32"
    )]
    pub(super) fn limit(&self) -> u32 {
        let part = if self.is_measuring { 0.5 } else { 1.0 };
        (self.limit * part).max(self.min) as u32
    }

    /// Returns the bit mask that selects the sampled responses. The caller records a response if none of these bits is
    /// set in the time at which the request ended, in nanoseconds.
    pub(super) fn sampling_mask(&self) -> u64 {
        self.sampling_mask
    }

    /// Records the result of a request that ended with `in_flight` requests in flight. Returns whether the round ended.
    /// If it ended, the caller must read the limit and the sampling mask again.
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

    /// Ends the round: updates the baseline latency or the concurrency limit, and starts the next round after a pause.
    fn end_round(&mut self, now: Moment) {
        let round = mem::take(&mut self.round);
        self.adjust_sampling(round.responded);
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

    /// Adjusts the sampling so that a round records 250 to 1,000 responses, if there are enough.
    fn adjust_sampling(&mut self, responded: u32) {
        if responded > MAX_RESPONSES {
            self.sampling_mask = self.sampling_mask << 1 | 1;
        } else if responded < MAX_RESPONSES / 4 {
            self.sampling_mask >>= 1;
        }
    }

    /// Updates the baseline latency from a round with at most half of the concurrency limit in flight.
    fn update_baseline(&mut self, round: &Round, now: Moment) {
        let Some(mean) = round.mean_log() else {
            return;
        };
        let before = self.baseline.unwrap_or(mean);
        // Only a round that measures the baseline has full weight. Other rounds can have few responses, so their weight
        // is proportional to the number of responses.
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

    /// Updates the concurrency limit from a round in which at least half of the limit was in flight. If fewer requests
    /// are in flight, their latency does not show whether the limit is too high or too low.
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

    /// Returns the natural logarithm of the geometric mean latency in nanoseconds, or `None` if there are no responses.
    fn mean_log(&self) -> Option<f64> {
        (self.responded != 0).then(|| self.log_sum / f64::from(self.responded))
    }

    fn response_ratio(&self) -> f64 {
        f64::from(self.responded) / f64::from(self.responded + self.dropped).max(1.0)
    }

    /// Returns the natural logarithm of the ratio of the mean latency to the baseline latency. Dropped requests are
    /// included as [`DROPPED_LATENCY`].
    fn rise(&self, baseline: Option<f64>) -> f64 {
        let responded = match (self.mean_log(), baseline) {
            (Some(mean), Some(baseline)) => (mean - baseline) * f64::from(self.responded),
            _ => 0.0,
        };
        let dropped = DROPPED_LATENCY.ln() * f64::from(self.dropped);
        (responded + dropped) / f64::from(self.responded + self.dropped).max(1.0)
    }
}
