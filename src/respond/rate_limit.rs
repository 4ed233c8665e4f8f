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
        Dialect::X => &[
            "X-RateLimit-Limit",
            "X-RateLimit-Remaining",
            "X-RateLimit-Reset",
        ],
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
        Outcome::Admitted { .. } | Outcome::Unavailable => {
            (0..verdict.readings.len()).min_by_key(|&index| {
                let Reading { remaining, next } = verdict.readings[index];
                (remaining, std::cmp::Reverse(next))
            })
        }
    };
    let Some((limit, reading)) =
        tightest.and_then(|index| limits.get(index).zip(verdict.readings.get(index)))
    else {
        return;
    };
    let values = [
        limit.quota.capacity().get(),
        reading.remaining,
        reset(reading),
    ];
    for (name, value) in names.iter().zip(values) {
        headers.insert(name.clone(), HeaderValue::from(value));
    }
}

/// Seconds to the next token, rounded up; 0 only for a bucket that is full.
fn reset(reading: &Reading) -> u32 {
    if reading.next.is_zero() {
        0
    } else {
        whole_seconds(reading.next)
    }
}

/// Seconds in which the configured rate gives as many tokens as a full bucket has, rounded up.
fn window(quota: Quota) -> u32 {
    whole_seconds(quota.window())
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use smallvec::smallvec;

    use super::*;
    use crate::throttle::{Exceed, KeyPart, LimitId, Mode, OnStoreError, RetryAfterForm};

    const AT_ONCE: Outcome = Outcome::Admitted {
        delay: Duration::ZERO,
    };

    fn limit(name: &str, count: u32, period: Duration, burst: u32) -> Arc<Limit> {
        Arc::new(Limit {
            id: LimitId(0),
            name: name.into(),
            quota: Quota::new(NonZeroU32::new(count).unwrap(), period, burst).unwrap(),
            key: Box::new([KeyPart::Client]),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
        })
    }

    /// One a second with a burst of three, and a hundred an hour.
    fn device_and_hourly() -> [Arc<Limit>; 2] {
        [
            limit("device", 1, Duration::from_secs(1), 3),
            limit("hourly", 100, Duration::from_hours(1), 99),
        ]
    }

    fn reading(remaining: u32, millis: u64) -> Reading {
        Reading {
            remaining,
            next: Duration::from_millis(millis),
        }
    }

    /// The headers written, each as `name: value`, by name.
    fn written(dialect: Dialect, limits: &[Arc<Limit>], verdict: &Verdict) -> Vec<String> {
        let mut headers = HeaderMap::new();
        write(&mut headers, dialect, limits, &policy(limits), verdict);
        let mut lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn the_draft_names_each_limit_in_route_order() {
        let limits = device_and_hourly();
        let verdict = Verdict {
            outcome: AT_ONCE,
            readings: smallvec![reading(2, 300), reading(99, 36_000)],
        };
        assert_eq!(
            written(Dialect::Draft, &limits[..1], &verdict),
            [
                r#"ratelimit-policy: "device";q=4;w=4"#,
                r#"ratelimit: "device";r=2;t=1"#,
            ]
        );
        assert_eq!(
            written(Dialect::Draft, &limits, &verdict),
            [
                r#"ratelimit-policy: "device";q=4;w=4, "hourly";q=100;w=3600"#,
                r#"ratelimit: "device";r=2;t=1, "hourly";r=99;t=36"#,
            ]
        );
    }

    #[test]
    fn a_window_is_rounded_up_to_whole_seconds() {
        let of = |count, period, burst| {
            let quota = limit("any", count, period, burst).quota;
            window(quota)
        };
        assert_eq!(of(10, Duration::from_secs(1), 0), 1);
        assert_eq!(of(2, Duration::from_secs(1), 2), 2);
        assert_eq!(of(3, Duration::from_secs(1), 3), 2);
        // At the default burst, the window is the period of the rate.
        for (count, seconds) in [
            (3, 1),
            (30, 1),
            (60, 1),
            (600, 1),
            (7, 60),
            (90, 60),
            (7, 10),
        ] {
            let period = Duration::from_secs(seconds);
            assert_eq!(u64::from(of(count, period, count - 1)), seconds, "{count}");
        }
        let year = Duration::from_hours(365 * 24);
        assert_eq!(of(1, year, 0), 31_536_000);
    }

    #[test]
    fn only_a_full_bucket_has_no_time_to_its_next_token() {
        let limits = device_and_hourly();
        let told = |reading: Reading| {
            let verdict = Verdict {
                outcome: AT_ONCE,
                readings: smallvec![reading],
            };
            written(Dialect::Draft, &limits[..1], &verdict).remove(1)
        };
        assert_eq!(told(reading(4, 0)), r#"ratelimit: "device";r=4;t=0"#);
        assert_eq!(told(reading(3, 1)), r#"ratelimit: "device";r=3;t=1"#);
        assert_eq!(told(reading(3, 1_000)), r#"ratelimit: "device";r=3;t=1"#);
        assert_eq!(told(reading(0, 1_001)), r#"ratelimit: "device";r=0;t=2"#);
    }

    #[test]
    fn one_line_dialects_show_the_tightest_limit() {
        let limits = device_and_hourly();
        let mut verdict = Verdict {
            outcome: AT_ONCE,
            readings: smallvec![reading(2, 300), reading(1, 36_000)],
        };
        for (dialect, prefix) in [(Dialect::Legacy, ""), (Dialect::X, "x-")] {
            assert_eq!(
                written(dialect, &limits, &verdict),
                [("limit", 100), ("remaining", 1), ("reset", 36)]
                    .map(|(name, value)| format!("{prefix}ratelimit-{name}: {value}"))
            );
        }

        // Of two that hold the same, the one that takes longer to come back is the tighter.
        verdict.readings = smallvec![reading(1, 300), reading(1, 36_000)];
        assert!(
            written(Dialect::Legacy, &limits, &verdict).contains(&"ratelimit-limit: 100".into())
        );
    }

    #[test]
    fn on_a_refusal_the_tightest_limit_is_the_one_that_refused() {
        let limits = device_and_hourly();
        let verdict = Verdict {
            outcome: Outcome::Refused {
                wait: Duration::from_millis(1_200),
                by: 0,
            },
            // A cost of several tokens can be refused by a limit that holds more than another.
            readings: smallvec![reading(2, 1_200), reading(1, 900)],
        };
        let lines = written(Dialect::X, &limits, &verdict);
        assert_eq!(
            lines,
            [
                "x-ratelimit-limit: 4",
                "x-ratelimit-remaining: 2",
                "x-ratelimit-reset: 2"
            ]
        );
    }

    #[test]
    fn off_writes_nothing_and_what_upstream_said_is_replaced_otherwise() {
        let limits = device_and_hourly();
        let verdict = Verdict {
            outcome: AT_ONCE,
            readings: smallvec![reading(2, 300), reading(99, 36_000)],
        };
        assert!(written(Dialect::Off, &limits, &verdict).is_empty());

        let mut headers = HeaderMap::new();
        headers.append(RATE_LIMIT, HeaderValue::from_static("theirs"));
        headers.append(RATE_LIMIT, HeaderValue::from_static("theirs too"));
        let policy = policy(&limits);
        write(&mut headers, Dialect::Draft, &limits, &policy, &verdict);
        assert_eq!(headers.get_all(RATE_LIMIT).iter().count(), 1);
    }

    #[test]
    fn every_header_written_is_among_those_a_browser_is_let_read() {
        let limits = device_and_hourly();
        let verdict = Verdict {
            outcome: AT_ONCE,
            readings: smallvec![reading(2, 300), reading(99, 36_000)],
        };
        for dialect in [Dialect::Draft, Dialect::Legacy, Dialect::X, Dialect::Off] {
            let mut listed: Vec<_> = names(dialect)
                .iter()
                .map(|name| name.to_lowercase())
                .collect();
            listed.sort_unstable();
            let mut headers = HeaderMap::new();
            write(&mut headers, dialect, &limits, &policy(&limits), &verdict);
            let mut sent: Vec<_> = headers.keys().map(ToString::to_string).collect();
            sent.sort_unstable();
            assert_eq!(sent, listed);
        }
    }
}
