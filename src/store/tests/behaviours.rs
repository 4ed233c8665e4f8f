//! The promises one by one.

mod shares;

pub(crate) use shares::*;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::idempotency::{
    Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, OnUnknown, RecordCounts,
    RecordState, Records,
};
use crate::store::StoreCapacity;

use super::bench::{Bench, Kind, TTL, answer, claim_request, id, sized_answer};

const OTHER_REQUEST: Fingerprint = Fingerprint {
    request: [8; 16],
    credentials: [8; 16],
};

fn in_scope(claim_request: ClaimRequest, key: u16, scope: u8) -> ClaimRequest {
    ClaimRequest {
        id: id(key, scope),
        ..claim_request
    }
}

pub(crate) async fn of_any_number_of_claims_exactly_one_wins(kind: Kind) {
    let bench = Bench::new(kind);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let records = bench.records.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let mut won = Vec::new();
                    for key in 0..200 {
                        match records.claim(&claim_request(key)).await.unwrap() {
                            Claim::Won(permit) => won.push(permit),
                            Claim::InFlight(_) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                    won
                })
            })
        })
        .collect();
    let won: Vec<_> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(won.len(), 200);
    assert_eq!(bench.counts().await.in_progress, 200);
}

pub(crate) async fn a_completed_key_is_answered_from_its_record(kind: Kind) {
    let bench = Bench::new(kind);
    for number in 0..20 {
        bench.run(claim_request(number), &answer(number)).await;
    }
    for _ in 0..2 {
        for number in 0..20 {
            match bench.claim(claim_request(number)).await {
                Claim::Replay(replayed) => assert_eq!(replayed, answer(number)),
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) async fn one_key_is_another_in_another_scope(kind: Kind) {
    let bench = Bench::new(kind);
    bench.run(claim_request(1), &answer(1)).await;
    bench
        .run(in_scope(claim_request(1), 1, 2), &answer(2))
        .await;
    for (scope, number) in [(1, 1), (2, 2)] {
        match bench.claim(in_scope(claim_request(1), 1, scope)).await {
            Claim::Replay(replayed) => assert_eq!(replayed, answer(number)),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn a_key_stands_for_one_request_whatever_became_of_it(kind: Kind) {
    let bench = Bench::new(kind);
    let underway = bench.win(claim_request(1)).await;
    bench.run(claim_request(2), &answer(2)).await;
    bench.lose(claim_request(3)).await;
    let entombed = bench.win(claim_request(4)).await;
    bench
        .records
        .end(entombed, ExecutionOutcome::Tombstone)
        .await
        .unwrap();
    for key in 1..=4 {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Release] {
            let mut other = claim_request(key);
            other.fingerprint = OTHER_REQUEST;
            other.settings.on_unknown = on_unknown;
            let claim = bench.claim(other).await;
            assert!(matches!(claim, Claim::Mismatch(_)), "{key}: {claim:?}");
        }
    }
    // And the originals are untouched.
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::InFlight(_)
    ));
    assert!(matches!(
        bench.claim(claim_request(2)).await,
        Claim::Replay(_)
    ));
    assert!(matches!(
        bench.claim(claim_request(3)).await,
        Claim::Unknown
    ));
    assert!(matches!(
        bench.claim(claim_request(4)).await,
        Claim::Tombstone
    ));
    drop(underway);
}

pub(crate) async fn those_who_wait_are_told_the_answer(kind: Kind) {
    let bench = Bench::new(kind);
    let permit = bench.win(claim_request(1)).await;
    let waiting = [
        bench.wait(claim_request(1)).await,
        bench.wait(claim_request(1)).await,
    ];
    let outcome = ExecutionOutcome::Completed(answer(1));
    bench.records.end(permit, outcome).await.unwrap();
    for waiting in waiting {
        match waiting.ended().await {
            ExecutionOutcome::Completed(told) => assert_eq!(told, answer(1)),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn a_released_key_can_be_claimed_again_and_those_who_wait_get_its_answer(
    kind: Kind,
) {
    let bench = Bench::new(kind);
    let permit = bench.win(claim_request(1)).await;
    let waiting = bench.wait(claim_request(1)).await;
    bench
        .records
        .end(permit, ExecutionOutcome::Released(Some(Ok(answer(1)))))
        .await
        .unwrap();
    match waiting.ended().await {
        ExecutionOutcome::Released(Some(received)) => assert_eq!(received.unwrap(), answer(1)),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.counts().await, RecordCounts::default());
    // As a request of its own: another one may take the key.
    let mut other = claim_request(1);
    other.fingerprint = OTHER_REQUEST;
    drop(bench.win(other).await);
}

pub(crate) async fn those_who_wait_for_an_answer_that_is_not_kept_are_told_so(kind: Kind) {
    let bench = Bench::new(kind);
    let permit = bench.win(claim_request(1)).await;
    let waiting = bench.wait(claim_request(1)).await;
    bench
        .records
        .end(permit, ExecutionOutcome::Tombstone)
        .await
        .unwrap();
    assert!(matches!(waiting.ended().await, ExecutionOutcome::Tombstone));
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::Tombstone
    ));
}

pub(crate) async fn a_permit_dropped_before_the_request_was_sent_frees_its_key(kind: Kind) {
    let bench = Bench::new(kind);
    let permit = bench.win(claim_request(1)).await;
    let waiting = bench.wait(claim_request(1)).await;
    drop(permit);
    assert!(matches!(
        waiting.ended().await,
        ExecutionOutcome::Released(None)
    ));
    drop(bench.win(claim_request(1)).await);
}

pub(crate) async fn a_permit_dropped_afterwards_leaves_its_key_unknown(kind: Kind) {
    let bench = Bench::new(kind);
    let mut permit = bench.win(claim_request(1)).await;
    permit.mark_sent();
    let waiting = bench.wait(claim_request(1)).await;
    drop(permit);
    assert!(matches!(waiting.ended().await, ExecutionOutcome::Unknown));
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::Unknown
    ));
}

pub(crate) async fn an_unknown_key_is_held_or_released_as_the_route_says(kind: Kind) {
    let bench = Bench::new(kind);
    bench.lose(claim_request(1)).await;
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::Unknown
    ));
    let mut released = claim_request(1);
    released.settings.on_unknown = OnUnknown::Release;
    bench.run(released, &answer(1)).await;
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::Replay(_)
    ));
    let counts = bench.counts().await;
    assert_eq!((counts.completed, counts.unknown), (1, 0));
}

