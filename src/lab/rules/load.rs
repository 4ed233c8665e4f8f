//! Rules on the load that a client causes: `synchrony`, `amplification`, `connection-reuse`.

use std::collections::HashSet;
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderMap, Version};

use super::{Finding, GroupedTrace, ObservedRetry, count, readable, readable_range};
use crate::lab::outcome::Outcome;
use crate::lab::verdict::Evidence;
use crate::scenario::trace::ResponseEnd;

/// Number of clients that must fail together for a judgement of their synchrony.
const MIN_CLIENTS: usize = 10;

/// Time within which clients fail together, and least time within which retries arrive together.
const TOGETHER: Duration = Duration::from_millis(50);

const MAX_AMPLIFICATION: f64 = 10.0;

/// Maximum time between attempts in which a connection is expected to stay open.
const MAX_IDLE: Duration = Duration::from_secs(30);

pub(super) fn synchrony(trace: &GroupedTrace<'_>) -> Finding {
    let group = failed_together(trace);
    if group.len() < MIN_CLIENTS {
        let most = count(group.len(), "client", "clients");
        return Finding::not_enough_data(format!(
            "At most {most} failed within {} and retried, {MIN_CLIENTS} needed.",
            readable(TOGETHER)
        ));
    }
    let mut arrivals: Vec<_> = group.iter().map(|retry| retry.next.arrived).collect();
    arrivals.sort_unstable();
    let mut gaps: Vec<_> = group.iter().map(|retry| retry.gap()).collect();
    gaps.sort_unstable();
    let interval = TOGETHER.max(gaps[gaps.len() / 2] / 20);
    let peak = longest_window(&arrivals, interval).len();
    let span = arrivals[arrivals.len() - 1]
        .saturating_sub(arrivals[0])
        .max(interval);
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    let mean = group.len() as f64 * interval.as_secs_f64() / span.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    let ratio = peak as f64 / mean;
    let evidence = Evidence {
        attempt: None,
        text: format!(
            "retries arrive in {}, with a peak of {peak} in {} ({ratio:.1} times the mean)",
            readable(span),
            readable(interval)
        ),
    };
    let summary = format!(
        "{peak} of {} clients that failed together retried within {} (after {}).",
        group.len(),
        readable(interval),
        readable_range(gaps.iter().copied()),
    );
    let is_synchronous = peak * 2 > group.len();
    let finding = if is_synchronous {
        Finding::warn(summary)
    } else {
        Finding::pass(summary)
    };
    finding.with([evidence])
}

/// The first retry of each client in the largest group that failed within [`TOGETHER`].
fn failed_together<'r, 'a>(trace: &'r GroupedTrace<'a>) -> Vec<&'r ObservedRetry<'a>> {
    let mut retries: Vec<_> = trace.retries.iter().collect();
    retries.sort_by_key(|retry| retry.failed_at());
    let mut clients = HashSet::new();
    // Only the first failure of a client counts. Later failures are spread by the delays before them.
    retries.retain(|retry| clients.insert(retry.next.client));
    let times: Vec<_> = retries.iter().map(|retry| retry.failed_at()).collect();
    let window = longest_window(&times, TOGETHER);
    retries.drain(window).collect()
}

fn longest_window(times: &[Duration], interval: Duration) -> std::ops::Range<usize> {
    let mut longest = 0..0;
    let mut start = 0;
    for end in 0..times.len() {
        while times[end].saturating_sub(times[start]) > interval {
            start += 1;
        }
        if end + 1 - start > longest.len() {
            longest = start..end + 1;
        }
    }
    longest
}

pub(super) fn amplification(trace: &GroupedTrace<'_>) -> Finding {
    let attempts = trace
        .operations
        .iter()
        .map(|operation| operation.attempts.len());
    let Some(most) = attempts.clone().max() else {
        return Finding::not_enough_data("The trace has no operation.");
    };
    // Without a failure, the trace does not show what the client adds to the load.
    let has_failed = |index: &usize| Outcome::of(&trace.attempts[*index]).is_failure();
    let mut indices = trace
        .operations
        .iter()
        .flat_map(|operation| &operation.attempts);
    if !indices.any(has_failed) {
        return Finding::not_enough_data("No request of an operation failed.");
    }
    let total: usize = attempts.sum();
    let operations = trace.operations.len();
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    let mean = total as f64 / operations as f64;
    let summary = format!(
        "{mean:.2} requests per operation on average, {most} in the longest ({}, {}).",
        count(total, "request", "requests"),
        count(operations, "operation", "operations")
    );
    if mean > MAX_AMPLIFICATION {
        Finding::warn(summary)
    } else {
        Finding::pass(summary)
    }
}

pub(super) fn connection_reuse(trace: &GroupedTrace<'_>) -> Finding {
    let mut used = HashSet::new();
    // Connections that are used before each attempt. A client with a pool can use any of them.
    let is_reused: Vec<_> = trace
        .attempts
        .iter()
        .map(|attempt| !used.insert(attempt.connection))
        .collect();
    let retries = trace.retries.iter().filter(|retry| is_open(retry));
    let (reused, opened): (Vec<_>, Vec<_>) = retries.partition(|retry| is_reused[retry.index]);
    let total = reused.len() + opened.len();
    if total == 0 {
        return Finding::not_enough_data(
            "No retry followed a response that keeps its connection open.",
        );
    }
    let summary = format!(
        "{} of {} used an open connection.",
        reused.len(),
        count(total, "retry", "retries")
    );
    if !reused.is_empty() {
        return Finding::pass(summary);
    }
    let evidence = opened.iter().map(|retry| {
        let version = retry.next.version;
        retry.evidence(format!("retried on a new {version:?} connection"))
    });
    Finding::warn(summary).with(evidence)
}

fn is_open(retry: &ObservedRetry<'_>) -> bool {
    let Some(response) = &retry.failed.response else {
        return false;
    };
    response.end == ResponseEnd::Complete
        && retry.delay().is_some_and(|delay| delay <= MAX_IDLE)
        && retry.failed.version >= Version::HTTP_11
        && !has_close(&response.headers)
        && !has_close(&retry.failed.headers)
}

fn has_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).into_iter();
    let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}
