//! Writes the `RateLimit` response headers, which describe the rate limits of a route in the configured dialect.
//!
//! In the dialect `draft`, each enforced limit is a member of the list in the header. On a 429 the limits that rejected
//! the request come first, longest wait first, because some clients read only the first member. The dialects `legacy`
//! and `x` describe only one limit: on a 429 the one with the longest wait, otherwise the one with the fewest remaining
//! requests. Headers that an upstream sent in the configured dialect are merged, those of other dialects are forwarded
//! unchanged.

mod upstream;

use std::cmp::Reverse;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use self::upstream::RateLimitField;
use super::stage::RouteLimit;
use super::{BucketReading, ChargeOutcome, Decision, Quota};
use crate::clock::Clock;
use crate::respond::Dialect;
use crate::respond::retry_after::whole_seconds;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Limit, remaining and reset.
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Such as `"device";q=4;w=4`.
pub(super) fn policy(limits: &[RouteLimit]) -> HeaderValue {
    let mut line = BytesMut::new();
    put_policies(&mut line, limits, |index| &limits[index].name);
    value(line.freeze())
}

/// Merges the state of `limits` with the headers that the upstream sent.
pub(super) fn write(
    headers: &mut HeaderMap,
    dialect: Dialect,
    limits: &[RouteLimit],
    policy: &HeaderValue,
    decision: &Decision,
    clock: &Clock,
) {
    match dialect {
        Dialect::Draft | Dialect::Draft11 => write_members(headers, limits, policy, decision),
        Dialect::Legacy => write_tightest(headers, &LEGACY, limits, decision, clock),
        Dialect::X => write_tightest(headers, &X, limits, decision, clock),
        Dialect::Off => {}
    }
}

fn write_members(
    headers: &mut HeaderMap,
    limits: &[RouteLimit],
    policy: &HeaderValue,
    decision: &Decision,
) {
    let mut line = BytesMut::with_capacity(32 * limits.len());
    put_states(&mut line, decision, |index| &limits[index].name);
    let has_policies = headers.append(RATE_LIMIT_POLICY, policy.clone());
    let has_states = headers.append(RATE_LIMIT, value(line.freeze()));
    if !has_policies && !has_states {
        return;
    }

    let [policies, states] = [RATE_LIMIT_POLICY, RATE_LIMIT]
        .map(|name| RateLimitField::parse(&take_all_but_last(headers, &name)));
    let names = upstream::distinct_names(limits, &[&policies, &states]);
    let (mut policy_line, mut state_line) = (policies.line, states.line);
    put_policies(&mut policy_line, limits, |index| &names[index]);
    put_states(&mut state_line, decision, |index| &names[index]);
    headers.insert(RATE_LIMIT_POLICY, value(policy_line.freeze()));
    headers.insert(RATE_LIMIT, value(state_line.freeze()));
}

fn write_tightest(
    headers: &mut HeaderMap,
    names: &[HeaderName; 3],
    limits: &[RouteLimit],
    decision: &Decision,
    clock: &Clock,
) {
    let tightest = match decision.outcome {
        ChargeOutcome::Rejected { by, .. } => Some(by),
        ChargeOutcome::Admitted { .. } | ChargeOutcome::Unavailable => (0..decision.readings.len())
            .min_by_key(|&index| {
                let reading = &decision.readings[index];
                (reading.remaining, Reverse(reading.next))
            }),
    };
    let Some((limit, reading)) =
        tightest.and_then(|index| limits.get(index).zip(decision.readings.get(index)))
    else {
        return;
    };
    let (remaining, reset) = (reading.remaining, reset(reading));
    let numbers = [limit.quota.capacity().get(), remaining, reset];
    let mut has_any = false;
    for (name, number) in names.iter().zip(numbers) {
        has_any |= headers.append(name.clone(), number.into());
    }
    if !has_any {
        return;
    }
    let sent = names
        .each_ref()
        .map(|name| take_all_but_last(headers, name));
    if let Some(sent_limit) = upstream::UpstreamLimit::parse(&sent, clock)
        && sent_limit.is_tighter_than(remaining.into(), reset.into())
    {
        sent_limit.write(headers, names, sent);
    }
}

/// Returns the lines that the upstream sent, and leaves the last, which the gateway appended.
fn take_all_but_last(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let mut lines: Vec<_> = headers.get_all(name).iter().cloned().collect();
    if let Some(last) = lines.pop() {
        headers.insert(name, last);
    }
    lines
}

fn put_policies<'a>(line: &mut BytesMut, limits: &[RouteLimit], name: impl Fn(usize) -> &'a str) {
    for (index, limit) in limits.iter().enumerate() {
        begin_member(line, name(index));
        put(line, "q", limit.quota.capacity().get());
        put(line, "w", window(limit.quota));
    }
}

/// The limits that rejected the request come first, longest wait first.
fn put_states<'a>(line: &mut BytesMut, decision: &Decision, name: impl Fn(usize) -> &'a str) {
    let readings = &decision.readings;
    let mut put_state = |index: usize| {
        begin_member(line, name(index));
        put(line, "r", readings[index].remaining);
        put(line, "t", reset(&readings[index]));
    };
    let all = 0..readings.len();
    if decision.is_admitted() || readings.len() == 1 {
        all.for_each(put_state);
    } else {
        decision.rejecting().into_iter().for_each(&mut put_state);
        all.filter(|&index| !readings[index].rejects)
            .for_each(put_state);
    }
}

/// In seconds, rounded up. 0 only for a full bucket.
fn reset(reading: &BucketReading) -> u32 {
    if reading.next.is_zero() {
        0
    } else {
        whole_seconds(reading.next)
    }
}

fn window(quota: Quota) -> u32 {
    whole_seconds(quota.window())
}

/// The configuration allows only names that need no escapes.
fn begin_member(line: &mut BytesMut, name: &str) {
    if !line.is_empty() {
        line.put_slice(b", ");
    }
    line.put_u8(b'"');
    line.put_slice(name.as_bytes());
    line.put_u8(b'"');
}

fn put(line: &mut BytesMut, parameter: &str, number: u32) {
    line.put_u8(b';');
    line.put_slice(parameter.as_bytes());
    line.put_u8(b'=');
    line.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn value(line: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(line).expect("structured fields and limit names are ASCII")
}

#[cfg(test)]
mod tests;
