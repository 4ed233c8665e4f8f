//! Tests of two gateways that share the idempotency records in one Redis.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ExecutionOutcome, Fingerprint, OnUnknown, Permit,
    RecordState, Records, StoreError, StoredResponse, Waiter,
};
use crate::store::redis::Redis;
use crate::store::redis::records::RedisRecords;
use crate::store::redis::settings::RedisSettings;

use crate::store::tests::record_fixture::{StoreKind, claim_request, id, numbered_response};
use crate::store::tests::redis::RedisServer;
use crate::store::tests::server::StoreServer;

/// Duration of a lease that is renewed during a test.
const LEASE: Duration = Duration::from_secs(1);

/// How long any expected event can take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Two gateways on one Redis server.
struct TwoGateways {
    settings: RedisSettings,
    gateways: [RedisRecords; 2],
    server: StoreServer,
}

impl TwoGateways {
    fn start() -> Self {
        Self::with(|settings| settings)
    }

    fn with(change: impl FnOnce(RedisSettings) -> RedisSettings) -> Self {
        let server = StoreServer::start(StoreKind::Redis);
        let settings = change(server.settings());
        let gateways = [0, 1].map(|_| join(&settings));
        Self {
            settings,
            gateways,
            server,
        }
    }

    /// Starts two gateways with leases of [`LEASE`].
    fn with_short_leases() -> Self {
        Self::with(|settings| RedisSettings {
            lease: LEASE,
            ..settings
        })
    }

    fn redis(&self) -> &RedisServer {
        match &self.server {
            StoreServer::Redis(server, _) => server,
            StoreServer::Cluster(..) => panic!("a single server was started"),
        }
    }
}

/// Starts another gateway with `settings`.
fn join(settings: &RedisSettings) -> RedisRecords {
    let redis = Redis::open(settings.clone(), true, Clock::real()).unwrap();
    redis.records()
}

async fn win(gateway: &RedisRecords, claim_request: ClaimRequest) -> Permit {
    match gateway.claim(&claim_request).await.unwrap() {
        Claim::Won(mut permit) => {
            permit.mark_sent();
            permit
        }
        other => panic!("the claim is not won: {other:?}"),
    }
}

async fn wait(gateway: &RedisRecords, claim_request: ClaimRequest) -> Waiter {
    match gateway.claim(&claim_request).await.unwrap() {
        Claim::InFlight(waiting) => waiting,
        other => panic!("the key is not in flight: {other:?}"),
    }
}

async fn ended(waiting: Waiter) -> ExecutionOutcome {
    let ended = tokio::time::timeout(EVENT_TIMEOUT, waiting.ended());
    ended.await.expect("waiters receive the outcome")
}

async fn assert_replay(
    gateway: &RedisRecords,
    claim_request: ClaimRequest,
    expected: &Arc<StoredResponse>,
) {
    match gateway.claim(&claim_request).await.unwrap() {
        Claim::Replay(replayed) => assert_eq!(replayed, *expected),
        other => panic!("the result of the claim is not a replay: {other:?}"),
    }
}

