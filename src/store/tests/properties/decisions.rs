//! Tests of single decisions: the wait of a rejection, the delay of an admission, and `Retry-After` are exact.

use std::time::{Duration, SystemTime};

use crate::clock::Moment;
use crate::respond::retry_after;
use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, ChargeOutcome, Exceed, Limit, Quota, RetryAfterForm, decide};
use proptest::prelude::*;
use proptest::sample::Index;

use super::{admitted, any_exceed, any_quota, cases, charge, limit, nanos, virtual_clock};

const BUCKET: BucketKey = BucketKey { high: 1, low: 2 };
const NANOSECOND: Duration = Duration::from_nanos(1);

/// A rate limit, the debt of its bucket in nanoseconds, and a cost that does not exceed the capacity of the bucket.
#[derive(Clone, Debug)]
struct ChargeCase {
    limit: Limit,
    owed: u64,
    cost: u32,
}

fn any_case() -> impl Strategy<Value = ChargeCase> {
    (any_quota(), any::<Index>(), any::<Index>()).prop_flat_map(|(quota, owed, cost)| {
        let refill = nanos(quota.refill());
        any_exceed(refill).prop_map(move |exceed| {
            let max_delay = match exceed {
                Exceed::Reject => 0,
                Exceed::Delay { max } => nanos(max),
            };
            let most = usize::try_from(refill + max_delay).unwrap();
            let capacity = usize::try_from(quota.capacity().get()).unwrap();
            ChargeCase {
                limit: limit(0, quota, exceed),
                owed: owed.index(most + 1) as u64,
                cost: u32::try_from(cost.index(capacity) + 1).unwrap(),
            }
        })
    })
}

fn any_moment() -> impl Strategy<Value = Moment> {
    (0_u32..62).prop_flat_map(|bits| (0..=1_u64 << bits).prop_map(Moment::from_nanos))
}

