//! What a client is told about its limits, in the dialect the configuration chose.
//!
//! `draft` names every enforced limit of the route; `legacy` and `x` have room for one and show the
//! tightest. What does not change from one request to the next is formatted when the policy is made.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::Dialect;
use super::retry_after::whole_seconds;
use crate::throttle::{Limit, Outcome, Quota, Reading, Verdict};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// One header for each of limit, remaining and reset.
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

/// The headers of a dialect, for browsers to be let read.
pub fn names(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Draft => &["RateLimit", "RateLimit-Policy"],
        Dialect::Legacy => &["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"],
        Dialect::X => &["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"],
        Dialect::Off => &[],
    }
}

/// `RateLimit-Policy` of a route with these enforced limits: `"device";q=4;w=4`.
pub fn policy(limits: &[Arc<Limit>]) -> HeaderValue {
    let mut line = BytesMut::new();
    for limit in limits {
        begin_member(&mut line, limit);
        put(&mut line, "q", limit.quota.capacity().get());
        put(&mut line, "w", window(limit.quota));
    }
    value(line.freeze())
}

/// Writes what `verdict` says of `limits` into `headers`.
pub fn write(
    headers: &mut HeaderMap,
    dialect: Dialect,
    limits: &[Arc<Limit>],
    policy: &HeaderValue,
    verdict: &Verdict,
) {
    match dialect {
        Dialect::Draft => {
            let mut line = BytesMut::with_capacity(32 * limits.len());
            for (limit, reading) in limits.iter().zip(&verdict.readings) {
                begin_member(&mut line, limit);
                put(&mut line, "r", reading.remaining);
                put(&mut line, "t", reset(reading));
            }
            headers.insert(RATE_LIMIT_POLICY, policy.clone());
            headers.insert(RATE_LIMIT, value(line.freeze()));
        }
        Dialect::Legacy => write_tightest(headers, &LEGACY, limits, verdict),
        Dialect::X => write_tightest(headers, &X, limits, verdict),
        Dialect::Off => {}
    }
}

fn write_tightest(
    headers: &mut HeaderMap,
    names: &[HeaderName; 3],
    limits: &[Arc<Limit>],
    verdict: &Verdict,
) {
    let tightest = match verdict.outcome {
        Outcome::Refused { by, .. } => Some(by),
        Outcome::Admitted { .. } => (0..verdict.readings.len()).min_by_key(|&index| {
            let Reading { remaining, next } = verdict.readings[index];
            (remaining, std::cmp::Reverse(next))
        }),
    };
    let Some((limit, reading)) =
        tightest.and_then(|index| limits.get(index).zip(verdict.readings.get(index)))
    else {
        return;
    };
    let values = [limit.quota.capacity().get(), reading.remaining, reset(reading)];
    for (name, value) in names.iter().zip(values) {
        headers.insert(name.clone(), HeaderValue::from(value));
    }
}

/// Seconds to the next token, rounded up; 0 only for a bucket that is full.
fn reset(reading: &Reading) -> u32 {
    if reading.next.is_zero() { 0 } else { whole_seconds(reading.next) }
}

/// ⌈seconds an empty bucket takes to fill⌉.
fn window(quota: Quota) -> u32 {
    whole_seconds(quota.refill())
}

/// Limit names are checked when the policy is made: none needs escaping in a quoted string.
fn begin_member(line: &mut BytesMut, limit: &Limit) {
    if !line.is_empty() {
        line.put_slice(b", ");
    }
    line.put_u8(b'"');
    line.put_slice(limit.name.as_bytes());
    line.put_u8(b'"');
}

fn put(line: &mut BytesMut, parameter: &str, number: u32) {
    line.put_u8(b';');
    line.put_slice(parameter.as_bytes());
    line.put_u8(b'=');
    line.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn value(line: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(line).expect("limit names and digits are visible ASCII")
}
