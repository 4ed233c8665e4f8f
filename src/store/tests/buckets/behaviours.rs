//! The promises one by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::throttle::{Buckets as _, ChargeOutcome};
use tokio::time::sleep;

use super::bench::{AT_ONCE, Bench, HOUR, Kind, Tap, draw, judge, refused};

pub(crate) async fn a_burst_passes_at_once_and_what_follows_waits_for_its_token(kind: Kind) {
    let gateway = Bench::new(kind).gateway();
    let tap = Tap::new(HOUR, 3);
    let began = Instant::now();
    for remaining in [3, 2, 1, 0] {
        let verdict = draw(&gateway, &[&tap]).await;
        assert_eq!(verdict.outcome, AT_ONCE);
        assert_eq!(verdict.readings[0].remaining, remaining);
    }
    // The second time it may be known without asking; what is told is the same.
    for _ in 0..3 {
        let verdict = draw(&gateway, &[&tap]).await;
        let (wait, by) = refused(verdict.outcome);
        assert!(wait <= HOUR && wait + began.elapsed() >= HOUR, "{wait:?}");
        assert_eq!((by, verdict.readings[0].remaining), (0, 0));
        assert_eq!(verdict.readings[0].next, wait);
    }
}

pub(crate) async fn whoever_waits_as_told_is_admitted(kind: Kind) {
    let gateway = Bench::new(kind).gateway();
    let tap = Tap::new(Duration::from_millis(120), 0);
    let mut refusals = 0;
    for _ in 0..5 {
        while let ChargeOutcome::Rejected { wait, .. } = tap.draw(&gateway).await {
            refusals += 1;
            sleep(wait).await;
        }
    }
    // Asked again at once, it is refused; asked again after the wait, it is not.
    assert!(refusals <= 4, "{refusals}");
}

pub(crate) async fn all_limits_admit_or_none_is_charged(kind: Kind) {
    let bench = Bench::new(kind);
    // Two of them: what one has learnt must not help the other to the right answer.
    let (gateway, other) = (bench.gateway(), bench.gateway());
    let (wide, tight) = (Tap::new(HOUR, 3), Tap::new(HOUR, 0));
    assert_eq!(draw(&gateway, &[&wide, &tight]).await.outcome, AT_ONCE);
    for _ in 0..3 {
        for gateway in [&gateway, &other] {
            let verdict = draw(gateway, &[&wide, &tight]).await;
            assert_eq!(refused(verdict.outcome).1, 1);
            let left: Vec<_> = verdict.readings.iter().map(|it| it.remaining).collect();
            assert_eq!(left, [3, 0]);
        }
    }
    for _ in 0..3 {
        assert_eq!(wide.draw(&other).await, AT_ONCE);
    }
    refused(wide.draw(&other).await);
}

pub(crate) async fn each_limit_that_rejects_states_its_own_wait(kind: Kind) {
    let bench = Bench::new(kind);
    let (gateway, other) = (bench.gateway(), bench.gateway());
    let (short, long, wide) = (
        Tap::new(HOUR, 0),
        Tap::new(HOUR * 5, 0),
        Tap::new(HOUR * 9, 3),
    );
    let outflow = Tap::new(HOUR * 4, 0).delaying(HOUR);
    let taps = [&short, &wide, &long, &outflow];
    let began = Instant::now();
    assert_eq!(draw(&gateway, &taps).await.outcome, AT_ONCE);
    for gateway in [&gateway, &gateway, &other, &other] {
        let verdict = draw(gateway, &taps).await;
        assert_eq!(verdict.rejecting()[..], [2, 3, 0]);
        let (wait, by) = refused(verdict.outcome);
        assert_eq!((by, verdict.readings[2].next), (2, wait));
        // `outflow` admits again when its slot is `max_delay` away.
        for (index, hours) in [(0, 1), (1, 9), (2, 5), (3, 3)] {
            let (next, due) = (verdict.readings[index].next, HOUR * hours);
            assert!(
                next <= due && next + began.elapsed() >= due,
                "{index}: {next:?}"
            );
        }
    }
}

pub(crate) async fn a_request_takes_what_it_costs(kind: Kind) {
    let gateway = Bench::new(kind).gateway();
    let tap = Tap::new(HOUR, 4);
    for remaining in [3, 1] {
        let verdict = gateway.charge(&[tap.charge(2)], &[]).await.decision;
        assert_eq!(verdict.outcome, AT_ONCE);
        assert_eq!(verdict.readings[0].remaining, remaining);
    }
    let dear = gateway.charge(&[tap.charge(2)], &[]).await.decision;
    assert!(refused(dear.outcome).0 <= HOUR);
    // One is left, and whoever wants no more gets it, though the bucket has just refused.
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    refused(tap.draw(&gateway).await);
}