fn any_wall() -> impl Strategy<Value = SystemTime> {
    (0_u64..200_000_000_000, 0_u32..1_000_000_000)
        .prop_map(|(seconds, nanos)| SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn a_request_is_rejected_one_nanosecond_before_its_wait_ends_and_admitted_then(
        all in prop::collection::vec(any_case(), 1..4),
        now in any_moment(),
    ) {
        let charges: Vec<_> = all
            .iter()
            .map(|case| charge(&case.limit, BUCKET, case.cost))
            .collect();
        let state: Vec<_> = all
            .iter()
            .map(|case| now.after(Duration::from_nanos(case.owed)))
            .collect();
        let decide_at = |at: Moment| decide(&charges, &mut state.clone(), at).outcome;
        if let ChargeOutcome::Rejected { wait, by } = decide_at(now) {
            prop_assert!(!wait.is_zero());
            let outcome = decide_at(now.after(wait.saturating_sub(NANOSECOND)));
            prop_assert_eq!(outcome, ChargeOutcome::Rejected { wait: NANOSECOND, by });
            let outcome = decide_at(now.after(wait));
            prop_assert!(matches!(outcome, ChargeOutcome::Admitted { .. }), "{:?}", outcome);
        }
    }

    #[test]
    fn a_delay_lasts_until_the_slot_and_at_most_the_maximum(
        case in any_case(),
        now in any_moment(),
    ) {
        let ChargeCase { limit, owed, cost } = case;
        let charge = [charge(&limit, BUCKET, cost)];
        let state = [now.after(Duration::from_nanos(owed))];
        let ChargeOutcome::Admitted { delay } = decide(&charge, &mut state.clone(), now).outcome else {
            return Ok(());
        };
        match limit.exceed {
            Exceed::Reject => prop_assert!(delay.is_zero()),
            Exceed::Delay { max } => prop_assert!(delay <= max),
        }
        // The same rate limit with `Exceed::Reject` must admit the request at the time when the delay ends, and not
        // earlier.
        let strict = Limit { exceed: Exceed::Reject, ..limit };
        let charge = [super::charge(&strict, BUCKET, cost)];
        let decide_at = |at| decide(&charge, &mut state.clone(), at);
        prop_assert!(admitted(&decide_at(now.after(delay))));
        if !delay.is_zero() {
            prop_assert!(!admitted(&decide_at(now.after(delay.saturating_sub(NANOSECOND)))));
        }
    }

    #[test]
    fn retry_after_is_never_early_and_late_by_rounding_only(
        seconds in 0_u64..i32::MAX as u64,
        fraction in 0_u32..1_000_000_000,
        wall in any_wall(),
    ) {
        let wait = Duration::new(seconds, fraction);
        let second = Duration::from_secs(1);
        let sent = retry_after::header(wait, RetryAfterForm::Seconds, wall);
        let sent = Duration::from_secs(sent.to_str().unwrap().parse().unwrap());
        prop_assert!(sent >= wait.max(second));
        prop_assert!(sent < wait.max(NANOSECOND) + second);

        let sent = retry_after::header(wait, RetryAfterForm::HttpDate, wall);
        let sent = httpdate::parse_http_date(sent.to_str().unwrap()).unwrap();
        prop_assert!(sent >= wall + wait.max(second));
        prop_assert!(sent < wall + wait.max(second) + second);

        let millisecond = Duration::from_millis(1);
        let sent = retry_after::milliseconds(wait);
        let sent = Duration::from_millis(sent.to_str().unwrap().parse().unwrap());
        prop_assert!(sent >= wait.max(millisecond));
        prop_assert!(sent < wait.max(NANOSECOND) + millisecond);
    }

    #[test]
    fn a_single_client_that_waits_for_retry_after_is_admitted(
        quota in any_quota(),
        start in 0_u64..10_000_000_000,
        form in prop_oneof![Just(RetryAfterForm::Seconds), Just(RetryAfterForm::HttpDate)],
    ) {
        let clock = virtual_clock();
        clock.advance(Duration::from_nanos(start));
        let buckets = MemoryBuckets::new(10, clock.clone());
        let limit = limit(0, quota, Exceed::Reject);
        let all = charge(&limit, BUCKET, quota.capacity().get());
        prop_assert!(admitted(&buckets.charge_now(&[all])));
        let ChargeOutcome::Rejected { wait, .. } = buckets.charge_now(&[all]).outcome else {
            panic!("an empty bucket must reject");
        };
        let header = retry_after::header(wait, form, clock.wall());
        let header = header.to_str().unwrap();
        clock.advance(match form {
            RetryAfterForm::Seconds => Duration::from_secs(header.parse().unwrap()),
            RetryAfterForm::HttpDate => {
                let date = httpdate::parse_http_date(header).unwrap();
                date.duration_since(clock.wall()).unwrap()
            }
        });
        prop_assert!(admitted(&buckets.charge_now(&[all])));
    }

    #[test]
    fn exactly_the_remaining_tokens_can_be_taken(
        burst in 0_u32..50,
        interval in 1_u64..10_000_000_000_000,
        owed in any::<Index>(),
        now in any_moment(),
        delays in any::<bool>(),
    ) {
        let quota = Quota::new(1.try_into().unwrap(), Duration::from_nanos(interval), burst).unwrap();
        let max = if delays { quota.refill() } else { Duration::ZERO };
        let limit = limit(0, quota, Exceed::Delay { max });
        let owed = owed.index(usize::try_from(nanos(quota.refill() + max)).unwrap() + 1) as u64;
        let full_at = now.after(Duration::from_nanos(owed));
        let reading = quota.read(full_at, now);

        let mut state = [full_at];
        let immediately = ChargeOutcome::Admitted { delay: Duration::ZERO };
        let mut is_admitted = || decide(&[charge(&limit, BUCKET, 1)], &mut state, now).outcome == immediately;
        for _ in 0..reading.remaining {
            prop_assert!(is_admitted());
        }
        prop_assert!(!is_admitted());

        let then = |at| quota.read(full_at, at).remaining;
        if reading.next.is_zero() {
            prop_assert_eq!(reading.remaining, quota.capacity().get());
        } else {
            prop_assert_eq!(then(now.after(reading.next)), reading.remaining + 1);
            prop_assert_eq!(then(now.after(reading.next.saturating_sub(NANOSECOND))), reading.remaining);
        }
    }
}
