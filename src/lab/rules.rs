//! Judges a trace by the rules of the lab.
//!
//! A rule that needs the absence of requests, such as "does not retry 400", passes only if the client has ended.
//! Otherwise a retry can still follow.

mod backoff;
mod delays;
mod jitter;
mod keys;
mod load;
mod retrying;
mod waiting;

use std::fmt::Display;
use std::time::{Duration, SystemTime};

use super::operation::{Operation, group};
use super::outcome::Outcome;
use super::stated::StatedTimes;
use super::verdict::{Evidence, Judgement, MAX_EVIDENCE, Rule, RuleVerdict, Verdict};
use crate::scenario::trace::{Attempt, Trace};

/// Least time by which a retry must precede the stated time to be early.
const MIN_TOLERANCE: Duration = Duration::from_millis(50);

/// Maximum delay of the gateway's timers that counts as tolerance. A slower gateway does not excuse a client.
const MAX_NOISE: Duration = Duration::from_millis(200);

/// `has_ended` means that the client sends no further requests.
pub(crate) fn judge(trace: &Trace, has_ended: bool) -> Judgement {
    let grouping = group(&trace.attempts, trace.started);
    let trace = GroupedTrace::new(trace, &grouping.operations, has_ended);
    // The operations that remain are not a fair sample if most requests belong to none.
    let is_judged = grouping.unattributed.len() * 2 <= trace.attempts.len();
    let rules = Rule::ALL.map(|rule| {
        let finding = if is_judged {
            trace.judge(rule)
        } else {
            Finding::not_enough_data(format!(
                "{} of {} requests belong to no single operation, because identical requests were in flight at the same \
                 time: use different paths, bodies or keys, or the header X-Tidegate-Test.",
                grouping.unattributed.len(),
                trace.attempts.len(),
            ))
        };
        RuleVerdict {
            rule,
            verdict: finding.verdict,
            summary: finding.summary,
            evidence: finding.evidence,
        }
    });
    Judgement {
        rules: rules.into(),
        tolerance: trace.tolerance,
        operations: grouping.operations,
        unattributed: grouping.unattributed,
    }
}

struct GroupedTrace<'a> {
    started: SystemTime,
    attempts: &'a [Attempt],
    operations: &'a [Operation],
    /// In the order of the operations.
    retries: Vec<ObservedRetry<'a>>,
    tolerance: Duration,
    /// At most [`MAX_NOISE`].
    noise: Duration,
    has_ended: bool,
}

/// Attempt that follows a failed attempt of the same operation.
struct ObservedRetry<'a> {
    /// Index in `operations`.
    operation: usize,
    /// Number of earlier retries of the operation.
    number: usize,
    /// Index of `next` in the trace.
    index: usize,
    failed: &'a Attempt,
    next: &'a Attempt,
    outcome: Outcome,
    stated: StatedTimes,
}

struct Finding {
    verdict: Verdict,
    summary: String,
    evidence: Vec<Evidence>,
}

impl<'a> GroupedTrace<'a> {
    fn new(trace: &'a Trace, operations: &'a [Operation], has_ended: bool) -> Self {
        let noise = trace.timer_delay.min(MAX_NOISE);
        let retries = operations
            .iter()
            .enumerate()
            .flat_map(|(number, operation)| {
                let pairs = operation.attempts.windows(2).enumerate();
                pairs.map(move |pair| ObservedRetry::new(trace, number, pair))
            });
        Self {
            started: trace.started,
            attempts: &trace.attempts,
            operations,
            retries: retries.collect(),
            tolerance: noise.max(MIN_TOLERANCE),
            noise,
            has_ended: has_ended && trace.untraced == 0,
        }
    }

    fn judge(&self, rule: Rule) -> Finding {
        match rule {
            Rule::RetryAfter => waiting::retry_after(self),
            Rule::LongRetryAfter => waiting::long_retry_after(self),
            Rule::Retries => retrying::retries(self),
            Rule::Retryable => retrying::retryable_only(self),
            Rule::FinalResponse => retrying::final_response(self),
            Rule::Stops => retrying::stops(self),
            Rule::Backoff => backoff::backoff(self),
            Rule::Jitter => jitter::jitter(self),
            Rule::SameKey => keys::same_key(self),
            Rule::SameBody => keys::same_body(self),
            Rule::NewKey => keys::new_key(self),
            Rule::UnsafeRetry => keys::post_without_key(self),
            Rule::Synchrony => load::synchrony(self),
            Rule::Amplification => load::amplification(self),
            Rule::ConnectionReuse => load::connection_reuse(self),
        }
    }

