//! Rules on which failures are retried, and how often: `retries`, `retryable-only`, `final-response`, `stops`.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, EXPECT};
use http::{HeaderName, Method, StatusCode};

use super::{
    Finding, GroupedTrace, ObservedRetry, count, range, readable, readable_range, request_line,
};
use crate::idempotency::credentials::{has_credential_word, is_signed};
use crate::lab::operation::Operation;
use crate::lab::outcome::{Outcome, is_marked_final};
use crate::lab::verdict::{Evidence, Verdict};
use crate::scenario::trace::{Attempt, ResponseEnd};

/// Maximum number of attempts of an operation that still counts as bounded.
const MAX_ATTEMPTS: usize = 20;

/// Number of attempts of a failed operation above which the client does not stop, even if it has ended.
const UNBOUNDED: usize = 100;

pub(super) fn retries(trace: &GroupedTrace<'_>) -> Finding {
    let retried: Vec<_> = retries_of(trace, Outcome::is_retryable).collect();
    let last = trace
        .operations
        .iter()
        .map(|operation| trace.last(operation));
    let failed =
        last.filter(|(_, attempt)| Outcome::of(attempt).is_retryable() && !is_abandoned(attempt));
    // A client is right if it does not repeat a POST without a key.
    let (unsafe_to_retry, not_retried): (Vec<_>, Vec<_>) =
        failed.partition(|(_, attempt)| is_unsafe_without_key(attempt));
    if let Some(first) = retried.first() {
        let failures = retried.len() + not_retried.len();
        let summary = format!(
            "Retried {} of {}.",
            retried.len(),
            count(failures, "retryable failure", "retryable failures"),
        );
        let text = format!("retried after {}", readable(first.gap()));
        return Finding::pass(summary).with([first.evidence(text)]);
    }
    if not_retried.is_empty() {
        return Finding::not_enough_data(match unsafe_to_retry.len() {
            0 => "No attempt failed in a way that a retry can repair.".into(),
            number => format!(
                "Only {} without an idempotency key failed, which should not be repeated.",
                count(number, "POST or PATCH", "POST or PATCH requests"),
            ),
        });
    }
    let number = count(not_retried.len(), "retryable failure", "retryable failures");
    if !trace.has_ended {
        return Finding::not_enough_data(format!(
            "{number} not retried before the end of the trace."
        ));
    }
    let evidence = not_retried.iter().map(|(index, attempt)| Evidence {
        attempt: Some(*index),
        text: format!(
            "{}: {} at {}, not retried",
            request_line(attempt),
            Outcome::of(attempt),
            readable(attempt.arrived),
        ),
    });
    Finding::warn(format!("Retried none of {number}.")).with(evidence)
}

pub(super) fn retryable_only(trace: &GroupedTrace<'_>) -> Finding {
    let is_judged = |outcome| match outcome {
        Outcome::Final(status) => !is_conflict(status),
        _ => false,
    };
    let mut by_status: BTreeMap<u16, Vec<&ObservedRetry<'_>>> = BTreeMap::new();
    for retry in retries_of(trace, is_judged).filter(|retry| !is_corrected(retry)) {
        if let Outcome::Final(status) = retry.outcome {
            by_status.entry(status.as_u16()).or_default().push(retry);
        }
    }
    if by_status.is_empty() {
        let responses = attempts_with(trace, is_judged).count();
        return not_retried(trace, responses, "a status that is not retryable");
    }
    let counts = by_status
        .iter()
        .map(|(status, retries)| format!("{status} ({})", count(retries.len(), "time", "times")));
    let summary = format!(
        "Retried statuses that a retry cannot change: {}.",
        counts.collect::<Vec<_>>().join(", "),
    );
    let first = by_status.values().filter_map(|retries| retries.first());
    Finding::fail(summary)
        .with(first.map(|retry| retried_after(retry)))
        .unless_separate(by_status.values().flatten().map(|retry| retry.next))
}

pub(super) fn final_response(trace: &GroupedTrace<'_>) -> Finding {
    let is_judged = |outcome| matches!(outcome, Outcome::Final(status) if is_conflict(status));
    let retried: Vec<_> = retries_of(trace, is_judged).collect();
    let (violations, unmarked): (Vec<&ObservedRetry<'_>>, Vec<&ObservedRetry<'_>>) =
        retried.into_iter().partition(|retry| is_final(retry));
    if !violations.is_empty() {
        let number = count(violations.len(), "final response", "final responses");
        let summary = format!("Retried {number} with status 409 or 422.");
        return Finding::fail(summary).with(violations.into_iter().map(retried_after));
    }
    if !unmarked.is_empty() {
        let summary = format!(
            "Retried {} that states neither that it is final nor that a retry can succeed.",
            count(
                unmarked.len(),
                "response with status 409",
                "responses with status 409"
            ),
        );
        return Finding::warn(summary).with(unmarked.into_iter().map(retried_after));
    }
    let responses = attempts_with(trace, is_judged).count();
    not_retried(trace, responses, "status 409 or 422")
}

