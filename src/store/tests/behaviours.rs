//! The guarantees of a store of idempotency records, with one test for each.

mod client_share;

pub(crate) use client_share::*;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, OnUnknown,
    RecordCounts, RecordState, Records,
};
use crate::store::StoreCapacity;

use super::record_fixture::{
    RecordFixture, StoreKind, TTL, claim_request, id, numbered_response, sized_response,
};

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

pub(crate) async fn exactly_one_of_many_concurrent_claims_wins(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let records = fixture.records.clone();
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
    assert_eq!(fixture.counts().await.in_progress, 200);
}

pub(crate) async fn a_claim_of_a_completed_key_gets_a_replay(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    for number in 0..20 {
        fixture
            .run(claim_request(number), &numbered_response(number))
            .await;
    }
    for _ in 0..2 {
        for number in 0..20 {
            match fixture.claim(claim_request(number)).await {
                Claim::Replay(replayed) => assert_eq!(replayed, numbered_response(number)),
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) async fn the_same_key_in_two_scopes_has_two_records(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    fixture.run(claim_request(1), &numbered_response(1)).await;
    fixture
        .run(in_scope(claim_request(1), 1, 2), &numbered_response(2))
        .await;
    for (scope, number) in [(1, 1), (2, 2)] {
        match fixture.claim(in_scope(claim_request(1), 1, scope)).await {
            Claim::Replay(replayed) => assert_eq!(replayed, numbered_response(number)),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn another_request_with_a_used_key_is_a_mismatch_in_every_state(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let in_flight = fixture.win(claim_request(1)).await;
    fixture.run(claim_request(2), &numbered_response(2)).await;
    fixture.lose(claim_request(3)).await;
    let tombstone = fixture.win(claim_request(4)).await;
    fixture
        .records
        .end(tombstone, ExecutionOutcome::Tombstone)
        .await
        .unwrap();
    for key in 1..=4 {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Release] {
            let mut other = claim_request(key);
            other.fingerprint = OTHER_REQUEST;
            other.settings.on_unknown = on_unknown;
            let claim = fixture.claim(other).await;
            assert!(
                matches!(claim, Claim::Rejected(ClaimRejection::KeyReused(_))),
                "{key}: {claim:?}"
            );
        }
    }
    // The rejected claims have not changed the records.
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::InFlight(_)
    ));
    assert!(matches!(
        fixture.claim(claim_request(2)).await,
        Claim::Replay(_)
    ));
    assert!(matches!(
        fixture.claim(claim_request(3)).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    assert!(matches!(
        fixture.claim(claim_request(4)).await,
        Claim::Rejected(ClaimRejection::ResponseNotRetained)
    ));
    drop(in_flight);
}

pub(crate) async fn waiters_receive_the_response(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let permit = fixture.win(claim_request(1)).await;
    let waiting = [
        fixture.wait(claim_request(1)).await,
        fixture.wait(claim_request(1)).await,
    ];
    let outcome = ExecutionOutcome::Completed(numbered_response(1));
    fixture.records.end(permit, outcome).await.unwrap();
    for waiting in waiting {
        match waiting.ended().await {
            ExecutionOutcome::Completed(received) => assert_eq!(received, numbered_response(1)),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn a_released_key_can_be_claimed_again_and_waiters_receive_its_response(
    kind: StoreKind,
) {
    let fixture = RecordFixture::new(kind);
    let permit = fixture.win(claim_request(1)).await;
    let waiting = fixture.wait(claim_request(1)).await;
    fixture
        .records
        .end(
            permit,
            ExecutionOutcome::Released(Some(Ok(numbered_response(1)))),
        )
        .await
        .unwrap();
    match waiting.ended().await {
        ExecutionOutcome::Released(Some(received)) => {
            assert_eq!(received.unwrap(), numbered_response(1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.counts().await, RecordCounts::default());
    // The idempotency key is free, so another request can claim it.
    let mut other = claim_request(1);
    other.fingerprint = OTHER_REQUEST;
    drop(fixture.win(other).await);
}

pub(crate) async fn waiters_receive_a_tombstone_if_the_response_is_not_stored(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let permit = fixture.win(claim_request(1)).await;
    let waiting = fixture.wait(claim_request(1)).await;
    fixture
        .records
        .end(permit, ExecutionOutcome::Tombstone)
        .await
        .unwrap();
    assert!(matches!(waiting.ended().await, ExecutionOutcome::Tombstone));
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::Rejected(ClaimRejection::ResponseNotRetained)
    ));
}

pub(crate) async fn a_permit_dropped_before_the_request_was_sent_frees_its_key(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let permit = fixture.win(claim_request(1)).await;
    let waiting = fixture.wait(claim_request(1)).await;
    drop(permit);
    assert!(matches!(
        waiting.ended().await,
        ExecutionOutcome::Released(None)
    ));
    drop(fixture.win(claim_request(1)).await);
}

pub(crate) async fn a_permit_dropped_after_the_request_was_sent_makes_its_key_unknown(
    kind: StoreKind,
) {
    let fixture = RecordFixture::new(kind);
    let mut permit = fixture.win(claim_request(1)).await;
    permit.mark_sent();
    let waiting = fixture.wait(claim_request(1)).await;
    drop(permit);
    assert!(matches!(waiting.ended().await, ExecutionOutcome::Unknown));
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
}

pub(crate) async fn on_unknown_decides_whether_an_unknown_key_can_be_claimed(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    fixture.lose(claim_request(1)).await;
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    let mut released = claim_request(1);
    released.settings.on_unknown = OnUnknown::Release;
    fixture.run(released, &numbered_response(1)).await;
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::Replay(_)
    ));
    let counts = fixture.counts().await;
    assert_eq!((counts.completed, counts.unknown), (1, 0));
}

pub(crate) async fn a_waiter_that_stops_waiting_has_no_effect(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let permit = fixture.win(claim_request(1)).await;
    for _ in 0..1_000 {
        drop(fixture.wait(claim_request(1)).await);
    }
    let waiting = fixture.wait(claim_request(1)).await;
    let outcome = ExecutionOutcome::Completed(numbered_response(1));
    fixture.records.end(permit, outcome).await.unwrap();
    assert!(matches!(
        waiting.ended().await,
        ExecutionOutcome::Completed(_)
    ));
}

pub(crate) async fn records_expire_after_their_ttl_except_those_in_progress(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let in_flight = fixture.win(claim_request(1)).await;
    fixture.run(claim_request(2), &numbered_response(2)).await;
    fixture.lose(claim_request(3)).await;
    let tombstone = fixture.win(claim_request(4)).await;
    fixture
        .records
        .end(tombstone, ExecutionOutcome::Tombstone)
        .await
        .unwrap();

    fixture.advance(fixture.almost_ttl());
    assert!(matches!(
        fixture.claim(claim_request(2)).await,
        Claim::Replay(_)
    ));
    assert!(matches!(
        fixture.claim(claim_request(3)).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    assert!(matches!(
        fixture.claim(claim_request(4)).await,
        Claim::Rejected(ClaimRejection::ResponseNotRetained)
    ));
    fixture.advance(TTL.saturating_sub(fixture.almost_ttl()));
    for key in 2..=4 {
        let mut another = claim_request(key);
        another.fingerprint = OTHER_REQUEST;
        drop(fixture.win(another).await);
    }
    fixture.advance(TTL * 100);
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::InFlight(_)
    ));
    let outcome = ExecutionOutcome::Completed(numbered_response(1));
    fixture.records.end(in_flight, outcome).await.unwrap();
    // The TTL of a record starts when its execution completes.
    fixture.advance(fixture.almost_ttl());
    assert!(matches!(
        fixture.claim(claim_request(1)).await,
        Claim::Replay(_)
    ));
    let counts = fixture.counts().await;
    assert_eq!(
        (counts.completed, counts.unknown, counts.tombstones),
        (1, 0, 0)
    );
}

pub(crate) async fn a_full_scope_rejects_new_keys(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let three = |key, scope| {
        let mut claim_request = in_scope(claim_request(key), key, scope);
        claim_request.settings.max_keys_per_scope = NonZeroU32::new(3).unwrap();
        claim_request
    };
    fixture.run(three(1, 1), &numbered_response(1)).await;
    fixture.advance(TTL / 2);
    let in_flight = fixture.win(three(2, 1)).await;
    fixture.lose(three(3, 1)).await;
    match fixture.claim(three(4, 1)).await {
        Claim::Rejected(ClaimRejection::ScopeFull { min_wait }) => {
            assert!(min_wait <= TTL / 2, "{min_wait:?}");
        }
        other => panic!("{other:?}"),
    }
    // The maximum of a scope rejects neither the existing idempotency keys of the scope nor the keys of other scopes.
    assert!(matches!(fixture.claim(three(1, 1)).await, Claim::Replay(_)));
    assert!(matches!(
        fixture.claim(three(2, 1)).await,
        Claim::InFlight(_)
    ));
    fixture.run(three(4, 2), &numbered_response(4)).await;
    // After an idempotency key of the scope is released or expires, a new key can be claimed.
    drop(in_flight);
    fixture.settle().await;
    fixture.run(three(5, 1), &numbered_response(5)).await;
    assert!(matches!(
        fixture.claim(three(6, 1)).await,
        Claim::Rejected(ClaimRejection::ScopeFull { .. })
    ));
    fixture.advance(TTL / 2);
    fixture.run(three(6, 1), &numbered_response(6)).await;
}

pub(crate) async fn a_scope_whose_keys_have_expired_is_not_full_while_many_others_expire(
    kind: StoreKind,
) {
    let fixture = RecordFixture::new(kind);
    for scope in 10..=200 {
        for key in 0..8 {
            fixture.lose(in_scope(claim_request(key), key, scope)).await;
        }
    }
    fixture.advance(Duration::from_secs(1));
    let two = |key| {
        let mut claim_request = claim_request(key);
        claim_request.settings.max_keys_per_scope = NonZeroU32::new(2).unwrap();
        claim_request
    };
    fixture.lose(two(1)).await;
    fixture.lose(two(2)).await;
    assert!(matches!(
        fixture.claim(two(3)).await,
        Claim::Rejected(ClaimRejection::ScopeFull { .. })
    ));
    fixture.advance(TTL);
    drop(fixture.win(two(3)).await);
}

pub(crate) async fn a_full_store_rejects_new_keys_until_some_expire(kind: StoreKind) {
    let capacity = StoreCapacity {
        max_keys: 10,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    // Each idempotency key belongs to a different client, so no client exceeds its share of the store.
    let of_client = |key: u16, scope| ClaimRequest {
        client: ClientHash(key.into()),
        ..in_scope(claim_request(key), key, scope)
    };
    let in_flight = fixture.win(of_client(0, 200)).await;
    for key in 1..10 {
        let scope = u8::try_from(key).unwrap();
        fixture
            .run(of_client(key, scope), &numbered_response(key))
            .await;
    }
    let newcomer = of_client(10, 10);
    assert!(matches!(
        fixture.claim(newcomer).await,
        Claim::Rejected(ClaimRejection::StoreFull)
    ));
    // The rejected claim has evicted no record.
    assert!(matches!(
        fixture.claim(in_scope(claim_request(0), 0, 200)).await,
        Claim::InFlight(_)
    ));
    for key in 1..10 {
        let scope = u8::try_from(key).unwrap();
        let claim = fixture
            .claim(in_scope(claim_request(key), key, scope))
            .await;
        assert!(matches!(claim, Claim::Replay(_)), "{key}: {claim:?}");
    }
    fixture.advance(TTL);
    fixture.run(newcomer, &numbered_response(10)).await;
    let counts = fixture.counts().await;
    assert_eq!((counts.in_progress, counts.completed), (1, 1));
    drop(in_flight);
}

pub(crate) async fn a_full_store_forgets_the_oldest_completed_keys_older_than_min_ttl(
    kind: StoreKind,
) {
    const MIN_TTL: Duration = Duration::from_mins(10);
    let capacity = StoreCapacity {
        max_keys: 7,
        min_ttl: MIN_TTL,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    let of_client = |key: u16| ClaimRequest {
        client: ClientHash(key.into()),
        ..in_scope(claim_request(key), key, u8::try_from(key).unwrap())
    };
    let with_ttl = |key, ttl| {
        let mut claim_request = of_client(key);
        claim_request.settings.ttl = ttl;
        claim_request
    };
    let minute = Duration::from_mins(1);
    let in_flight = fixture.win(of_client(1)).await;
    fixture.lose(of_client(2)).await;
    // This record expires first, but it is not the oldest.
    let short = with_ttl(3, TTL / 2);
    fixture.run(of_client(4), &numbered_response(4)).await;
    fixture.advance(minute);
    fixture.run(short, &numbered_response(3)).await;
    fixture.advance(minute);
    let tombstone = fixture.win(of_client(5)).await;
    let ended = fixture.records.end(tombstone, ExecutionOutcome::Tombstone);
    ended.await.unwrap();
    fixture.advance(minute);
    for key in [6, 7] {
        fixture.run(of_client(key), &numbered_response(key)).await;
    }

    fixture.advance(MIN_TTL.saturating_sub(minute * 3 + Duration::from_millis(1)));
    assert!(matches!(
        fixture.claim(of_client(8)).await,
        Claim::Rejected(ClaimRejection::StoreFull)
    ));
    assert_eq!(fixture.counts().await.forgotten, 0);
    assert_eq!(fixture.counts().await.effective_ttl, Some(TTL));
    fixture.advance(minute * 3 + Duration::from_millis(1));
    for key in [8, 9, 10] {
        fixture.run(of_client(key), &numbered_response(key)).await;
    }
    let counts = fixture.counts().await;
    assert_eq!(counts.forgotten, 3);
    assert_eq!(counts.effective_ttl, Some(MIN_TTL + minute));
    for key in [1, 6, 7, 8, 9, 10] {
        let claim = fixture.claim(of_client(key)).await;
        let expected = matches!(&claim, Claim::InFlight(_)) == (key == 1)
            && matches!(&claim, Claim::Replay(_)) == (key != 1);
        assert!(expected, "{key}: {claim:?}");
    }
    assert!(matches!(
        fixture.claim(of_client(2)).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    // The keys 4, 3 and 5 were forgotten, in this order. They can be claimed again in place of the keys 6 and 7.
    for key in [4, 5] {
        fixture.run(of_client(key), &numbered_response(key)).await;
    }
    assert!(matches!(
        fixture.claim(short).await,
        Claim::Rejected(ClaimRejection::StoreFull)
    ));
    assert_eq!(fixture.counts().await.forgotten, 5);
    drop(in_flight);
}

pub(crate) async fn concurrent_claims_in_a_full_store_replace_one_key_each(kind: StoreKind) {
    let capacity = StoreCapacity {
        max_keys: 200,
        min_ttl: Duration::from_mins(1),
        ..StoreCapacity::default()
    };
    let fixture = Arc::new(RecordFixture::with_capacity(kind, capacity));
    let of_client = |key: u16| ClaimRequest {
        client: ClientHash(key.into()),
        ..in_scope(claim_request(key), key, u8::try_from(key % 250).unwrap())
    };
    for round in 0..4 {
        let mut running = tokio::task::JoinSet::new();
        for key in round * 200..(round + 1) * 200 {
            let fixture = Arc::clone(&fixture);
            let request = of_client(key);
            running.spawn(async move { fixture.run(request, &numbered_response(key)).await });
        }
        running.join_all().await;
        assert!(matches!(
            fixture.claim(of_client(1_000)).await,
            Claim::Rejected(ClaimRejection::StoreFull)
        ));
        fixture.advance(Duration::from_mins(1));
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.completed, counts.forgotten), (200, 600));
}

pub(crate) async fn a_scope_that_replaces_its_own_keys_keeps_its_count(kind: StoreKind) {
    let capacity = StoreCapacity {
        max_keys: 10,
        min_ttl: Duration::from_mins(1),
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    let of_client = |key: u16| {
        let mut request = ClaimRequest {
            client: ClientHash(key.into()),
            ..claim_request(key)
        };
        request.settings.max_keys_per_scope = NonZeroU32::new(11).unwrap();
        request
    };
    for key in 0..40 {
        fixture.run(of_client(key), &numbered_response(key)).await;
        fixture.advance(Duration::from_mins(1));
    }
    assert_eq!(fixture.counts().await.forgotten, 30);
}

pub(crate) async fn responses_beyond_max_bytes_become_tombstones(kind: StoreKind) {
    const RESPONSES: u16 = 64;
    let capacity = StoreCapacity {
        max_bytes: 64 * 1024,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    for key in 0..RESPONSES {
        fixture
            .run(claim_request(key), &sized_response(key, 4_000))
            .await;
    }
    let in_flight = fixture.win(claim_request(RESPONSES)).await;
    // The test waits, because the store can evict responses some time after the claim.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    let counts = loop {
        // A claim in each iteration is necessary, because the memory store evicts only during calls.
        fixture.claim(claim_request(RESPONSES)).await;
        let counts = fixture.counts().await;
        if counts.bytes <= capacity.max_bytes && counts.tombstones > 0 {
            break counts;
        }
        assert!(std::time::Instant::now() < deadline, "{counts:?}");
        tokio::task::yield_now().await;
    };
    let mut stored = 0;
    for key in 0..RESPONSES {
        match fixture.claim(claim_request(key)).await {
            Claim::Replay(replayed) => {
                assert_eq!(replayed, sized_response(key, 4_000));
                stored += 1;
            }
            Claim::Rejected(ClaimRejection::ResponseNotRetained) => assert_eq!(
                stored, 0,
                "a newer response was evicted before an older one"
            ),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        (5..=16).contains(&stored),
        "{stored} responses of 4 kB in 64 KiB"
    );
    assert_eq!(counts.completed + counts.tombstones, u64::from(RESPONSES));
    assert!(counts.evictions >= u64::from(RESPONSES) - stored);
    assert!(matches!(
        fixture.claim(claim_request(RESPONSES)).await,
        Claim::InFlight(_)
    ));
    drop(in_flight);
}

pub(crate) async fn a_key_is_found_in_every_scope(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    fixture.run(claim_request(1), &numbered_response(1)).await;
    fixture.advance(Duration::from_secs(5));
    fixture.lose(in_scope(claim_request(1), 1, 2)).await;
    let in_flight = fixture.win(in_scope(claim_request(1), 1, 3)).await;
    fixture.run(claim_request(2), &numbered_response(2)).await;
    fixture.advance(Duration::from_secs(5));

    let mut found = fixture.records.find(id(1, 1).key, None, 10).await.unwrap();
    found.sort_by_key(|info| info.id);
    let states: Vec<_> = found.iter().map(|info| info.state).collect();
    assert_eq!(
        states,
        [
            RecordState::Completed,
            RecordState::Unknown,
            RecordState::InProgress
        ]
    );
    let ages: Vec<_> = found.iter().map(|info| info.age.as_secs()).collect();
    assert_eq!(ages, [10, 5, 5]);
    assert_eq!(found[0].response, Some((&*numbered_response(1)).into()));
    let response = fixture.records.response(found[0].id).await.unwrap();
    assert_eq!(response, Some(numbered_response(1)));
    let left = found[0].expires_in.unwrap();
    let expected = TTL.saturating_sub(Duration::from_secs(10));
    assert!(
        left <= expected && left + fixture.slack() >= expected,
        "{left:?}"
    );
    for other in &found[1..] {
        assert_eq!(other.response, None);
        assert_eq!(fixture.records.response(other.id).await.unwrap(), None);
    }
    let scope = Some(found[1].id.scope);
    let one = fixture.records.find(id(1, 1).key, scope, 10).await.unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(one[0].id, found[1].id);
    let two = fixture.records.find(id(1, 1).key, None, 2).await.unwrap();
    assert_eq!(two.len(), 2);
    assert!(
        found
            .iter()
            .all(|info| info.fingerprint == claim_request(1).fingerprint)
    );
    assert!(
        fixture
            .records
            .find(id(3, 1).key, None, 10)
            .await
            .unwrap()
            .is_empty()
    );
    fixture.advance(TTL);
    assert_eq!(
        fixture
            .records
            .find(id(1, 1).key, None, 10)
            .await
            .unwrap()
            .len(),
        1
    );
    drop(in_flight);
}

pub(crate) async fn only_an_unknown_key_can_be_freed(kind: StoreKind) {
    let fixture = RecordFixture::new(kind);
    let in_flight = fixture.win(claim_request(1)).await;
    fixture.run(claim_request(2), &numbered_response(2)).await;
    fixture.lose(claim_request(3)).await;
    let mut freed = Vec::new();
    for key in 1..=4 {
        freed.push(fixture.records.free_unknown(id(key, 1)).await.unwrap());
    }
    assert_eq!(freed, [false, false, true, false]);
    assert_eq!(fixture.counts().await.unknown, 0);
    fixture.run(claim_request(3), &numbered_response(3)).await;
    drop(in_flight);
}

pub(crate) async fn a_cancelled_claim_leaves_its_key_free(kind: StoreKind) {
    let fixture = Arc::new(RecordFixture::new(kind));
    for key in 0..50 {
        let (claimed, racing) = (Arc::clone(&fixture), claim_request(key));
        // The claim is cancelled after zero to four polls of its future.
        let task = tokio::spawn(async move { claimed.records.claim(&racing).await.map(drop) });
        for _ in 0..key % 5 {
            tokio::task::yield_now().await;
        }
        task.abort();
        drop(task.await);
    }
    // After the store has released the cancelled claims, every idempotency key can be claimed.
    for key in 0..50 {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            match fixture.claim(claim_request(key)).await {
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