pub(crate) async fn whoever_stops_waiting_leaves_nothing_behind(kind: Kind) {
    let bench = Bench::new(kind);
    let permit = bench.win(claim_request(1)).await;
    for _ in 0..1_000 {
        drop(bench.wait(claim_request(1)).await);
    }
    let waiting = bench.wait(claim_request(1)).await;
    let outcome = ExecutionOutcome::Completed(answer(1));
    bench.records.end(permit, outcome).await.unwrap();
    assert!(matches!(
        waiting.ended().await,
        ExecutionOutcome::Completed(_)
    ));
}

pub(crate) async fn every_record_expires_after_its_time_and_none_in_progress_does(kind: Kind) {
    let bench = Bench::new(kind);
    let underway = bench.win(claim_request(1)).await;
    bench.run(claim_request(2), &answer(2)).await;
    bench.lose(claim_request(3)).await;
    let entombed = bench.win(claim_request(4)).await;
    bench
        .records
        .end(entombed, ExecutionOutcome::Tombstone)
        .await
        .unwrap();

    bench.advance(bench.just_before());
    assert!(matches!(
        bench.claim(claim_request(2)).await,
        Claim::Replay(_)
    ));
    assert!(matches!(
        bench.claim(claim_request(3)).await,
        Claim::Unknown
    ));
    assert!(matches!(
        bench.claim(claim_request(4)).await,
        Claim::Tombstone
    ));
    bench.advance(TTL.saturating_sub(bench.just_before()));
    for key in 2..=4 {
        let mut another = claim_request(key);
        another.fingerprint = OTHER_REQUEST;
        drop(bench.win(another).await);
    }
    bench.advance(TTL * 100);
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::InFlight(_)
    ));
    let outcome = ExecutionOutcome::Completed(answer(1));
    bench.records.end(underway, outcome).await.unwrap();
    // Its time begins with its completion.
    bench.advance(bench.just_before());
    assert!(matches!(
        bench.claim(claim_request(1)).await,
        Claim::Replay(_)
    ));
    let counts = bench.counts().await;
    assert_eq!(
        (counts.completed, counts.unknown, counts.tombstones),
        (1, 0, 0)
    );
}

