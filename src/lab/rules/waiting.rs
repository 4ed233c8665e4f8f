//! Rules `retry-after` and `long-retry-after`: a client waits for the time that a response states.
//!
//! A response can state several times, because clients read different headers. A client that obeys any of them is not
//! early, so the shortest time counts. A response states nothing with an invalid header or with a date in the past.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;

use super::{Finding, ObservedRetry, Record, count, readable, readable_range};
use crate::lab::outcome::Outcome;
use crate::lab::verdict::Evidence;
use crate::retry::RetryAfter;
use crate::scenario::observation::{Attempt, ObservedResponse};

/// Least stated time that the rule `long-retry-after` judges. Shorter times belong to `retry-after`.
const LONG: Duration = Duration::from_mins(1);

/// Headers with a wait in milliseconds.
const MILLISECONDS: [(&str, &str); 2] = [
    ("retry-after-ms", "Retry-After-Ms"),
    ("x-amz-retry-after", "X-Amz-Retry-After"),
];

/// Times that a response states, and whether it has such a header at all.
#[derive(Clone, Debug, Default)]
pub(super) struct StatedTimes {
    /// Valid times, shortest first.
    stated: Vec<Stated>,
    /// Whether the response has a header for a time, valid or not. Its retry says nothing about the backoff.
    pub(super) has_header: bool,
}

/// Time that a header of a response states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stated {
    header: &'static str,
    form: Form,
    /// Time from the start of the response.
    pub(super) wait: Duration,
}

/// Form of a stated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Seconds,
    Date,
    Milliseconds,
}

impl StatedTimes {
    /// Reads the headers of a response. `record_started` is the system time at the start of the record.
    pub(super) fn of(response: &ObservedResponse, record_started: SystemTime) -> Self {
        let headers = &response.headers;
        let mut stated = Vec::new();
        match RetryAfter::of(headers) {
            Some(RetryAfter::Seconds(seconds)) => stated.push(Stated {
                header: "Retry-After",
                form: Form::Seconds,
                wait: Duration::from_secs(seconds),
            }),
            Some(RetryAfter::At(date)) => {
                let wait = date.duration_since(record_started + response.started);
                stated.extend(wait.ok().map(|wait| Stated {
                    header: "Retry-After",
                    form: Form::Date,
                    wait,
                }));
            }
            None => {}
        }
        stated.extend(MILLISECONDS.iter().filter_map(|(name, header)| {
            Some(Stated {
                header,
                form: Form::Milliseconds,
                wait: milliseconds(headers, name)?,
            })
        }));
        stated.sort_by_key(|stated| stated.wait);
        let mut names = MILLISECONDS.iter().map(|(name, _)| *name);
        Self {
            stated,
            has_header: headers.contains_key(RETRY_AFTER)
                || names.any(|name| headers.contains_key(name)),
        }
    }

    /// Returns the shortest stated time. Zero states nothing that a client could violate.
    pub(super) fn shortest(&self) -> Option<Stated> {
        self.stated
            .first()
            .copied()
            .filter(|stated| !stated.wait.is_zero())
    }

    /// Returns the longest stated time that a client with this gap has waited for.
    fn obeyed(&self, gap: Duration, tolerance: Duration) -> Option<Stated> {
        let waited = |stated: &&Stated| stated.wait <= gap.saturating_add(tolerance);
        self.stated.iter().rev().find(waited).copied()
    }
}

/// Returns the shortest time that a response states. `record_started` is the system time at the start of the record.
pub(in crate::lab) fn stated_wait(
    response: &ObservedResponse,
    record_started: SystemTime,
) -> Option<Duration> {
    let shortest = StatedTimes::of(response, record_started).shortest();
    shortest.map(|stated| stated.wait)
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Date => "date",
            Self::Milliseconds => "milliseconds",
        }
    }
}

fn milliseconds(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_millis(text.parse().unwrap_or(u64::MAX)))
}

/// Retry of a response that states a time.
struct Waited<'r, 'a> {
    retry: &'r ObservedRetry<'a>,
    stated: Stated,
    gap: Duration,
}

impl Waited<'_, '_> {
    fn is_early(&self, tolerance: Duration) -> bool {
        self.gap.saturating_add(tolerance) < self.stated.wait
    }

    fn early_by(&self) -> Duration {
        self.stated.wait.saturating_sub(self.gap)
    }

    fn evidence(&self) -> Evidence {
        let (header, wait) = (self.stated.header, readable(self.stated.wait));
        let form = self.stated.form.name();
        let gap = readable(self.gap);
        let early = match self.early_by() {
            Duration::ZERO => String::new(),
            early => format!(" ({} early)", readable(early)),
        };
        let text = format!("{header} ({form}) states {wait}, retried after {gap}{early}");
        self.retry.evidence(text)
    }
}

