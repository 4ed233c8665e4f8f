//! The share of a store that one client may hold, over all its scopes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::idempotency::{Claim, ClaimRequest, ClientHash, ExecutionOutcome, OnUnknown, Records};
use crate::store::StoreCapacity;

use super::OTHER_REQUEST;
use crate::store::tests::bench::{
    Bench, Kind, SHARE, TTL, answer, claim_request, id, sized_answer,
};

const CLIENT: ClientHash = ClientHash(1);
const OTHER_CLIENT: ClientHash = ClientHash(2);

/// A claim of `client` on a key in a scope of its own, as with invented credentials.
fn bid_of(client: ClientHash, key: u16) -> ClaimRequest {
    let scope = u8::try_from(key).unwrap();
    ClaimRequest {
        id: id(key, scope),
        client,
        ..claim_request(key)
    }
}

async fn is_full(bench: &Bench, client: ClientHash, key: u16) {
    match bench.claim(bid_of(client, key)).await {
        Claim::ClientFull { limit, min_wait } => {
            assert!((4..=5).contains(&limit), "{limit}");
            assert!(min_wait > Duration::ZERO, "{min_wait:?}");
        }
        other => panic!("key {key}: {other:?}"),
    }
}

/// Claims and completes keys `1..=SHARE` of `client`.
async fn fill(bench: &Bench, client: ClientHash) {
    for key in 1..=SHARE {
        bench.run(bid_of(client, key), &answer(key)).await;
    }
    is_full(bench, client, SHARE + 1).await;
}

pub(crate) async fn a_client_with_its_share_claims_no_new_key(kind: Kind) {
    let bench = Bench::with_share(kind).await;
    let in_flight = bench.win(bid_of(CLIENT, 1)).await;
    bench.run(bid_of(CLIENT, 2), &answer(2)).await;
    bench.lose(bid_of(CLIENT, 3)).await;
    let entombed = bench.win(bid_of(CLIENT, 4)).await;
    let completed = bench
        .records
        .end(entombed, ExecutionOutcome::Tombstone)
        .await;
    completed.unwrap();
    bench.run(bid_of(CLIENT, 5), &answer(5)).await;
    for _ in 0..3 {
        is_full(&bench, CLIENT, 6).await;
        // Also in a scope that has keys.
        let mut known_scope = bid_of(CLIENT, 7);
        known_scope.id.scope = id(2, 2).scope;
        let claim = bench.claim(known_scope).await;
        assert!(matches!(claim, Claim::ClientFull { .. }), "{claim:?}");
    }

    let claim = async |key| bench.claim(bid_of(CLIENT, key)).await;
    assert!(matches!(claim(1).await, Claim::InFlight(_)));
    assert!(matches!(claim(2).await, Claim::Replay(_)));
    assert!(matches!(claim(3).await, Claim::Unknown));
    assert!(matches!(claim(4).await, Claim::Tombstone));
    let mut reused = bid_of(CLIENT, 5);
    reused.fingerprint = OTHER_REQUEST;
    assert!(matches!(bench.claim(reused).await, Claim::Mismatch(_)));

    // Other clients replay these keys and claim their own.
    let replayed = bench.claim(bid_of(OTHER_CLIENT, 2)).await;
    assert!(matches!(replayed, Claim::Replay(_)), "{replayed:?}");
    drop(bench.win(bid_of(OTHER_CLIENT, 6)).await);
    drop(in_flight);
}

pub(crate) async fn a_freed_key_is_no_longer_part_of_the_share(kind: Kind) {
    let bench = Bench::with_share(kind).await;
    for key in 1..SHARE - 1 {
        bench.run(bid_of(CLIENT, key), &answer(key)).await;
    }
    for _ in 0..3 {
        bench.lose(bid_of(CLIENT, 10)).await;
        let released = bench.win(bid_of(CLIENT, 11)).await;
        is_full(&bench, CLIENT, 12).await;
        bench
            .records
            .end(released, ExecutionOutcome::Released(None))
            .await
            .unwrap();
        let dropped = bench.win(bid_of(CLIENT, 12)).await;
        is_full(&bench, CLIENT, 13).await;
        drop(dropped);
        bench.settle().await;
        let last = bench.win(bid_of(CLIENT, 13)).await;
        is_full(&bench, CLIENT, 14).await;
        drop(last);
        bench.settle().await;
        let freed = bench.records.free_unknown(id(10, 10)).await.unwrap();
        assert!(freed);
    }
    let permits = [
        bench.win(bid_of(CLIENT, 14)).await,
        bench.win(bid_of(CLIENT, 15)).await,
    ];
    is_full(&bench, CLIENT, 16).await;
    drop(permits);
}

pub(crate) async fn an_expired_key_is_no_longer_part_of_the_share(kind: Kind) {
    let bench = Bench::with_share(kind).await;
    fill(&bench, CLIENT).await;
    bench.advance(bench.just_before());
    is_full(&bench, CLIENT, SHARE + 1).await;
    bench.advance(TTL.saturating_sub(bench.just_before()));
    for key in 11..11 + SHARE {
        bench.run(bid_of(CLIENT, key), &answer(key)).await;
    }
    is_full(&bench, CLIENT, 20).await;
}

