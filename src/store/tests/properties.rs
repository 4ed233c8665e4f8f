//! Properties of rate limit buckets in memory that hold for every quota, every state and every order of events.
//!
//! - `decisions` tests single decisions.
//! - `traces` compares histories with a model that counts tokens instead of time.
//! - `full_table` has more clients than the store can track.
//! - `threads` has several threads that charge the same buckets.
//!
//! Failing cases are stored in `tests/regressions`.

mod decisions;
mod full_table;
mod model;
mod threads;
mod traces;

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use crate::clock::Clock;
use crate::throttle::{
    BucketKey, Charge, ChargeOutcome, Decision, Exceed, KeyPart, Limit, Mode, OnStoreError, Quota,
    QuotaSince, RetryAfterForm,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Creates a configuration that runs `cases` cases and stores failing cases in `tests/regressions`.
fn cases(cases: u32) -> ProptestConfig {
    let regressions = FileFailurePersistence::Direct("tests/regressions/properties.txt");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(regressions)),
        ..ProptestConfig::default()
    }
}

/// Generates any valid quota, with intervals from a nanosecond to a year and bursts from 0 to 2³¹−1.
fn any_quota() -> impl Strategy<Value = Quota> {
    let count = (0_u32..32).prop_flat_map(|bits| 1..=u32::MAX >> (31 - bits));
    let period = (0_u32..55).prop_flat_map(|bits| 1..=1_u64 << bits);
    let burst = (0_u32..31).prop_flat_map(|bits| 0..=(1_u32 << bits) - 1);
    (count, period, burst).prop_filter_map("a valid quota", |(count, period, burst)| {
        let count = NonZeroU32::new(count)?;
        Quota::new(count, Duration::from_nanos(period), burst).ok()
    })
}

/// Generates a quota whose bucket a short trace can empty and refill many times.
fn small_quota(scale: u64) -> impl Strategy<Value = Quota> {
    (1_u64..40, 0_u32..6).prop_map(move |(interval, burst)| {
        Quota::new(
            NonZeroU32::MIN,
            Duration::from_nanos(interval * scale),
            burst,
        )
        .expect("a quota of at most minutes")
    })
}

/// Generates the behaviour of a rate limit: it rejects requests, or delays them by up to `longest` nanoseconds.
fn any_exceed(longest: u64) -> impl Strategy<Value = Exceed> {
    prop_oneof![
        Just(Exceed::Reject),
        (0..=longest).prop_map(|max| Exceed::Delay {
            max: Duration::from_nanos(max)
        }),
    ]
}

fn limit(id: u16, quota: Quota, exceed: Exceed) -> Limit {
    Limit {
        name: format!("limit-{id}").into(),
        quota,
        quota_since: QuotaSince::default(),
        key: Box::new([KeyPart::Client]),
        exceed,
        mode: Mode::Enforce,
        retry_after: RetryAfterForm::Seconds,
        on_store_error: OnStoreError::Local,
        log_key: false,
    }
}

fn charge(limit: &Limit, bucket: BucketKey, cost: u32) -> Charge<'_> {
    Charge {
        limit,
        bucket,
        cost: NonZeroU32::new(cost).expect("a cost is at least one token"),
    }
}

fn virtual_clock() -> Clock {
    Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000))
}

fn admitted(decision: &Decision) -> bool {
    matches!(decision.outcome, ChargeOutcome::Admitted { .. })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("less than 584 years")
}
