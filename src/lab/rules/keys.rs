//! Rules on idempotency keys: `same-key`, `same-body`, `new-key`, `post-without-key`.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use http::Version;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};

use super::retrying::{is_corrected, is_unsafe_without_key};
use super::{Finding, GroupedTrace, ObservedRetry, count, readable, request_line};
use crate::lab::operation::{Content, Sender, can_be_retried};
use crate::lab::outcome::Outcome;
use crate::lab::stated::StatedTimes;
use crate::lab::verdict::Evidence;
use crate::scenario::step::StepAction;
use crate::scenario::trace::{Attempt, ResponseEnd};

/// Least gap between attempts that shows a backoff.
const MIN_BACKOFF: Duration = Duration::from_millis(50);

/// Least factor by which a gap must exceed the previous one to show a backoff.
const MIN_GROWTH: f64 = 1.3;

/// Identical requests in sequence, the second with another key than the first.
struct Renewed<'a> {
    index: usize,
    earlier: &'a Attempt,
    later: &'a Attempt,
    outcome: Outcome,
}

impl Renewed<'_> {
    fn gap(&self) -> Duration {
        self.later.arrived.saturating_sub(self.earlier.arrived)
    }

    fn evidence(&self) -> Evidence {
        let key = if self.later.key.is_some() {
            "another key"
        } else {
            "no key"
        };
        Evidence {
            attempt: Some(self.index),
            text: format!(
                "{}: {}, sent again {} later with {key}",
                request_line(self.later),
                self.outcome,
                readable(self.gap()),
            ),
        }
    }
}

/// A retry with another key looks like a new operation. The rule recognises it by its content, and by the client: a
/// client that repeats a key after some failure sends another key only for a new operation. The gaps must also show
/// that the client retries. Otherwise it can be a client without retries that sends identical operations.
pub(super) fn same_key(trace: &GroupedTrace<'_>) -> Finding {
    let keyed = trace
        .retries
        .iter()
        .filter(|retry| retry.next.key.is_some());
    let kept: HashSet<_> = keyed.clone().map(|retry| Sender::of(retry.next)).collect();
    let renewed = renewed(trace);
    let others = renewed
        .iter()
        .filter(|renewed| !kept.contains(&Sender::of(renewed.later)));
    let (retries, repetitions): (Vec<_>, Vec<_>) =
        others.partition(|renewed| renewed.outcome.is_failure());
    let are_retries = if repetitions.is_empty() {
        has_backoff(&retries) || follows_stated_times(trace, &retries)
    } else {
        is_slower(&retries, &repetitions)
    };
    if are_retries {
        let summary = format!(
            "{} changed the key of the operation.",
            count(retries.len(), "retry", "retries")
        );
        return Finding::fail(summary).with(retries.iter().map(|renewed| renewed.evidence()));
    }
    let number = keyed.count();
    if number > 0 {
        let retries = count(number, "retry", "retries");
        return Finding::pass(format!("{retries} had the key of the operation."));
    }
    Finding::not_enough_data(if retries.is_empty() {
        "No request with an idempotency key was retried."
    } else {
        "Identical requests with other keys can be new operations, because their gaps do not show retries."
    })
}

/// Pairs of one sender with different keys. Concurrent pairs are omitted, and pairs after a final response, because a
/// client can send a new operation after it.
fn renewed<'a>(trace: &GroupedTrace<'a>) -> Vec<Renewed<'a>> {
    let mut last: HashMap<_, &Attempt> = HashMap::new();
    let mut renewed = Vec::new();
    for (index, later) in trace.attempts.iter().enumerate() {
        if later.body.length == 0 {
            continue;
        }
        let earlier = last.insert((Sender::of(later), Content::of(later)), later);
        let Some(earlier) = earlier.filter(|earlier| earlier.key != later.key) else {
            continue;
        };
        let outcome = Outcome::at(earlier, later.arrived);
        let is_retry = can_be_retried(earlier, later.arrived) && outcome.is_retryable();
        if is_retry || outcome == Outcome::Success {
            renewed.push(Renewed {
                index,
                earlier,
                later,
                outcome,
            });
        }
    }
    renewed
}