pub(crate) async fn a_key_counts_for_the_client_that_takes_it_over(kind: Kind) {
    let bench = Bench::with_share(kind).await;
    for key in 1..=SHARE {
        bench.lose(bid_of(CLIENT, key)).await;
    }
    is_full(&bench, CLIENT, SHARE + 1).await;
    let mut taken_over = bid_of(OTHER_CLIENT, 1);
    taken_over.settings.on_unknown = OnUnknown::Release;
    bench.run(taken_over, &answer(1)).await;
    bench.settle().await;
    bench.lose(bid_of(CLIENT, 20)).await;
    is_full(&bench, CLIENT, 21).await;
    for key in 2..=SHARE {
        let freed = bench.records.free_unknown(bid_of(CLIENT, key).id).await;
        assert!(freed.unwrap());
    }
    for key in 31..30 + SHARE {
        bench.lose(bid_of(OTHER_CLIENT, key)).await;
    }
    is_full(&bench, OTHER_CLIENT, 40).await;
}

pub(crate) async fn an_expired_key_counts_for_the_client_that_claims_it_again(kind: Kind) {
    let bench = Bench::with_share(kind).await;
    fill(&bench, CLIENT).await;
    bench.advance(TTL);
    fill(&bench, OTHER_CLIENT).await;
    drop(bench.win(bid_of(CLIENT, 20)).await);
}

pub(crate) async fn a_claim_that_is_not_won_is_not_part_of_the_share(kind: Kind) {
    let bench = Bench::with_share(kind).await;
    let in_flight = bench.win(bid_of(CLIENT, 1)).await;
    bench.run(bid_of(CLIENT, 2), &answer(2)).await;
    for _ in 0..10 {
        for key in 1..=2 {
            drop(bench.claim(bid_of(OTHER_CLIENT, key)).await);
            let mut reused = bid_of(OTHER_CLIENT, key);
            reused.fingerprint = OTHER_REQUEST;
            drop(bench.claim(reused).await);
        }
    }
    bench.settle().await;
    let mut permits = Vec::new();
    for key in 11..11 + SHARE {
        permits.push(bench.win(bid_of(OTHER_CLIENT, key)).await);
    }
    is_full(&bench, OTHER_CLIENT, 20).await;
    drop(permits);
    drop(in_flight);
}

pub(crate) async fn a_claim_whose_caller_left_is_not_part_of_the_share(kind: Kind) {
    let bench = Arc::new(Bench::with_share(kind).await);
    for key in 101..151 {
        let (claiming, aborted) = (Arc::clone(&bench), bid_of(CLIENT, key));
        let task = tokio::spawn(async move { claiming.records.claim(&aborted).await.map(drop) });
        for _ in 0..key % 7 {
            tokio::task::yield_now().await;
        }
        task.abort();
        drop(task.await);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut permits = Vec::new();
    while permits.len() < usize::from(SHARE) {
        bench.settle().await;
        let key = 1 + u16::try_from(permits.len()).unwrap();
        match bench.claim(bid_of(CLIENT, key)).await {
            Claim::Won(permit) => permits.push(permit),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    }
    is_full(&bench, CLIENT, 20).await;
}

pub(crate) async fn a_client_that_is_alone_uses_most_of_the_store(kind: Kind) {
    let room = StoreCapacity {
        max_keys: 100,
        ..StoreCapacity::default()
    };
    let bench = Bench::with_room(kind, room);
    for key in 1..=81 {
        bench.run(bid_of(CLIENT, key), &answer(key)).await;
        bench.advance(Duration::from_millis(1));
    }
    match bench.claim(bid_of(CLIENT, 100)).await {
        Claim::ClientFull { limit, min_wait } => {
            assert_eq!(limit, 10);
            let first = TTL.saturating_sub(Duration::from_millis(81));
            assert_eq!(min_wait, first);
        }
        other => panic!("{other:?}"),
    }
    // Below 80 % there is no share.
    bench.advance(TTL.saturating_sub(Duration::from_millis(80)));
    bench.run(bid_of(CLIENT, 100), &answer(100)).await;
}

pub(crate) async fn a_tombstone_is_part_of_the_share(kind: Kind) {
    let room = StoreCapacity {
        max_keys: 40,
        max_bytes: 16 << 10,
    };
    let bench = Bench::with_room(kind, room);
    for key in 1..=33 {
        bench
            .run(bid_of(CLIENT, key), &sized_answer(key, 4_000))
            .await;
    }
    bench.counts().await;
    is_full(&bench, CLIENT, 34).await;
    bench.advance(TTL);
    assert_eq!(bench.counts().await.tombstones, 0);
    for key in 101..=133 {
        bench.run(bid_of(CLIENT, key), &answer(key)).await;
    }
    is_full(&bench, CLIENT, 134).await;
}

#[tokio::test]
async fn a_disk_store_counts_its_keys_again_when_it_is_opened() {
    let mut bench = Bench::with_share(Kind::Disk).await;
    for key in 1..SHARE {
        bench.run(bid_of(CLIENT, key), &answer(key)).await;
    }
    let in_flight = bench.win(bid_of(CLIENT, SHARE)).await;
    for _ in 0..2 {
        is_full(&bench, CLIENT, SHARE + 1).await;
        bench.crash(Vec::new());
    }
    drop(in_flight);
    // The execution in flight became unknown, and counts still.
    let claim = bench.claim(bid_of(CLIENT, SHARE)).await;
    assert!(matches!(claim, Claim::Unknown), "{claim:?}");
    is_full(&bench, CLIENT, SHARE + 1).await;
    let freed = bench.records.free_unknown(bid_of(CLIENT, SHARE).id).await;
    assert!(freed.unwrap());
    bench.run(bid_of(CLIENT, SHARE + 1), &answer(1)).await;
    is_full(&bench, CLIENT, SHARE + 2).await;
}
