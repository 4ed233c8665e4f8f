//! Tests with more clients than the store can track. A client that shares an overflow bucket can be rejected more often
//! than a client with its own bucket, but no client is admitted more often.

use std::time::Duration;

use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, ChargeOutcome, Exceed, Quota};
use proptest::prelude::*;

use super::model::{Credit, ModelDecision, keeps_quota};
use super::{cases, charge, limit, nanos, small_quota, virtual_clock};

const CLIENTS: u64 = 12;

/// Returns the bucket of a client. Clients whose numbers are equal modulo 4 share a shard, and so an overflow bucket.
fn bucket(limit: u64, client: u64) -> BucketKey {
    BucketKey {
        high: (limit * CLIENTS + client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        low: client % 4,
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn no_client_gets_more_than_its_quota_and_no_debt_is_lost(
        max_clients in 0_usize..8,
        quotas in prop::collection::vec(small_quota(1), 1..4),
        steps in prop::collection::vec((0_u64..8, 0..CLIENTS), 1..300),
    ) {
        let clock = virtual_clock();
        let buckets = MemoryBuckets::new(max_clients, clock.clone());
        let limits: Vec<_> = (0..)
            .zip(&quotas)
            .map(|(id, &quota)| limit(id, quota, Exceed::Reject))
            .collect();
        // The model computes the credit that each client would have with its own buckets.
        let full = || quotas.iter().map(|&quota| Credit::full(quota)).collect::<Vec<_>>();
        let mut credits: Vec<_> = (0..CLIENTS).map(|_| full()).collect();
        let mut admissions = vec![Vec::new(); credits.len()];
        let mut now = 0;
        for (later, client) in steps {
            clock.advance(Duration::from_nanos(later));
            now += later;
            let charges: Vec<_> = (0..)
                .zip(&limits)
                .map(|(index, limit)| charge(limit, bucket(index, client), 1))
                .collect();
            let decision = buckets.charge_now(&charges);
            prop_assert!(buckets.tracked() <= max_clients);

            let client = usize::try_from(client).unwrap();
            let alone = credits[client].iter_mut().zip(&limits).map(|(credit, limit)| {
                credit.accrue(limit.quota, now);
                credit.decide(limit, 1)
            });
            let longest = alone
                .map(|decision| match decision {
                    ModelDecision::Admits { .. } => 0,
                    ModelDecision::Rejects { wait } => wait,
                })
                .max();
            match decision.outcome {
                ChargeOutcome::Admitted { .. } => {
                    prop_assert_eq!(longest, Some(0), "admitted beyond its quota");
                    for (credit, &quota) in credits[client].iter_mut().zip(&quotas) {
                        credit.spend(quota, 1);
                    }
                    admissions[client].push((now, now, 1));
                }
                ChargeOutcome::Rejected { wait, .. } => prop_assert!(Some(nanos(wait)) >= longest),
                ChargeOutcome::Unavailable => prop_assert!(false, "the memory store is always available"),
            }
            for ((credit, &quota), reading) in credits[client].iter().zip(&quotas).zip(&decision.readings) {
                prop_assert!(reading.remaining <= credit.read(quota).0, "a debt was lost");
            }
        }
        for admissions in &admissions {
            for &quota in &quotas {
                prop_assert!(keeps_quota(quota, admissions));
            }
        }
    }

    #[test]
    fn every_client_is_admitted_after_all_buckets_have_refilled(
        max_clients in 0_usize..8,
        quota in small_quota(1),
        steps in prop::collection::vec((0_u64..8, 0..CLIENTS), 1..100),
    ) {
        let clock = virtual_clock();
        let buckets = MemoryBuckets::new(max_clients, clock.clone());
        let limit = limit(0, quota, Exceed::Reject);
        for (later, client) in steps {
            clock.advance(Duration::from_nanos(later));
            buckets.charge_now(&[charge(&limit, bucket(0, client), 1)]);
        }
        clock.advance(quota.refill());
        for client in 0..CLIENTS {
            let decision = buckets.charge_now(&[charge(&limit, bucket(0, client), 1)]);
            prop_assert!(super::admitted(&decision), "client {}", client);
            clock.advance(quota.refill());
        }
    }
}

/// The store evicts full buckets first. So clients that send continuously keep their buckets while many other clients
/// send one request each.
#[test]
fn clients_that_send_once_do_not_evict_buckets_with_debt() {
    let clock = virtual_clock();
    let buckets = MemoryBuckets::new(64, clock.clone());
    let quota = Quota::new(1.try_into().unwrap(), Duration::from_secs(1), 0).unwrap();
    let limit = limit(0, quota, Exceed::Reject);
    let regulars: Vec<_> = (0..16).map(|client| bucket(1, client)).collect();
    for round in 0_u64..200 {
        for &regular in &regulars {
            let decision = buckets.charge_now(&[charge(&limit, regular, 1)]);
            let admits = round.is_multiple_of(2);
            assert_eq!(super::admitted(&decision), admits, "round {round}");
        }
        for client in 0..8 {
            let new = bucket(100 + round, client);
            buckets.charge_now(&[charge(&limit, new, 1)]);
        }
        clock.advance(Duration::from_millis(500));
    }
}