pub(crate) async fn a_scope_has_so_many_keys_and_no_more(kind: Kind) {
    let bench = Bench::new(kind);
    let three = |key, scope| {
        let mut claim_request = in_scope(claim_request(key), key, scope);
        claim_request.settings.max_keys_per_scope = NonZeroU32::new(3).unwrap();
        claim_request
    };
    bench.run(three(1, 1), &answer(1)).await;
    bench.advance(TTL / 2);
    let underway = bench.win(three(2, 1)).await;
    bench.lose(three(3, 1)).await;
    match bench.claim(three(4, 1)).await {
        Claim::ScopeFull { min_wait } => assert!(min_wait <= TTL / 2, "{min_wait:?}"),
        other => panic!("{other:?}"),
    }
    // Its own keys are answered, and others' are none of its business.
    assert!(matches!(bench.claim(three(1, 1)).await, Claim::Replay(_)));
    assert!(matches!(bench.claim(three(2, 1)).await, Claim::InFlight(_)));
    bench.run(three(4, 2), &answer(4)).await;
    // A key that is freed makes room, and so does one that expired.
    drop(underway);
    bench.settle().await;
    bench.run(three(5, 1), &answer(5)).await;
    assert!(matches!(
        bench.claim(three(6, 1)).await,
        Claim::ScopeFull { .. }
    ));
    bench.advance(TTL / 2);
    bench.run(three(6, 1), &answer(6)).await;
}

pub(crate) async fn a_scope_whose_keys_have_expired_is_not_full_whatever_else_has(kind: Kind) {
    let bench = Bench::new(kind);
    for scope in 10..=200 {
        for key in 0..8 {
            bench.lose(in_scope(claim_request(key), key, scope)).await;
        }
    }
    bench.advance(Duration::from_secs(1));
    let two = |key| {
        let mut claim_request = claim_request(key);
        claim_request.settings.max_keys_per_scope = NonZeroU32::new(2).unwrap();
        claim_request
    };
    bench.lose(two(1)).await;
    bench.lose(two(2)).await;
    assert!(matches!(bench.claim(two(3)).await, Claim::ScopeFull { .. }));
    bench.advance(TTL);
    drop(bench.win(two(3)).await);
}

pub(crate) async fn a_full_store_takes_no_new_keys_until_some_expire(kind: Kind) {
    let room = StoreCapacity {
        max_keys: 10,
        ..StoreCapacity::default()
    };
    let bench = Bench::with_room(kind, room);
    // Each key is of another client, so that none holds its share.
    let of_client = |key: u16, scope| ClaimRequest {
        client: ClientHash(key.into()),
        ..in_scope(claim_request(key), key, scope)
    };
    let underway = bench.win(of_client(0, 200)).await;
    for key in 1..10 {
        let scope = u8::try_from(key).unwrap();
        bench.run(of_client(key, scope), &answer(key)).await;
    }
    let newcomer = of_client(10, 10);
    assert!(matches!(bench.claim(newcomer).await, Claim::StoreFull));
    // Nothing was lost for it.
    assert!(matches!(
        bench.claim(in_scope(claim_request(0), 0, 200)).await,
        Claim::InFlight(_)
    ));
    for key in 1..10 {
        let scope = u8::try_from(key).unwrap();
        let claim = bench.claim(in_scope(claim_request(key), key, scope)).await;
        assert!(matches!(claim, Claim::Replay(_)), "{key}: {claim:?}");
    }
    bench.advance(TTL);
    bench.run(newcomer, &answer(10)).await;
    let counts = bench.counts().await;
    assert_eq!((counts.in_progress, counts.completed), (1, 1));
    drop(underway);
}

pub(crate) async fn answers_that_do_not_fit_leave_tombstones(kind: Kind) {
    const ANSWERS: u16 = 64;
    let room = StoreCapacity {
        max_bytes: 64 * 1024,
        ..StoreCapacity::default()
    };
    let bench = Bench::with_room(kind, room);
    for key in 0..ANSWERS {
        bench
            .run(claim_request(key), &sized_answer(key, 4_000))
            .await;
    }
    let underway = bench.win(claim_request(ANSWERS)).await;
    // A store may take its time over making room, though not much.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    let counts = loop {
        // Stores do their housekeeping when they are called.
        bench.claim(claim_request(ANSWERS)).await;
        let counts = bench.counts().await;
        if counts.bytes <= room.max_bytes && counts.tombstones > 0 {
            break counts;
        }
        assert!(std::time::Instant::now() < deadline, "{counts:?}");
        tokio::task::yield_now().await;
    };
    let mut kept = 0;
    for key in 0..ANSWERS {
        match bench.claim(claim_request(key)).await {
            Claim::Replay(replayed) => {
                assert_eq!(replayed, sized_answer(key, 4_000));
                kept += 1;
            }
            Claim::Tombstone => assert_eq!(kept, 0, "a newer answer went before an older one"),
            other => panic!("{other:?}"),
        }
    }
    assert!((5..=16).contains(&kept), "{kept} answers of 4 kB in 64 KiB");
    assert_eq!(counts.completed + counts.tombstones, u64::from(ANSWERS));
    assert!(counts.evictions >= u64::from(ANSWERS) - kept);
    assert!(matches!(
        bench.claim(claim_request(ANSWERS)).await,
        Claim::InFlight(_)
    ));
    drop(underway);
}