/// A client that sends identical operations one after the other does not wait longer after failures.
fn is_slower(retries: &[&Renewed<'_>], repetitions: &[&Renewed<'_>]) -> bool {
    let median = |renewed: &[&Renewed<'_>]| {
        let mut gaps: Vec<_> = renewed.iter().map(|renewed| renewed.gap()).collect();
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).copied().unwrap_or_default()
    };
    median(retries) > median(repetitions) * 2 + Duration::from_millis(20)
}

/// Most sequences of at least two gaps must grow.
fn has_backoff(retries: &[&Renewed<'_>]) -> bool {
    let mut sequences: HashMap<_, Vec<Duration>> = HashMap::new();
    for renewed in retries {
        let request = (Sender::of(renewed.later), Content::of(renewed.later));
        sequences.entry(request).or_default().push(renewed.gap());
    }
    let grows = |gaps: &&Vec<Duration>| {
        let is_longer = |pair: &[Duration]| pair[1] >= pair[0].mul_f64(MIN_GROWTH);
        gaps.iter().all(|gap| *gap >= MIN_BACKOFF) && gaps.windows(2).all(is_longer)
    };
    let sequences: Vec<_> = sequences.values().filter(|gaps| gaps.len() > 1).collect();
    sequences.iter().copied().filter(grows).count() * 2 > sequences.len()
}

fn follows_stated_times(trace: &GroupedTrace<'_>, retries: &[&Renewed<'_>]) -> bool {
    let (mut stated, mut followed) = (0, 0);
    for renewed in retries {
        let Some(response) = &renewed.earlier.response else {
            continue;
        };
        let times = StatedTimes::of(response, trace.started);
        let gap = renewed.later.arrived.saturating_sub(response.started);
        stated += usize::from(times.shortest().is_some());
        followed += usize::from(times.explains(gap));
    }
    followed * 2 > stated
}

pub(super) fn same_body(trace: &GroupedTrace<'_>) -> Finding {
    let keyed = trace
        .retries
        .iter()
        .filter(|retry| retry.next.key.is_some());
    let compared: Vec<_> = keyed
        .filter(|retry| is_complete(retry.failed) && is_complete(retry.next))
        .filter(|retry| !has_new_boundary(retry.failed, retry.next))
        .collect();
    let changed: Vec<_> = compared
        .iter()
        .filter(|retry| Content::of(retry.failed) != Content::of(retry.next))
        .collect();
    if !changed.is_empty() {
        let summary = format!(
            "{} of {} with the same key changed the request.",
            changed.len(),
            count(compared.len(), "retry", "retries")
        );
        let evidence = changed.iter().map(|retry| {
            retry.evidence(format!(
                "retried with {}",
                difference(retry.failed, retry.next)
            ))
        });
        return Finding::fail(summary).with(evidence);
    }
    match compared.len() {
        0 => Finding::not_enough_data("No request with an idempotency key was retried."),
        number => Finding::pass(format!(
            "{} with a key had the same body.",
            count(number, "retry", "retries")
        )),
    }
}

pub(super) fn new_key(trace: &GroupedTrace<'_>) -> Finding {
    let mut last: HashMap<_, &Attempt> = HashMap::new();
    let (mut reused, mut repeated) = (Vec::new(), Vec::new());
    let mut keyed = 0;
    for operation in trace.operations {
        let first = operation.attempts[0];
        let attempt = &trace.attempts[first];
        let Some(key) = attempt.key.as_deref() else {
            continue;
        };
        keyed += 1;
        let (_, end) = trace.last(operation);
        let Some(earlier) = last.insert((Sender::of(attempt), key), end) else {
            continue;
        };
        let is_same = Content::of(earlier) == Content::of(attempt);
        let what = if is_same {
            "the same request".into()
        } else {
            difference(earlier, attempt)
        };
        let evidence = Evidence {
            attempt: Some(first),
            text: format!(
                "key used again at {} after success, with {what}",
                readable(attempt.arrived)
            ),
        };
        if is_same { &mut repeated } else { &mut reused }.push(evidence);
    }
    let operations = count(keyed, "operation", "operations");
    if !reused.is_empty() {
        let summary = format!(
            "{} of {operations} had the key of an earlier operation that succeeded.",
            reused.len()
        );
        return Finding::fail(summary).with(reused);
    }
    if !repeated.is_empty() {
        let summary = format!(
            "{} of {operations} repeated a request with its key after it had succeeded.",
            repeated.len()
        );
        return Finding::warn(summary).with(repeated);
    }
    match keyed {
        0 | 1 => Finding::not_enough_data(format!(
            "The trace has {operations} with an idempotency key, 2 needed."
        )),
        _ => Finding::pass(format!("{operations} had different keys.")),
    }
}