/// Claims an idempotency key repeatedly until its execution is no longer in flight, and returns the last result.
async fn claim_after_end(gateway: &RedisRecords, claim_request: ClaimRequest) -> Claim {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        match gateway.claim(&claim_request).await {
            Ok(Claim::InFlight(_)) | Err(_) => {}
            Ok(claim) => return claim,
        }
        assert!(Instant::now() < deadline, "the execution does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn release_if_unknown(key: u16) -> ClaimRequest {
    let mut claim_request = claim_request(key);
    claim_request.settings.on_unknown = OnUnknown::Release;
    claim_request
}

/// `docs/fleet.md` states that waiters receive the outcome up to 250 ms after its record.
#[tokio::test]
async fn waiters_on_another_gateway_receive_every_outcome() {
    let fleet = TwoGateways::start();
    let [a, b] = &fleet.gateways;
    let response = || numbered_response(1);
    for (key, outcome) in [
        (1, ExecutionOutcome::Completed(response())),
        (2, ExecutionOutcome::Tombstone),
        (3, ExecutionOutcome::Unknown),
        (4, ExecutionOutcome::Released(Some(Ok(response())))),
    ] {
        let permit = win(a, claim_request(key)).await;
        let here = wait(a, claim_request(key)).await;
        let there = [
            wait(b, claim_request(key)).await,
            wait(b, claim_request(key)).await,
        ];
        // After this time, the polls have their longest interval.
        tokio::time::sleep(Duration::from_millis(400)).await;
        a.end(permit, outcome.clone()).await.unwrap();
        assert_eq!(format!("{:?}", ended(here).await), format!("{outcome:?}"));
        // Redis stores no response of a released claim.
        let expected = match outcome {
            ExecutionOutcome::Released(_) => ExecutionOutcome::Released(None),
            stored => stored,
        };
        let began = Instant::now();
        for waiting in there {
            assert_eq!(
                format!("{:?}", ended(waiting).await),
                format!("{expected:?}")
            );
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    assert_replay(b, claim_request(1), &response()).await;
}

#[tokio::test]
async fn a_waiter_never_receives_the_response_to_a_later_request_with_the_same_key() {
    let fleet = TwoGateways::start();
    let [a, b] = &fleet.gateways;
    for key in 0..100 {
        let permit = win(a, claim_request(key)).await;
        let waiting = wait(b, claim_request(key)).await;
        a.end(permit, ExecutionOutcome::Released(None))
            .await
            .unwrap();
        // The new claim is made immediately, so it usually happens before the other gateway polls the record.
        let mut another = claim_request(key);
        another.fingerprint = Fingerprint {
            request: [8; 16],
            credentials: [8; 16],
        };
        let permit = win(a, another).await;
        a.end(permit, ExecutionOutcome::Completed(numbered_response(key)))
            .await
            .unwrap();
        let outcome = ended(waiting).await;
        assert!(
            matches!(outcome, ExecutionOutcome::Released(None)),
            "{key}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn close_waits_until_redis_has_the_outcomes_of_dropped_permits() {
    let server = StoreServer::start(StoreKind::Redis);
    let settings = server.settings();
    let redis = Redis::open(settings.clone(), true, Clock::real()).unwrap();
    let records = redis.records();
    let (sent, unsent) = (
        win(&records, claim_request(1)).await,
        match records.claim(&claim_request(2)).await {
            Ok(Claim::Won(permit)) => permit,
            other => panic!("{other:?}"),
        },
    );
    drop((sent, unsent));
    // `close` must work although `records` still exists.
    redis.close();
    let other = join(&settings);
    assert!(matches!(
        other.claim(&claim_request(1)).await.unwrap(),
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    drop(win(&other, claim_request(2)).await);
    drop(records);
}

#[tokio::test]
async fn a_lease_is_renewed_while_its_execution_runs() {
    let fleet = TwoGateways::with_short_leases();
    let [a, b] = &fleet.gateways;
    let permit = win(a, claim_request(1)).await;
    let until = Instant::now() + LEASE * 3;
    while Instant::now() < until {
        drop(wait(b, claim_request(1)).await);
        tokio::time::sleep(LEASE / 5).await;
    }
    a.end(permit, ExecutionOutcome::Completed(numbered_response(1)))
        .await
        .unwrap();
    assert_replay(b, claim_request(1), &numbered_response(1)).await;
}

#[tokio::test]
async fn the_key_of_a_crashed_gateway_is_unknown_when_its_lease_expires() {
    let fleet = TwoGateways::start();
    let [a, b] = &fleet.gateways;
    // The test takes less real time than a renewal interval, so the gateway does not renew the lease. When the clock of
    // Redis is advanced, the lease expires as after a crash of the gateway.
    let permit = win(a, claim_request(1)).await;
    let waiting = wait(b, claim_request(1)).await;
    fleet.server.advance(fleet.settings.lease);
    assert!(matches!(ended(waiting).await, ExecutionOutcome::Unknown));
    assert!(matches!(
        claim_after_end(b, claim_request(1)).await,
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    let found = b.find(id(1, 1).key, None, 10).await.unwrap();
    assert_eq!(found[0].state, RecordState::Unknown);
    // The gateway with the expired claim can still store its outcome.
    a.end(permit, ExecutionOutcome::Completed(numbered_response(1)))
        .await
        .unwrap();
    assert_replay(b, claim_request(1), &numbered_response(1)).await;
}

#[tokio::test]
async fn an_expired_claim_cannot_end_a_later_claim_of_its_key() {
    let fleet = TwoGateways::start();
    let [a, b] = &fleet.gateways;
    for (key, how) in [(1, "complete"), (2, "unknown"), (3, "release")] {
        let expired = win(a, release_if_unknown(key)).await;
        fleet.server.advance(fleet.settings.lease);
        let permit = win(b, release_if_unknown(key)).await;
        match how {
            "complete" => {
                let outcome = ExecutionOutcome::Completed(numbered_response(7));
                a.end(expired, outcome).await.unwrap_err();
            }
            "unknown" => a.end(expired, ExecutionOutcome::Unknown).await.unwrap(),
            _ => a
                .end(expired, ExecutionOutcome::Released(None))
                .await
                .unwrap(),
        }
        drop(wait(&join(&fleet.settings), claim_request(key)).await);
        b.end(permit, ExecutionOutcome::Completed(numbered_response(key)))
            .await
            .unwrap();
        for gateway in [a, b] {
            assert_replay(gateway, claim_request(key), &numbered_response(key)).await;
        }
    }
}

#[tokio::test]
async fn a_claim_whose_reply_is_lost_is_cancelled_even_if_it_arrives_late() {
    let fleet = TwoGateways::with(|settings| RedisSettings {
        records_timeout: Duration::from_millis(200),
        ..settings
    });
    let [a, b] = &fleet.gateways;
    // This claim opens a connection. While Redis is frozen, the buffer of this connection stores the next claim.
    drop(win(a, claim_request(9)).await);
    fleet.redis().freeze();
    a.claim(&claim_request(1)).await.unwrap_err();
    fleet.redis().thaw();
    match claim_after_end(b, claim_request(1)).await {
        Claim::Won(permit) => drop(permit),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_without_memory_rejects_new_keys_but_ends_claims_and_replays() {
    let fleet = TwoGateways::start();
    let [a, b] = &fleet.gateways;
    let permits = [
        win(a, claim_request(1)).await,
        win(a, claim_request(2)).await,
    ];
    let [completed, lost] = permits;
    let waiting = wait(b, claim_request(1)).await;
    fleet.redis().fill();
    assert!(matches!(
        a.claim(&claim_request(3)).await.unwrap(),
        Claim::Rejected(ClaimRejection::StoreFull)
    ));
    drop(wait(b, claim_request(2)).await);
    a.end(completed, ExecutionOutcome::Completed(numbered_response(1)))
        .await
        .unwrap();
    a.end(lost, ExecutionOutcome::Unknown).await.unwrap();
    assert!(matches!(
        ended(waiting).await,
        ExecutionOutcome::Completed(_)
    ));
    assert_replay(b, claim_request(1), &numbered_response(1)).await;
    assert!(matches!(
        b.claim(&claim_request(2)).await.unwrap(),
        Claim::Rejected(ClaimRejection::OutcomeUnknown)
    ));
    fleet.redis().unfill();
    drop(win(b, claim_request(3)).await);
}

/// A Redis server without free memory can still confirm that its replicas have a record.
#[tokio::test]
async fn a_server_without_memory_still_confirms_replication() {
    let fleet = TwoGateways::start();
    let replica = RedisServer::options().replica_of(fleet.redis()).start();
    let settings = RedisSettings {
        wait_replicas: NonZeroU32::new(1),
        lease: Duration::from_secs(8),
        ..fleet.settings.clone()
    };
    let gateway = join(&settings);
    // The claims are repeated, because WAIT counts a replica only after its first report of its offset. That takes up
    // to a second.
    let (completed, tombstone) = loop {
        let claims = (
            gateway.claim(&claim_request(1)).await,
            gateway.claim(&claim_request(2)).await,
        );
        if let (Ok(Claim::Won(mut first)), Ok(Claim::Won(mut second))) = claims {
            first.mark_sent();
            second.mark_sent();
            break (first, second);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    fleet.redis().fill();
    let began = Instant::now();
    let outcome = ExecutionOutcome::Completed(numbered_response(1));
    gateway.end(completed, outcome).await.unwrap();
    gateway
        .end(tombstone, ExecutionOutcome::Tombstone)
        .await
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_replay(&fleet.gateways[1], claim_request(1), &numbered_response(1)).await;
    // Both records must be on the replica.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let records = replica.command(&["KEYS", "*:r:*"]).array();
    assert_eq!(records.len(), 2, "{records:?}");
    drop(replica);
}

#[tokio::test]
async fn a_record_written_on_another_connection_must_be_replicated_before_the_response_is_sent() {
    let fleet = TwoGateways::start();
    let replica = RedisServer::options().replica_of(fleet.redis()).start();
    let gateway = join(&RedisSettings {
        wait_replicas: NonZeroU32::new(1),
        records_timeout: Duration::from_millis(300),
        lease: Duration::from_secs(2),
        ..fleet.settings.clone()
    });
    eventually(async || gateway.claim(&claim_request(9)).await.map(drop)).await;
    let permit = win(&gateway, claim_request(1)).await;
    replica.freeze();
    // WAIT succeeds immediately on a new connection that has made no write. The gateway must not conclude from this
    // that the record is replicated.
    close_connections(fleet.redis());
    let outcome = ExecutionOutcome::Completed(numbered_response(1));
    gateway.end(permit, outcome).await.unwrap_err();
    gateway.claim(&claim_request(2)).await.unwrap_err();
    replica.thaw();
}

#[tokio::test]
async fn an_execution_is_recorded_although_redis_lost_its_claim() {
    let fleet = TwoGateways::start();
    let [a, b] = &fleet.gateways;
    let permit = win(a, claim_request(1)).await;
    fleet.redis().restart_empty();
    a.end(permit, ExecutionOutcome::Completed(numbered_response(1)))
        .await
        .unwrap();
    match claim_after_end(b, claim_request(1)).await {
        Claim::Replay(replayed) => assert_eq!(replayed, numbered_response(1)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_response_is_stored_when_redis_is_back_or_unknown_when_the_lease_expires() {
    let fleet = TwoGateways::with(|settings| RedisSettings {
        lease: Duration::from_secs(3),
        records_timeout: Duration::from_millis(200),
        ..settings
    });
    let [a, b] = &fleet.gateways;
    let (soon, late) = (
        win(a, claim_request(1)).await,
        win(a, claim_request(2)).await,
    );
    fleet.redis().freeze();
    let outcome = || ExecutionOutcome::Completed(numbered_response(1));
    let thaw = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        fleet.redis().thaw();
    };
    let (recorded, ()) = tokio::join!(a.end(soon, outcome()), thaw);
    recorded.unwrap();
    assert_replay(b, claim_request(1), &numbered_response(1)).await;

    let waiting = wait(a, claim_request(2)).await;
    fleet.redis().freeze();
    a.end(late, outcome()).await.unwrap_err();
    assert!(matches!(ended(waiting).await, ExecutionOutcome::Unknown));
    fleet.redis().thaw();
    // Both results are correct: Redis now executes the calls that it received while frozen, so it can have stored the
    // outcome.
    match claim_after_end(b, claim_request(2)).await {
        Claim::Rejected(ClaimRejection::OutcomeUnknown) => {}
        Claim::Replay(replayed) => assert_eq!(replayed, numbered_response(1)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_gateways_use_the_same_secret_also_after_redis_lost_its_data() {
    let server = StoreServer::start(StoreKind::Redis);
    let settings = server.settings();
    let open = || Redis::open(settings.clone(), true, Clock::real()).unwrap();
    let (first, second) = (open(), open());
    let secret = |redis: &Redis| *redis.hash_keys().keys().secret.as_bytes();
    assert_eq!(secret(&first), secret(&second));
    let StoreServer::Redis(redis, _) = &server else {
        panic!("a single server was started");
    };
    redis.restart_empty();
    // After the restart, the first gateway that connects stores its secret in Redis. This can be any of the three
    // gateways. The others must take over this secret.
    let third = open();
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while secret(&first) != secret(&third) || secret(&second) != secret(&third) {
        assert!(Instant::now() < deadline, "the secrets stay different");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_redis_with_another_secret_is_not_used_before_it_is_probed() {
    let server = StoreServer::start(StoreKind::Redis);
    let settings = server.settings();
    let redis = Redis::open(settings.clone(), true, Clock::real()).unwrap();
    let records = redis.records();
    drop(win(&records, claim_request(1)).await);
    let StoreServer::Redis(other, _) = &server else {
        panic!("a single server was started");
    };
    // The test simulates that Redis restarted empty, and that another gateway then stored its own secret.
    let name = format!("{}:{{fleet}}:secret", settings.prefix);
    other.command(&[b"SET".as_slice(), name.as_bytes(), &[7; 32]]);
    other.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while records.claim(&claim_request(2)).await.is_err() {
        assert!(Instant::now() < deadline, "Redis is not used again");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(redis.hash_keys().keys().secret.as_bytes(), &[7; 32]);
}

/// Makes the server close all connections, as it does with idle connections.
fn close_connections(server: &RedisServer) {
    let closed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]).int();
    assert!(closed > 0, "there was no connection");
}

#[tokio::test]
async fn every_closed_connection_is_replaced() {
    let fleet = TwoGateways::start();
    let replica = RedisServer::options().replica_of(fleet.redis()).start();
    let gateway = join(&RedisSettings {
        wait_replicas: NonZeroU32::new(1),
        ..fleet.settings.clone()
    });
    // Calls are repeated, because they can fail for a short time for two reasons. WAIT counts a replica only after its
    // first report of its offset. The circuit breaker opens if a connection is closed twice in a row.
    let mut keys = 0..;
    for _ in 0..5 {
        eventually(async || {
            gateway
                .claim(&claim_request(keys.next().unwrap()))
                .await
                .map(drop)
        })
        .await;
        close_connections(fleet.redis());
        eventually(async || gateway.find(id(99, 1).key, None, 10).await.map(drop)).await;
        close_connections(fleet.redis());
        eventually(async || gateway.count().await.map(drop)).await;
        close_connections(fleet.redis());
    }
    drop(replica);
}

/// Retries `attempt` until it succeeds.
async fn eventually(mut attempt: impl AsyncFnMut() -> Result<(), StoreError>) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while let Err(error) = attempt().await {
        assert!(Instant::now() < deadline, "the call still fails: {error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