pub(crate) async fn a_cost_beyond_the_bucket_is_never_met(kind: Kind) {
    let gateway = Bench::new(kind).gateway();
    for tap in [Tap::new(HOUR, 1), Tap::new(HOUR, 1).delaying(HOUR * 9)] {
        let verdict = gateway.charge(&[tap.charge(3)], &[]).await.decision;
        assert!(refused(verdict.outcome).0 > HOUR * 1_000_000);
        assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    }
}

pub(crate) async fn a_delaying_limit_hands_out_slots_in_order(kind: Kind) {
    let gateway = Bench::new(kind).gateway();
    let tap = Tap::new(HOUR, 0).delaying(HOUR * 2);
    let began = Instant::now();
    for slot in 0..3 {
        let ChargeOutcome::Admitted { delay } = tap.draw(&gateway).await else {
            panic!("slot {slot} is within reach");
        };
        let due = HOUR * slot;
        assert!(delay <= due && delay + began.elapsed() >= due, "{delay:?}");
    }
    // The slot three hours away is out of reach until it is two hours away.
    let (wait, _) = refused(tap.draw(&gateway).await);
    assert!(wait <= HOUR && wait + began.elapsed() >= HOUR, "{wait:?}");
}

pub(crate) async fn a_watched_limit_is_counted_by_itself(kind: Kind) {
    let gateway = Bench::new(kind).gateway();
    let (tight, watched, other) = (Tap::new(HOUR, 0), Tap::new(HOUR, 2), Tap::new(HOUR, 9));
    let mut exceeded: Vec<Vec<usize>> = Vec::new();
    for request in 0..6 {
        let judgement = judge(&gateway, &[&tight], &[&other, &watched]).await;
        assert_eq!(judgement.decision.outcome == AT_ONCE, request == 0);
        assert_eq!(judgement.decision.readings.len(), 1);
        exceeded.push(judgement.exceeded.to_vec());
    }
    // Every request is counted, those too that the enforced limit refused.
    let beyond = [vec![], vec![], vec![], vec![1], vec![1], vec![1]];
    assert_eq!(exceeded, beyond);
    // And by nothing else: without an enforced limit all pass.
    let judgement = judge(&gateway, &[], &[&watched, &watched]).await;
    assert_eq!(judgement.decision.outcome, AT_ONCE);
    assert_eq!(judgement.exceeded[..], [0, 1]);
}

pub(crate) async fn gateways_share_a_bucket(kind: Kind) {
    let bench = Bench::new(kind);
    let gateways = [bench.gateway(), bench.gateway()];
    let tap = Tap::new(HOUR, 3);
    for turn in 0..4 {
        assert_eq!(tap.draw(&gateways[turn % 2]).await, AT_ONCE);
    }
    for gateway in &gateways {
        refused(tap.draw(gateway).await);
    }
}

/// In two limits: on a cluster they are in different slots, and every refusal by one is a refund by the other.
pub(crate) async fn a_crowd_gets_no_more_than_the_quota(kind: Kind) {
    const INTERVAL: Duration = Duration::from_millis(5);
    const BURST: u32 = 10;
    let bench = Bench::new(kind);
    let gateways = [bench.gateway(), bench.gateway()];
    let taps = Arc::new([Tap::new(INTERVAL, BURST), Tap::new(INTERVAL * 2, BURST * 3)]);
    let began = Instant::now();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (gateway, taps) = (gateways[task % 2].clone(), Arc::clone(&taps));
            tokio::spawn(async move {
                let mut admitted = 0;
                while began.elapsed() < Duration::from_millis(500) {
                    let verdict = draw(&gateway, &[&taps[0], &taps[1]]).await;
                    admitted += u128::from(verdict.is_admitted());
                    tokio::task::yield_now().await;
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    let elapsed = began.elapsed();
    for (burst, interval) in [(BURST, INTERVAL), (BURST * 3, INTERVAL * 2)] {
        let most = u128::from(burst) + 1 + elapsed.as_nanos() / interval.as_nanos();
        assert!(admitted <= most, "{admitted} of {most} in {elapsed:?}");
    }
    // It is a limit and not a wall.
    assert!(admitted > u128::from(BURST), "{admitted} in {elapsed:?}");
}