/// Returns the retries of responses that state a time, short or long.
fn waited<'r, 'a>(record: &'r Record<'a>, is_long: bool) -> Vec<Waited<'r, 'a>> {
    let retries = record.retries.iter();
    let waited = retries.filter(|retry| matches!(retry.outcome, Outcome::Retryable(_)));
    let waited = waited.filter_map(|retry| {
        let stated = retry.stated.shortest()?;
        ((stated.wait >= LONG) == is_long).then(|| Waited {
            retry,
            stated,
            gap: retry.gap(),
        })
    });
    waited.collect()
}

/// Judges whether retries wait for a stated time of less than a minute.
pub(super) fn retry_after(record: &Record<'_>) -> Finding {
    let waited = waited(record, false);
    if waited.is_empty() {
        return Finding::not_enough_data("No response with a stated time was retried.");
    }
    let (early, in_time): (Vec<_>, Vec<_>) = waited
        .iter()
        .partition(|waited| waited.is_early(record.tolerance));
    if let Some(earliest) = early.iter().max_by_key(|waited| waited.early_by()) {
        let summary = format!(
            "{} of {} arrived before the stated time, up to {} early.",
            early.len(),
            count(waited.len(), "retry", "retries"),
            readable(earliest.early_by()),
        );
        return Finding::fail(summary).with(early.iter().map(|waited| waited.evidence()));
    }
    let obeyed = in_time.iter().filter_map(|waited| {
        let stated = waited.retry.stated.obeyed(waited.gap, record.tolerance)?;
        Some(stated.form)
    });
    let mut forms: Vec<_> = obeyed.collect();
    forms.sort_unstable();
    forms.dedup();
    let forms: Vec<_> = forms.into_iter().map(Form::name).collect();
    let summary = format!(
        "{} waited for the stated time (form of the header: {}).",
        count(in_time.len(), "retry", "retries"),
        forms.join(", "),
    );
    Finding::pass(summary).with(in_time.iter().map(|waited| waited.evidence()))
}

/// Judges what the client does if the stated time is a minute or more.
pub(super) fn long_retry_after(record: &Record<'_>) -> Finding {
    let waited = waited(record, true);
    let (early, in_time): (Vec<_>, Vec<_>) = waited
        .iter()
        .partition(|waited| waited.is_early(record.tolerance));
    if !early.is_empty() {
        let gaps = early.iter().map(|waited| waited.gap);
        let summary = format!(
            "Retries early if the stated time is a minute or more: {} of {}, after {}. This is its apparent cap.",
            early.len(),
            count(waited.len(), "retry", "retries"),
            readable_range(gaps),
        );
        return Finding::fail(summary).with(early.iter().map(|waited| waited.evidence()));
    }
    if !in_time.is_empty() {
        let waits = in_time.iter().map(|waited| waited.stated.wait);
        let summary = format!("Waits for the stated time of {}.", readable_range(waits));
        return Finding::pass(summary).with(in_time.iter().map(|waited| waited.evidence()));
    }
    let unanswered = record
        .operations
        .iter()
        .map(|operation| record.last(operation));
    let given_up: Vec<_> = unanswered
        .filter_map(|(index, attempt)| Some((index, attempt, long_stated(record, attempt)?)))
        .collect();
    if given_up.is_empty() {
        return Finding::not_enough_data("No response stated a time of a minute or more.");
    }
    let number = count(given_up.len(), "response", "responses");
    if !record.has_ended {
        return Finding::not_enough_data(format!(
            "{number} stated a minute or more, and the record ended before that time."
        ));
    }
    let evidence = given_up.iter().map(|(index, attempt, stated)| Evidence {
        attempt: Some(*index),
        text: format!(
            "{} at {}, {} states {}, not retried",
            Outcome::of(attempt),
            readable(attempt.arrived),
            stated.header,
            readable(stated.wait),
        ),
    });
    Finding::pass(format!(
        "Gives up if the stated time is a minute or more ({number} not retried)."
    ))
    .with(evidence)
}

/// Returns the stated time of the response to an attempt, if it is retryable and states a minute or more.
fn long_stated(record: &Record<'_>, attempt: &Attempt) -> Option<Stated> {
    let response = attempt.response.as_ref()?;
    if !matches!(Outcome::of(attempt), Outcome::Retryable(_)) {
        return None;
    }
    let stated = StatedTimes::of(response, record.started).shortest()?;
    (stated.wait >= LONG).then_some(stated)
}