    fn last(&self, operation: &Operation) -> (usize, &'a Attempt) {
        let index = operation.last();
        (index, &self.attempts[index])
    }
}

impl<'a> ObservedRetry<'a> {
    fn new(trace: &'a Trace, operation: usize, pair: (usize, &[usize])) -> Self {
        let (number, indices) = pair;
        let [failed, next] = [0, 1].map(|place| &trace.attempts[indices[place]]);
        let started = failed
            .response
            .as_ref()
            .filter(|response| response.started <= next.arrived);
        Self {
            operation,
            number,
            index: indices[1],
            failed,
            next,
            outcome: Outcome::at(failed, next.arrived),
            stated: started.map_or_else(StatedTimes::default, |response| {
                StatedTimes::of(response, trace.started)
            }),
        }
    }

    /// From the end of the failed attempt to the retry. `None` if the end is not known, because the client stopped
    /// waiting.
    fn delay(&self) -> Option<Duration> {
        let response = self.failed.response.as_ref()?;
        match self.next.arrived.checked_sub(response.ended) {
            // A client can retry after the head of the response, without its body.
            None if matches!(self.outcome, Outcome::Lost) => None,
            delay => Some(delay.unwrap_or_default()),
        }
    }

    /// Start of the response. If there was none before the retry, arrival of the failed attempt.
    fn failed_at(&self) -> Duration {
        let started = self
            .failed
            .response
            .as_ref()
            .map(|response| response.started);
        let started = started.filter(|started| *started <= self.next.arrived);
        started.unwrap_or(self.failed.arrived)
    }

    /// Stated times count from the start of the response.
    fn gap(&self) -> Duration {
        self.next.arrived.saturating_sub(self.failed_at())
    }

    /// Such as "503 at 1.204 s".
    fn failure(&self) -> String {
        format!("{} at {}", self.outcome, readable(self.failed_at()))
    }

    fn evidence(&self, text: impl AsRef<str>) -> Evidence {
        Evidence {
            attempt: Some(self.index),
            text: format!("{}, {}", self.failure(), text.as_ref()),
        }
    }
}

impl Finding {
    fn new(verdict: Verdict, summary: impl Into<String>) -> Self {
        Self {
            verdict,
            summary: summary.into(),
            evidence: Vec::new(),
        }
    }

    fn pass(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Pass, summary)
    }

    fn warn(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, summary)
    }

    fn fail(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, summary)
    }

    fn not_enough_data(summary: impl Into<String>) -> Self {
        Self::new(Verdict::NotEnoughData, summary)
    }

    fn with(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence = evidence.into_iter().take(MAX_EVIDENCE).collect();
        self
    }

    /// Adds a remark to a failure if none of its requests has a key. The requests can then be separate operations of a
    /// client that does not retry.
    fn unless_separate<'a>(mut self, requests: impl IntoIterator<Item = &'a Attempt>) -> Self {
        if requests.into_iter().all(|request| request.key.is_none()) {
            self.evidence.truncate(MAX_EVIDENCE - 1);
            self.evidence.push(Evidence {
                attempt: None,
                text: "if these requests are separate operations, give them different paths, bodies or keys"
                    .into(),
            });
        }
        self
    }
}

/// A query can contain credentials, so it is omitted.
fn request_line(attempt: &Attempt) -> String {
    let path = attempt.target.split('?').next().unwrap_or_default();
    format!("{} {path}", attempt.method)
}

/// `250 ms` below one second, otherwise `1.204 s`.
fn readable(duration: Duration) -> String {
    let millis = (duration.as_secs_f64() * 1_000.0).round();
    if millis < 1_000.0 {
        format!("{millis} ms")
    } else {
        format!("{:.3} s", duration.as_secs_f64())
    }
}

/// "1.000 s to 2.000 s", or one duration if both texts are equal.
fn readable_range(durations: impl Iterator<Item = Duration> + Clone) -> String {
    let (Some(least), Some(most)) = (durations.clone().min(), durations.max()) else {
        return "none".into();
    };
    range(&readable(least), &readable(most))
}

fn range<T: PartialEq + Display>(least: &T, most: &T) -> String {
    if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    }
}

pub(super) fn count(number: usize, singular: &str, plural: &str) -> String {
    let noun = if number == 1 { singular } else { plural };
    format!("{number} {noun}")
}

#[cfg(test)]
mod tests;
