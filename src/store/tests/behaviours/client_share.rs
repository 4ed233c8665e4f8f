//! Tests of the maximum number of idempotency keys that one client can have in a store, over all its scopes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClientHash, ExecutionOutcome, OnUnknown, Records,
};
use crate::store::StoreCapacity;

use super::OTHER_REQUEST;
use crate::store::tests::record_fixture::{
    RecordFixture, SHARE, StoreKind, TTL, claim_request, id, numbered_response, sized_response,
};

const CLIENT: ClientHash = ClientHash(1);
const OTHER_CLIENT: ClientHash = ClientHash(2);

/// Creates a claim of `client` for an idempotency key. Each key has its own scope, as if the client invented new
/// credentials for each key.
fn request_of(client: ClientHash, key: u16) -> ClaimRequest {
    let scope = u8::try_from(key).unwrap();
    ClaimRequest {
        id: id(key, scope),
        client,
        ..claim_request(key)
    }
}

/// Asserts that the store rejects the new idempotency key `key` of `client`, because the client has too many keys.
async fn assert_full(fixture: &RecordFixture, client: ClientHash, key: u16) {
    match fixture.claim(request_of(client, key)).await {
        Claim::Rejected(ClaimRejection::ClientFull { limit, min_wait }) => {
            assert!((4..=5).contains(&limit), "{limit}");
            assert!(min_wait > Duration::ZERO, "{min_wait:?}");
        }
        other => panic!("key {key}: {other:?}"),
    }
}

/// Claims and completes the idempotency keys `1..=SHARE` of `client`.
async fn fill(fixture: &RecordFixture, client: ClientHash) {
    for key in 1..=SHARE {
        fixture
            .run(request_of(client, key), &numbered_response(key))
            .await;
    }
    assert_full(fixture, client, SHARE + 1).await;
}