pub(super) fn stops(trace: &GroupedTrace<'_>) -> Finding {
    let has_many = |operation: &&Operation| operation.attempts.len() > MAX_ATTEMPTS;
    let many: Vec<_> = trace.operations.iter().filter(has_many).collect();
    let (unbounded, ended): (Vec<_>, Vec<_>) = many
        .into_iter()
        .partition(|operation| is_unbounded(trace, operation));
    if !unbounded.is_empty() {
        let first = unbounded.iter().map(|operation| operation.attempts[0]);
        return many_attempts(trace, Verdict::Fail, &unbounded)
            .unless_separate(first.map(|index| &trace.attempts[index]));
    }
    if !ended.is_empty() {
        return many_attempts(trace, Verdict::Warn, &ended);
    }
    let gave_up = trace.operations.iter().filter(|operation| {
        let (_, last) = trace.last(operation);
        operation.attempts.len() > 1 && Outcome::of(last).is_retryable()
    });
    let gave_up: Vec<_> = gave_up.collect();
    if gave_up.is_empty() || !trace.has_ended {
        return Finding::not_enough_data(match gave_up.len() {
            0 => "No operation was retried and failed in the end.".into(),
            number => format!(
                "The trace ended before {} showed whether the client stops.",
                count(number, "failed operation", "failed operations"),
            ),
        });
    }
    let attempts = gave_up.iter().map(|operation| operation.attempts.len());
    let times = gave_up.iter().map(|operation| duration(trace, operation));
    let summary = format!(
        "Gave up after {} attempts and {} ({}).",
        range(
            &attempts.clone().min().unwrap_or_default(),
            &attempts.max().unwrap_or_default()
        ),
        readable_range(times),
        count(gave_up.len(), "operation", "operations"),
    );
    Finding::pass(summary)
}

/// No end: it did not succeed, and the client was still retrying at the end of the trace or had sent more than
/// [`UNBOUNDED`] attempts.
fn is_unbounded(trace: &GroupedTrace<'_>, operation: &Operation) -> bool {
    let (_, last) = trace.last(operation);
    Outcome::of(last).is_failure() && (!trace.has_ended || operation.attempts.len() > UNBOUNDED)
}

fn many_attempts(trace: &GroupedTrace<'_>, verdict: Verdict, operations: &[&Operation]) -> Finding {
    let attempts = operations.iter().map(|operation| operation.attempts.len());
    let summary = format!(
        "{} had more than {MAX_ATTEMPTS} attempts, up to {}.",
        count(operations.len(), "operation", "operations"),
        attempts.max().unwrap_or_default(),
    );
    let evidence = operations.iter().map(|operation| {
        let (index, last) = trace.last(operation);
        let (attempts, time) = (operation.attempts.len(), duration(trace, operation));
        let (time, outcome) = (readable(time), Outcome::of(last));
        Evidence {
            attempt: Some(index),
            text: format!("{attempts} attempts in {time}, last outcome: {outcome}"),
        }
    });
    Finding::new(verdict, summary).with(evidence)
}

/// A server would execute its repetition again.
pub(super) fn is_unsafe_without_key(attempt: &Attempt) -> bool {
    attempt.key.is_none() && [Method::POST, Method::PATCH].contains(&attempt.method)
}

/// The client can have read all that it needs.
fn is_abandoned(attempt: &Attempt) -> bool {
    attempt.response.as_ref().is_some_and(|response| {
        let is_success = response.status.is_some_and(|status| status.as_u16() < 400);
        is_success && response.end == ResponseEnd::ClientClosed
    })
}

fn is_conflict(status: StatusCode) -> bool {
    [StatusCode::CONFLICT, StatusCode::UNPROCESSABLE_ENTITY].contains(&status)
}

/// Any 422, and a 409 that is marked as final.
fn is_final(retry: &ObservedRetry<'_>) -> bool {
    let response = retry.failed.response.as_ref();
    let is_marked = response.is_some_and(|response| is_marked_final(&response.headers));
    retry.outcome == Outcome::Final(StatusCode::UNPROCESSABLE_ENTITY) || is_marked
}

/// A retry with other credentials or expectations is a corrected request, such as after a 401.
pub(super) fn is_corrected(retry: &ObservedRetry<'_>) -> bool {
    let [before, after] = [&retry.failed.headers, &retry.next.headers];
    // A signature differs in every request, so it does not show that the credentials are new.
    let are_signed = is_signed(before) && is_signed(after);
    let is_compared = |name: &&HeaderName| {
        let is_credential =
            **name == COOKIE || **name == EXPECT || has_credential_word(name.as_str().as_bytes());
        is_credential && !(are_signed && **name == AUTHORIZATION)
    };
    let mut names = before.keys().chain(after.keys()).filter(is_compared);
    names.any(|name| !before.get_all(name).iter().eq(after.get_all(name)))
}

fn retries_of<'r, 'a>(
    trace: &'r GroupedTrace<'a>,
    is_judged: impl Fn(Outcome) -> bool,
) -> impl Iterator<Item = &'r ObservedRetry<'a>> {
    trace
        .retries
        .iter()
        .filter(move |retry| is_judged(retry.outcome))
}

fn attempts_with<'r>(
    trace: &'r GroupedTrace<'_>,
    is_judged: impl Fn(Outcome) -> bool,
) -> impl Iterator<Item = &'r Attempt> {
    let indices = trace
        .operations
        .iter()
        .flat_map(|operation| &operation.attempts);
    let attempts = indices.map(|index| &trace.attempts[*index]);
    attempts.filter(move |attempt| is_judged(Outcome::of(attempt)))
}

fn not_retried(trace: &GroupedTrace<'_>, responses: usize, what: &str) -> Finding {
    let number = count(responses, "response", "responses");
    if responses == 0 {
        Finding::not_enough_data(format!("No response had {what}."))
    } else if trace.has_ended {
        Finding::pass(format!("Retried none of {number} with {what}."))
    } else {
        Finding::not_enough_data(format!(
            "{number} with {what} not retried before the end of the trace."
        ))
    }
}

fn retried_after(retry: &ObservedRetry<'_>) -> Evidence {
    retry.evidence(format!("retried after {}", readable(retry.gap())))
}

fn duration(trace: &GroupedTrace<'_>, operation: &Operation) -> Duration {
    let first = trace.attempts[operation.attempts[0]].arrived;
    trace.last(operation).1.arrived.saturating_sub(first)
}
