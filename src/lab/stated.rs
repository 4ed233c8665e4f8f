//! Times for which a response asks a client to wait.
//!
//! A response can state several times, because clients read different headers. A client that obeys any of them is not
//! early, so the shortest time counts. A response states nothing with an invalid header or with a date in the past.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;

use crate::retry::RetryAfter;
use crate::scenario::trace::ObservedResponse;

const MILLISECONDS: [(&str, &str); 2] = [
    ("retry-after-ms", "Retry-After-Ms"),
    ("x-amz-retry-after", "X-Amz-Retry-After"),
];

#[derive(Clone, Debug, Default)]
pub(super) struct StatedTimes {
    /// Shortest first.
    stated: Vec<Stated>,
    /// Whether the response has a header for a time, valid or not. Its retry does not show the backoff of the client.
    pub(super) has_header: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stated {
    pub(super) header: &'static str,
    pub(super) form: Form,
    /// Time from the start of the response.
    pub(super) wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    Seconds,
    Date,
    Milliseconds,
}

impl StatedTimes {
    /// `trace_started` is the system time at the start of the trace.
    pub(super) fn of(response: &ObservedResponse, trace_started: SystemTime) -> Self {
        let headers = &response.headers;
        let mut stated = Vec::new();
        match RetryAfter::of(headers) {
            Some(RetryAfter::Seconds(seconds)) => stated.push(Stated {
                header: "Retry-After",
                form: Form::Seconds,
                wait: Duration::from_secs(seconds),
            }),
            Some(RetryAfter::At(date)) => {
                let wait = date.duration_since(trace_started + response.started);
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
        Self {
            stated,
            has_header: has_time(headers),
        }
    }

    /// Zero states nothing that a client could violate.
    pub(super) fn shortest(&self) -> Option<Stated> {
        self.stated
            .first()
            .copied()
            .filter(|stated| !stated.wait.is_zero())
    }

    pub(super) fn obeyed(&self, gap: Duration, tolerance: Duration) -> Option<Stated> {
        let waited = |stated: &&Stated| stated.wait <= gap.saturating_add(tolerance);
        self.stated.iter().rev().find(waited).copied()
    }

    /// A gap that differs from a stated time by at most 10 % obeys it.
    pub(super) fn explains(&self, gap: Duration) -> bool {
        let mut stated = self.stated.iter().filter(|stated| !stated.wait.is_zero());
        stated.any(|stated| gap.abs_diff(stated.wait) <= stated.wait / 10)
    }
}

pub(super) fn stated_wait(
    response: &ObservedResponse,
    trace_started: SystemTime,
) -> Option<Duration> {
    let shortest = StatedTimes::of(response, trace_started).shortest();
    shortest.map(|stated| stated.wait)
}

/// Valid or not.
pub(super) fn has_time(headers: &HeaderMap) -> bool {
    let mut names = MILLISECONDS.iter().map(|(name, _)| *name);
    headers.contains_key(RETRY_AFTER) || names.any(|name| headers.contains_key(name))
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Date => "date",
            Self::Milliseconds => "milliseconds",
        }
    }
}

/// The number can have decimals.
fn milliseconds(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) {
        return None;
    }
    let whole = Duration::from_millis(whole.parse().unwrap_or(u64::MAX));
    let decimals: f64 = format!("0.{decimals}").parse().ok()?;
    Some(whole.saturating_add(Duration::from_secs_f64(decimals / 1_000.0)))
}