pub(crate) async fn a_key_is_found_in_every_scope(kind: Kind) {
    let bench = Bench::new(kind);
    bench.run(claim_request(1), &answer(1)).await;
    bench.advance(Duration::from_secs(5));
    bench.lose(in_scope(claim_request(1), 1, 2)).await;
    let underway = bench.win(in_scope(claim_request(1), 1, 3)).await;
    bench.run(claim_request(2), &answer(2)).await;
    bench.advance(Duration::from_secs(5));

    let mut found = bench.records.find(id(1, 1).key, None, 10).await.unwrap();
    found.sort_by_key(|finding| finding.id);
    let states: Vec<_> = found.iter().map(|finding| finding.state).collect();
    assert_eq!(
        states,
        [
            RecordState::Completed,
            RecordState::Unknown,
            RecordState::InProgress
        ]
    );
    let ages: Vec<_> = found.iter().map(|finding| finding.age.as_secs()).collect();
    assert_eq!(ages, [10, 5, 5]);
    assert_eq!(found[0].response, Some((&*answer(1)).into()));
    let response = bench.records.response(found[0].id).await.unwrap();
    assert_eq!(response, Some(answer(1)));
    let left = found[0].expires_in.unwrap();
    let expected = TTL.saturating_sub(Duration::from_secs(10));
    assert!(
        left <= expected && left + bench.slack() >= expected,
        "{left:?}"
    );
    for other in &found[1..] {
        assert_eq!(other.response, None);
        assert_eq!(bench.records.response(other.id).await.unwrap(), None);
    }
    let scope = Some(found[1].id.scope);
    let one = bench.records.find(id(1, 1).key, scope, 10).await.unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(one[0].id, found[1].id);
    let two = bench.records.find(id(1, 1).key, None, 2).await.unwrap();
    assert_eq!(two.len(), 2);
    assert!(
        found
            .iter()
            .all(|finding| finding.fingerprint == claim_request(1).fingerprint)
    );
    assert!(
        bench
            .records
            .find(id(3, 1).key, None, 10)
            .await
            .unwrap()
            .is_empty()
    );
    bench.advance(TTL);
    assert_eq!(
        bench
            .records
            .find(id(1, 1).key, None, 10)
            .await
            .unwrap()
            .len(),
        1
    );
    drop(underway);
}

pub(crate) async fn only_an_unknown_key_can_be_freed(kind: Kind) {
    let bench = Bench::new(kind);
    let underway = bench.win(claim_request(1)).await;
    bench.run(claim_request(2), &answer(2)).await;
    bench.lose(claim_request(3)).await;
    let mut freed = Vec::new();
    for key in 1..=4 {
        freed.push(bench.records.free_unknown(id(key, 1)).await.unwrap());
    }
    assert_eq!(freed, [false, false, true, false]);
    assert_eq!(bench.counts().await.unknown, 0);
    bench.run(claim_request(3), &answer(3)).await;
    drop(underway);
}

pub(crate) async fn a_request_whose_caller_left_claims_nothing(kind: Kind) {
    let bench = Arc::new(Bench::new(kind));
    for key in 0..50 {
        let (claimed, racing) = (Arc::clone(&bench), claim_request(key));
        // Left at its first breath, and at some later one.
        let task = tokio::spawn(async move { claimed.records.claim(&racing).await.map(drop) });
        for _ in 0..key % 5 {
            tokio::task::yield_now().await;
        }
        task.abort();
        drop(task.await);
    }
    // Whatever was underway comes to its end, and then every key is free.
    for key in 0..50 {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            match bench.claim(claim_request(key)).await {
                Claim::Won(permit) => break drop(permit),
                Claim::InFlight(waiting) => {
                    assert!(matches!(
                        waiting.ended().await,
                        ExecutionOutcome::Released(None)
                    ));
                }
                other => panic!("{other:?}"),
            }
            assert!(
                std::time::Instant::now() < deadline,
                "key {key} stays claimed"
            );
        }
    }
}
