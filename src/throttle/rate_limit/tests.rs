use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;

use super::*;
use crate::metrics::LimitMetrics;
use crate::respond::is_rate_limit_field;
use crate::throttle::{Exceed, KeyPart, Limit, Mode, OnStoreError, QuotaSince, RetryAfterForm};

const ADMITTED: ChargeOutcome = ChargeOutcome::Admitted {
    delay: Duration::ZERO,
};

pub(super) fn route_limit(limit: Limit) -> RouteLimit {
    RouteLimit {
        metrics: LimitMetrics::new(&"all".into(), &limit.name),
        limit: Arc::new(limit),
        census: None,
    }
}

fn limit(name: &str, count: u32, period: Duration, burst: u32) -> RouteLimit {
    route_limit(Limit {
        name: name.into(),
        quota: Quota::new(NonZeroU32::new(count).unwrap(), period, burst).unwrap(),
        quota_since: QuotaSince::default(),
        key: Box::new([KeyPart::Client]),
        exceed: Exceed::Reject,
        mode: Mode::Enforce,
        retry_after: RetryAfterForm::Seconds,
        on_store_error: OnStoreError::Local,
        log_key: false,
    })
}

/// Returns two limits: one request per second with burst 3, and 100 requests per hour.
fn device_and_hourly() -> [RouteLimit; 2] {
    [
        limit("device", 1, Duration::from_secs(1), 3),
        limit("hourly", 100, Duration::from_hours(1), 99),
    ]
}

fn reading(remaining: u32, millis: u64) -> BucketReading {
    BucketReading {
        remaining,
        next: Duration::from_millis(millis),
        rejects: false,
    }
}

/// Returns the state of the bucket of a limit that rejected the request.
fn rejecting(remaining: u32, millis: u64) -> BucketReading {
    BucketReading {
        rejects: true,
        ..reading(remaining, millis)
    }
}

/// Returns the headers that the gateway writes, as sorted lines `name: value`.
fn written(dialect: Dialect, limits: &[RouteLimit], decision: &Decision) -> Vec<String> {
    let mut headers = HeaderMap::new();
    let clock = Clock::real();
    write(
        &mut headers,
        dialect,
        limits,
        &policy(limits),
        decision,
        &clock,
    );
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_draft_dialect_lists_all_limits_in_route_order() {
    let limits = device_and_hourly();
    let mut decision = Decision {
        outcome: ADMITTED,
        readings: smallvec![reading(2, 300)],
    };
    assert_eq!(
        written(Dialect::Draft, &limits[..1], &decision),
        [
            r#"ratelimit-policy: "device";q=4;w=4"#,
            r#"ratelimit: "device";r=2;t=1"#,
        ]
    );
    decision.readings.push(reading(99, 36_000));
    assert_eq!(
        written(Dialect::Draft, &limits, &decision),
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
    // If the burst is the default (`count - 1`), the window equals the period of the rate.
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
fn the_reset_is_zero_only_for_a_full_bucket() {
    let limits = device_and_hourly();
    let state = |reading: BucketReading| {
        let decision = Decision {
            outcome: ADMITTED,
            readings: smallvec![reading],
        };
        written(Dialect::Draft, &limits[..1], &decision).remove(1)
    };
    assert_eq!(state(reading(4, 0)), r#"ratelimit: "device";r=4;t=0"#);
    assert_eq!(state(reading(3, 1)), r#"ratelimit: "device";r=3;t=1"#);
    assert_eq!(state(reading(3, 1_000)), r#"ratelimit: "device";r=3;t=1"#);
    assert_eq!(state(reading(0, 1_001)), r#"ratelimit: "device";r=0;t=2"#);
}

#[test]
fn legacy_and_x_show_the_tightest_limit() {
    let limits = device_and_hourly();
    let mut decision = Decision {
        outcome: ADMITTED,
        readings: smallvec![reading(2, 300), reading(1, 36_000)],
    };
    for (dialect, prefix) in [(Dialect::Legacy, ""), (Dialect::X, "x-")] {
        assert_eq!(
            written(dialect, &limits, &decision),
            [("limit", 100), ("remaining", 1), ("reset", 36)]
                .map(|(name, value)| format!("{prefix}ratelimit-{name}: {value}"))
        );
    }

    // Of two limits with equally many remaining tokens, the limit with the later reset is reported.
    decision.readings = smallvec![reading(1, 300), reading(1, 36_000)];
    assert!(written(Dialect::Legacy, &limits, &decision).contains(&"ratelimit-limit: 100".into()));
}

#[test]
fn legacy_and_x_show_the_rejecting_limit_on_a_rejection() {
    let limits = device_and_hourly();
    let decision = Decision {
        outcome: ChargeOutcome::Rejected {
            wait: Duration::from_millis(1_200),
            by: 0,
        },
        // The first limit rejects the request although it has more tokens than the second, because a request can cost
        // several tokens.
        readings: smallvec![rejecting(2, 1_200), reading(1, 900)],
    };
    let lines = written(Dialect::X, &limits, &decision);
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
fn the_dialect_off_writes_no_headers() {
    let limits = device_and_hourly();
    let decision = Decision {
        outcome: ADMITTED,
        readings: smallvec![reading(2, 300), reading(99, 36_000)],
    };
    assert!(written(Dialect::Off, &limits, &decision).is_empty());
}

#[test]
fn members_that_reject_come_first_longest_wait_first() {
    let limits = ["a", "b", "c", "d", "e"].map(|name| limit(name, 1, Duration::from_secs(1), 3));
    let decision = Decision {
        outcome: ChargeOutcome::Rejected {
            wait: Duration::from_secs(9),
            by: 2,
        },
        readings: smallvec![
            reading(4, 0),
            rejecting(0, 1_500),
            rejecting(2, 9_000),
            reading(1, 99_000),
            rejecting(0, 1_500),
        ],
    };
    let lines = written(Dialect::Draft, &limits, &decision);
    assert!(lines[0].starts_with(r#"ratelimit-policy: "a";q=4;w=4, "b";"#));
    assert_eq!(
        lines[1],
        r#"ratelimit: "c";r=2;t=9, "b";r=0;t=2, "e";r=0;t=2, "a";r=4;t=0, "d";r=1;t=99"#
    );
}

#[test]
fn rate_limit_headers_of_all_dialects_are_recognised() {
    for dialect in [Dialect::Draft, Dialect::Legacy, Dialect::X] {
        for name in dialect.header_names() {
            assert!(is_rate_limit_field(&name.parse().unwrap()), "{name}");
        }
    }
    assert!(is_rate_limit_field(&HeaderName::from_static(
        "x-ratelimit-limit-minute"
    )));
    assert!(!is_rate_limit_field(&HeaderName::from_static(
        "retry-after"
    )));
}

#[test]
fn header_names_lists_exactly_the_written_headers() {
    let limits = device_and_hourly();
    let decision = Decision {
        outcome: ADMITTED,
        readings: smallvec![reading(2, 300), reading(99, 36_000)],
    };
    for dialect in [Dialect::Draft, Dialect::Legacy, Dialect::X, Dialect::Off] {
        let mut listed: Vec<_> = dialect
            .header_names()
            .iter()
            .map(|name| name.to_lowercase())
            .collect();
        listed.sort_unstable();
        let mut headers = HeaderMap::new();
        let (policy, clock) = (policy(&limits), Clock::real());
        write(&mut headers, dialect, &limits, &policy, &decision, &clock);
        let mut sent: Vec<_> = headers.keys().map(ToString::to_string).collect();
        sent.sort_unstable();
        assert_eq!(sent, listed);
    }
}
