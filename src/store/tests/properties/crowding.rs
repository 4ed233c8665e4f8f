//! More clients than the store has room for: some may be refused more, none may be admitted more.

use std::time::Duration;

use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, ChargeOutcome, Exceed, Quota};
use proptest::prelude::*;

use super::model::{Answer, Credit, keeps_quota};
use super::{cases, charge, limit, nanos, small_quota, standing_clock};

const CLIENTS: u64 = 12;

/// Three clients each fall on the same shared bucket if their shard is the same.
fn bucket(limit: u64, client: u64) -> BucketKey {
    BucketKey {
        high: (limit * CLIENTS + client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        low: client % 4,
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn no_client_gets_more_than_its_quota_and_no_debt_is_forgotten(
        max_clients in 0_usize..8,
        quotas in prop::collection::vec(small_quota(1), 1..4),
        steps in prop::collection::vec((0_u64..8, 0..CLIENTS), 1..300),
    ) {
        let clock = standing_clock();
        let buckets = MemoryBuckets::new(max_clients, clock.clone());
        let limits: Vec<_> = (0..)
            .zip(&quotas)
            .map(|(id, &quota)| limit(id, quota, Exceed::Reject))
            .collect();
        // What each client owes of its own, had it buckets to itself.
        let full = || quotas.iter().map(|&quota| Credit::full(quota)).collect::<Vec<_>>();
        let mut owed: Vec<_> = (0..CLIENTS).map(|_| full()).collect();
        let mut admissions = vec![Vec::new(); owed.len()];
        let mut now = 0;
        for (later, client) in steps {
            clock.advance(Duration::from_nanos(later));
            now += later;
            let charges: Vec<_> = (0..)
                .zip(&limits)
                .map(|(index, limit)| charge(limit, bucket(index, client), 1))
                .collect();
            let verdict = buckets.charge_now(&charges);
            prop_assert!(buckets.tracked() <= max_clients);

            let client = usize::try_from(client).unwrap();
            let alone = owed[client].iter_mut().zip(&limits).map(|(credit, limit)| {
                credit.accrue(limit.quota, now);
                credit.ask(limit, 1)
            });
            let longest = alone
                .map(|answer| match answer {
                    Answer::Passes { .. } => 0,
                    Answer::Waits { at_least } => at_least,
                })
                .max();
            match verdict.outcome {
                ChargeOutcome::Admitted { .. } => {
                    prop_assert_eq!(longest, Some(0), "admitted beyond its quota");
                    for (credit, &quota) in owed[client].iter_mut().zip(&quotas) {
                        credit.spend(quota, 1);
                    }
                    admissions[client].push((now, now, 1));
                }
                ChargeOutcome::Rejected { wait, .. } => prop_assert!(Some(nanos(wait)) >= longest),
                ChargeOutcome::Unavailable => prop_assert!(false, "memory is always there"),
            }
            for ((credit, &quota), reading) in owed[client].iter().zip(&quotas).zip(&verdict.readings) {
                prop_assert!(reading.remaining <= credit.read(quota).0, "a debt was forgotten");
            }
        }
        for admissions in &admissions {
            for &quota in &quotas {
                prop_assert!(keeps_quota(quota, admissions));
            }
        }
    }

    /// Whatever came before, once everything has had time to refill everybody is served again.
    #[test]
    fn crowding_passes(
        max_clients in 0_usize..8,
        quota in small_quota(1),
        steps in prop::collection::vec((0_u64..8, 0..CLIENTS), 1..100),
    ) {
        let clock = standing_clock();
        let buckets = MemoryBuckets::new(max_clients, clock.clone());
        let limit = limit(0, quota, Exceed::Reject);
        for (later, client) in steps {
            clock.advance(Duration::from_nanos(later));
            buckets.charge_now(&[charge(&limit, bucket(0, client), 1)]);
        }
        clock.advance(quota.refill());
        for client in 0..CLIENTS {
            let verdict = buckets.charge_now(&[charge(&limit, bucket(0, client), 1)]);
            prop_assert!(super::admitted(&verdict), "client {}", client);
            clock.advance(quota.refill());
        }
    }
}

/// Full buckets leave first: clients who keep calling are tracked, whoever else passes by.
#[test]
fn passers_by_do_not_push_out_those_who_owe() {
    let clock = standing_clock();
    let buckets = MemoryBuckets::new(64, clock.clone());
    let quota = Quota::new(1.try_into().unwrap(), Duration::from_secs(1), 0).unwrap();
    let limit = limit(0, quota, Exceed::Reject);
    let regulars: Vec<_> = (0..16).map(|client| bucket(1, client)).collect();
    for round in 0_u64..200 {
        for &regular in &regulars {
            let verdict = buckets.charge_now(&[charge(&limit, regular, 1)]);
            let exact = round.is_multiple_of(2);
            assert_eq!(super::admitted(&verdict), exact, "round {round}");
        }
        for passer_by in 0..8 {
            let stranger = bucket(100 + round, passer_by);
            buckets.charge_now(&[charge(&limit, stranger, 1)]);
        }
        clock.advance(Duration::from_millis(500));
    }
}