pub(crate) async fn a_client_that_holds_its_share_cannot_claim_a_new_key(kind: StoreKind) {
    let fixture = RecordFixture::with_share(kind).await;
    let in_flight = fixture.win(request_of(CLIENT, 1)).await;
    fixture
        .run(request_of(CLIENT, 2), &numbered_response(2))
        .await;
    fixture.lose(request_of(CLIENT, 3)).await;
    let tombstone = fixture.win(request_of(CLIENT, 4)).await;
    let completed = fixture
        .records
        .end(tombstone, ExecutionOutcome::Tombstone)
        .await;
    completed.unwrap();
    fixture
        .run(request_of(CLIENT, 5), &numbered_response(5))
        .await;
    for _ in 0..3 {
        assert_full(&fixture, CLIENT, 6).await;
        // A new idempotency key is also rejected in a scope that already has keys of the client.
        let mut known_scope = request_of(CLIENT, 7);
        known_scope.id.scope = id(2, 2).scope;
        let claim = fixture.claim(known_scope).await;
        assert!(
            matches!(claim, Claim::Rejected(ClaimRejection::ClientFull { .. })),
            "{claim:?}"
        );
    }

    let claim = async |key| fixture.claim(request_of(CLIENT, key)).await;
    assert!(matches!(claim(1).await, Claim::InFlight(_)));
    assert!(matches!(claim(2).await, Claim::Replay(_)));
    assert!(matches!(
        claim(3).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    assert!(matches!(
        claim(4).await,
        Claim::Rejected(ClaimRejection::ResponseNotRetained)
    ));
    let mut reused = request_of(CLIENT, 5);
    reused.fingerprint = OTHER_REQUEST;
    assert!(matches!(
        fixture.claim(reused).await,
        Claim::Rejected(ClaimRejection::KeyReused(_))
    ));

    // Other clients are not affected: they replay these idempotency keys and claim their own.
    let replayed = fixture.claim(request_of(OTHER_CLIENT, 2)).await;
    assert!(matches!(replayed, Claim::Replay(_)), "{replayed:?}");
    drop(fixture.win(request_of(OTHER_CLIENT, 6)).await);
    drop(in_flight);
}

pub(crate) async fn a_freed_key_does_not_count_towards_the_share(kind: StoreKind) {
    let fixture = RecordFixture::with_share(kind).await;
    for key in 1..SHARE - 1 {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
    }
    for _ in 0..3 {
        fixture.lose(request_of(CLIENT, 10)).await;
        let released = fixture.win(request_of(CLIENT, 11)).await;
        assert_full(&fixture, CLIENT, 12).await;
        fixture
            .records
            .end(released, ExecutionOutcome::Released(None))
            .await
            .unwrap();
        let dropped = fixture.win(request_of(CLIENT, 12)).await;
        assert_full(&fixture, CLIENT, 13).await;
        drop(dropped);
        fixture.settle().await;
        let last = fixture.win(request_of(CLIENT, 13)).await;
        assert_full(&fixture, CLIENT, 14).await;
        drop(last);
        fixture.settle().await;
        let freed = fixture.records.free_unknown(id(10, 10)).await.unwrap();
        assert!(freed);
    }
    let permits = [
        fixture.win(request_of(CLIENT, 14)).await,
        fixture.win(request_of(CLIENT, 15)).await,
    ];
    assert_full(&fixture, CLIENT, 16).await;
    drop(permits);
}

pub(crate) async fn an_expired_key_does_not_count_towards_the_share(kind: StoreKind) {
    let fixture = RecordFixture::with_share(kind).await;
    fill(&fixture, CLIENT).await;
    fixture.advance(fixture.almost_ttl());
    assert_full(&fixture, CLIENT, SHARE + 1).await;
    fixture.advance(TTL.saturating_sub(fixture.almost_ttl()));
    for key in 11..11 + SHARE {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
    }
    assert_full(&fixture, CLIENT, 20).await;
}

pub(crate) async fn a_key_counts_for_the_client_that_claims_it_after_an_unknown_outcome(
    kind: StoreKind,
) {
    let fixture = RecordFixture::with_share(kind).await;
    for key in 1..=SHARE {
        fixture.lose(request_of(CLIENT, key)).await;
    }
    assert_full(&fixture, CLIENT, SHARE + 1).await;
    let mut taken_over = request_of(OTHER_CLIENT, 1);
    taken_over.settings.on_unknown = OnUnknown::Release;
    fixture.run(taken_over, &numbered_response(1)).await;
    fixture.settle().await;
    fixture.lose(request_of(CLIENT, 20)).await;
    assert_full(&fixture, CLIENT, 21).await;
    for key in 2..=SHARE {
        let freed = fixture
            .records
            .free_unknown(request_of(CLIENT, key).id)
            .await;
        assert!(freed.unwrap());
    }
    for key in 31..30 + SHARE {
        fixture.lose(request_of(OTHER_CLIENT, key)).await;
    }
    assert_full(&fixture, OTHER_CLIENT, 40).await;
}

pub(crate) async fn an_expired_key_counts_for_the_client_that_claims_it_again(kind: StoreKind) {
    let fixture = RecordFixture::with_share(kind).await;
    fill(&fixture, CLIENT).await;
    fixture.advance(TTL);
    fill(&fixture, OTHER_CLIENT).await;
    drop(fixture.win(request_of(CLIENT, 20)).await);
}

pub(crate) async fn a_claim_that_is_not_won_does_not_count_towards_the_share(kind: StoreKind) {
    let fixture = RecordFixture::with_share(kind).await;
    let in_flight = fixture.win(request_of(CLIENT, 1)).await;
    fixture
        .run(request_of(CLIENT, 2), &numbered_response(2))
        .await;
    for _ in 0..10 {
        for key in 1..=2 {
            drop(fixture.claim(request_of(OTHER_CLIENT, key)).await);
            let mut reused = request_of(OTHER_CLIENT, key);
            reused.fingerprint = OTHER_REQUEST;
            drop(fixture.claim(reused).await);
        }
    }
    fixture.settle().await;
    let mut permits = Vec::new();
    for key in 11..11 + SHARE {
        permits.push(fixture.win(request_of(OTHER_CLIENT, key)).await);
    }
    assert_full(&fixture, OTHER_CLIENT, 20).await;
    drop(permits);
    drop(in_flight);
}

pub(crate) async fn a_cancelled_claim_does_not_count_towards_the_share(kind: StoreKind) {
    let fixture = Arc::new(RecordFixture::with_share(kind).await);
    for key in 101..151 {
        let (claiming, aborted) = (Arc::clone(&fixture), request_of(CLIENT, key));
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
        fixture.settle().await;
        let key = 1 + u16::try_from(permits.len()).unwrap();
        match fixture.claim(request_of(CLIENT, key)).await {
            Claim::Won(permit) => permits.push(permit),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    }
    assert_full(&fixture, CLIENT, 20).await;
}

pub(crate) async fn a_single_client_can_use_most_of_the_store(kind: StoreKind) {
    let capacity = StoreCapacity {
        max_keys: 100,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    for key in 1..=81 {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
        fixture.advance(Duration::from_millis(1));
    }
    match fixture.claim(request_of(CLIENT, 100)).await {
        Claim::Rejected(ClaimRejection::ClientFull { limit, min_wait }) => {
            assert_eq!(limit, 10);
            let first = TTL.saturating_sub(Duration::from_millis(81));
            assert_eq!(min_wait, first);
        }
        other => panic!("{other:?}"),
    }
    // Two of the 81 idempotency keys expire. The store then has less than 80 % of `max_keys`, so the share of a client
    // no longer applies.
    fixture.advance(TTL.saturating_sub(Duration::from_millis(80)));
    fixture
        .run(request_of(CLIENT, 100), &numbered_response(100))
        .await;
}

pub(crate) async fn a_client_above_its_share_replaces_keys_older_than_min_ttl(kind: StoreKind) {
    let capacity = StoreCapacity {
        max_keys: 100,
        min_ttl: TTL / 6,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    for key in 1..=81 {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
    }
    match fixture.claim(request_of(CLIENT, 100)).await {
        Claim::Rejected(ClaimRejection::ClientFull { min_wait, .. }) => {
            assert_eq!(min_wait, TTL / 6);
        }
        other => panic!("{other:?}"),
    }
    fixture.advance(TTL / 6);
    for key in 101..=181 {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.completed, counts.forgotten), (81, 81));
    let claim = fixture.claim(request_of(CLIENT, 182)).await;
    assert!(
        matches!(claim, Claim::Rejected(ClaimRejection::ClientFull { .. })),
        "{claim:?}"
    );
    // The other 19 % of the store are left for other clients.
    fixture
        .run(request_of(OTHER_CLIENT, 1), &numbered_response(1))
        .await;
}

pub(crate) async fn a_tombstone_counts_towards_the_share(kind: StoreKind) {
    let capacity = StoreCapacity {
        max_keys: 40,
        max_bytes: 16 << 10,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(kind, capacity);
    for key in 1..=33 {
        fixture
            .run(request_of(CLIENT, key), &sized_response(key, 4_000))
            .await;
    }
    fixture.counts().await;
    assert_full(&fixture, CLIENT, 34).await;
    fixture.advance(TTL);
    assert_eq!(fixture.counts().await.tombstones, 0);
    for key in 101..=133 {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
    }
    assert_full(&fixture, CLIENT, 134).await;
}

#[tokio::test]
async fn a_disk_store_counts_its_keys_again_when_it_is_opened() {
    let mut fixture = RecordFixture::with_share(StoreKind::Disk).await;
    for key in 1..SHARE {
        fixture
            .run(request_of(CLIENT, key), &numbered_response(key))
            .await;
    }
    let in_flight = fixture.win(request_of(CLIENT, SHARE)).await;
    for _ in 0..2 {
        assert_full(&fixture, CLIENT, SHARE + 1).await;
        fixture.crash(Vec::new());
    }
    drop(in_flight);
    // The crash made the outcome of the execution unknown. Its idempotency key still counts against the share of the
    // client.
    let claim = fixture.claim(request_of(CLIENT, SHARE)).await;
    assert!(
        matches!(claim, Claim::Rejected(ClaimRejection::OutcomeUnknown)),
        "{claim:?}"
    );
    assert_full(&fixture, CLIENT, SHARE + 1).await;
    let freed = fixture
        .records
        .free_unknown(request_of(CLIENT, SHARE).id)
        .await;
    assert!(freed.unwrap());
    fixture
        .run(request_of(CLIENT, SHARE + 1), &numbered_response(1))
        .await;
    assert_full(&fixture, CLIENT, SHARE + 2).await;
}