/// The rule `retryable-only` judges repetitions after a final response.
pub(super) fn post_without_key(trace: &GroupedTrace<'_>) -> Finding {
    let retries = trace.retries.iter();
    let repeated: Vec<_> = retries
        .filter(|retry| is_unsafe_without_key(retry.next) && retry.outcome.is_retryable())
        .filter(|retry| !is_corrected(retry) && !is_refused(retry))
        .collect();
    if !repeated.is_empty() {
        let summary = format!(
            "Repeated a POST or PATCH without an idempotency key {}.",
            count(repeated.len(), "time", "times")
        );
        let evidence = repeated.iter().map(|retry| {
            let (request, gap) = (request_line(retry.next), readable(retry.gap()));
            retry.evidence(format!("{request} repeated after {gap} without a key"))
        });
        return Finding::fail(summary).with(evidence);
    }
    let failed = trace.operations.iter().filter(|operation| {
        let (_, last) = trace.last(operation);
        is_unsafe_without_key(last) && Outcome::of(last).is_retryable()
    });
    let failed = failed.count();
    let number = count(
        failed,
        "failed POST or PATCH",
        "failed POST or PATCH requests",
    );
    match failed {
        0 => Finding::not_enough_data("No POST or PATCH without an idempotency key failed."),
        _ if trace.has_ended => Finding::pass(format!("Repeated none of {number} without a key.")),
        _ => Finding::not_enough_data(format!(
            "{number} without a key not repeated before the end of the trace."
        )),
    }
}

/// The server has not processed a refused stream, so a repetition is safe (RFC 9113, section 8.7).
fn is_refused(retry: &ObservedRetry<'_>) -> bool {
    let response = retry.failed.response.as_ref();
    let is_reset = response.is_some_and(|response| response.end == ResponseEnd::Aborted);
    let action = retry.failed.step.as_ref().map(|step| step.action);
    is_reset && retry.failed.version == Version::HTTP_2 && action == Some(StepAction::RefusedStream)
}

/// Clients choose a random boundary for each attempt, so the bodies of a correct client differ too.
fn has_new_boundary(earlier: &Attempt, later: &Attempt) -> bool {
    let [before, after] = [earlier, later].map(|attempt| attempt.headers.get(CONTENT_TYPE));
    let is_multipart = |value: &http::HeaderValue| {
        let start = value.as_bytes().get(.."multipart/".len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/"))
    };
    let are_multipart = [before, after]
        .iter()
        .all(|value| value.is_some_and(is_multipart));
    are_multipart
        && before != after
        && (&earlier.method, &earlier.target) == (&later.method, &later.target)
}

/// The gateway can respond before it has read the body.
fn is_complete(attempt: &Attempt) -> bool {
    let declared = attempt.headers.get(CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    !attempt.body.is_partial && declared.is_none_or(|declared| declared == attempt.body.length)
}

fn difference(earlier: &Attempt, later: &Attempt) -> String {
    let [before, after] = [earlier, later].map(request_line);
    if before != after {
        return format!("{after} instead of {before}");
    }
    if earlier.target != later.target {
        return "another query".into();
    }
    let bytes = |attempt: &Attempt| format!("{} B", attempt.body.length);
    format!(
        "another body ({} instead of {})",
        bytes(later),
        bytes(earlier)
    )
}
