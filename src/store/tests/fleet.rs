//! What several gateways promise together, one record at a time.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::idempotency::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, OnUnknown, Permit, RecordState, Records,
    StoreError, StoredResponse, Waiter,
};
use crate::store::redis::Redis;
use crate::store::redis::records::RedisRecords;
use crate::store::redis::settings::{Nodes, RedisSettings};

use super::bench::{Kind, answer, claim_request, id};
use super::redis::RedisServer;
use super::server::{Server, node};

/// How long a claim holds where that is what a test is about.
const LEASE: Duration = Duration::from_secs(1);

/// More than anything takes that is bound to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two gateways on one server.
struct Fleet {
    settings: RedisSettings,
    gateways: [RedisRecords; 2],
    server: Server,
}

impl Fleet {
    fn start() -> Self {
        Self::with(|settings| settings)
    }

    fn with(change: impl FnOnce(RedisSettings) -> RedisSettings) -> Self {
        let server = Server::start(Kind::Redis);
        let settings = change(server.settings());
        let gateways = [0, 1].map(|_| join(&settings));
        Self {
            settings,
            gateways,
            server,
        }
    }

    /// One whose claims lapse soon.
    fn with_short_leases() -> Self {
        Self::with(|settings| RedisSettings {
            lease: LEASE,
            ..settings
        })
    }

    fn redis(&self) -> &RedisServer {
        match &self.server {
            Server::Redis(server, _) => server,
            Server::Cluster(..) => panic!("a single server was started"),
        }
    }
}

/// One more gateway.
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
        other => panic!("the claim_request was not won: {other:?}"),
    }
}

async fn wait(gateway: &RedisRecords, claim_request: ClaimRequest) -> Waiter {
    match gateway.claim(&claim_request).await.unwrap() {
        Claim::InFlight(waiting) => waiting,
        other => panic!("nothing is in flight: {other:?}"),
    }
}

async fn ended(waiting: Waiter) -> ExecutionOutcome {
    let ended = tokio::time::timeout(PATIENCE, waiting.ended());
    ended.await.expect("those who wait are told")
}

async fn replays(
    gateway: &RedisRecords,
    claim_request: ClaimRequest,
    expected: &Arc<StoredResponse>,
) {
    match gateway.claim(&claim_request).await.unwrap() {
        Claim::Replay(replayed) => assert_eq!(replayed, *expected),
        other => panic!("no replay: {other:?}"),
    }
}

/// Bids until the answer is another one than that it is in flight.
async fn when_over(gateway: &RedisRecords, claim_request: ClaimRequest) -> Claim {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match gateway.claim(&claim_request).await {
            Ok(Claim::InFlight(_)) | Err(_) => {}
            Ok(claim) => return claim,
        }
        assert!(Instant::now() < deadline, "it never ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn retried(key: u16) -> ClaimRequest {
    let mut claim_request = claim_request(key);
    claim_request.settings.on_unknown = OnUnknown::Release;
    claim_request
}

#[tokio::test]
async fn duplicates_on_another_gateway_wait_and_get_the_same_answer() {
    let Fleet {
        gateways: [a, b],
        server: _server,
        ..
    } = Fleet::start();
    let permit = win(&a, claim_request(1)).await;
    let waiting = [
        wait(&b, claim_request(1)).await,
        wait(&b, claim_request(1)).await,
    ];
    a.end(permit, ExecutionOutcome::Completed(answer(1)))
        .await
        .unwrap();
    for waiting in waiting {
        match ended(waiting).await {
            ExecutionOutcome::Completed(told) => assert_eq!(told, answer(1)),
            other => panic!("{other:?}"),
        }
    }
    replays(&b, claim_request(1), &answer(1)).await;
}

#[tokio::test]
async fn those_who_wait_elsewhere_learn_that_a_key_was_released_and_nothing_else() {
    let Fleet {
        gateways: [a, b],
        server: _server,
        ..
    } = Fleet::start();
    let permit = win(&a, claim_request(1)).await;
    let (here, there) = (
        wait(&a, claim_request(1)).await,
        wait(&b, claim_request(1)).await,
    );
    a.end(permit, ExecutionOutcome::Released(Some(Ok(answer(1)))))
        .await
        .unwrap();
    assert!(matches!(
        ended(here).await,
        ExecutionOutcome::Released(Some(_))
    ));
    assert!(matches!(
        ended(there).await,
        ExecutionOutcome::Released(None)
    ));
    drop(win(&b, claim_request(1)).await);
}

#[tokio::test]
async fn nobody_is_given_the_answer_to_another_request_that_took_the_key_since() {
    let fleet = Fleet::start();
    let [a, b] = &fleet.gateways;
    for key in 0..100 {
        let permit = win(a, claim_request(key)).await;
        let waiting = wait(b, claim_request(key)).await;
        a.end(permit, ExecutionOutcome::Released(None))
            .await
            .unwrap();
        // Before the other gateway looks, if it can be.
        let mut another = claim_request(key);
        another.fingerprint = Fingerprint {
            request: [8; 16],
            credentials: [8; 16],
        };
        let permit = win(a, another).await;
        a.end(permit, ExecutionOutcome::Completed(answer(key)))
            .await
            .unwrap();
        let ending = ended(waiting).await;
        assert!(
            matches!(ending, ExecutionOutcome::Released(None)),
            "{key}: {ending:?}"
        );
    }
}

#[tokio::test]
async fn what_was_dropped_at_the_end_is_told_to_redis_before_it_is_let_go_of() {
    let server = Server::start(Kind::Redis);
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
    // Somebody else may still hold the records.
    redis.close();
    let other = join(&settings);
    assert!(matches!(
        other.claim(&claim_request(1)).await.unwrap(),
        Claim::Unknown
    ));
    drop(win(&other, claim_request(2)).await);
    drop(records);
}

#[tokio::test]
async fn those_who_wait_elsewhere_are_told_of_tombstones_and_of_what_nobody_knows() {
    let Fleet {
        gateways: [a, b],
        server: _server,
        ..
    } = Fleet::start();
    let entombed = win(&a, claim_request(1)).await;
    let lost = win(&a, claim_request(2)).await;
    let waiting = (
        wait(&b, claim_request(1)).await,
        wait(&b, claim_request(2)).await,
    );
    a.end(entombed, ExecutionOutcome::Tombstone).await.unwrap();
    a.end(lost, ExecutionOutcome::Unknown).await.unwrap();
    assert!(matches!(
        ended(waiting.0).await,
        ExecutionOutcome::Tombstone
    ));
    assert!(matches!(ended(waiting.1).await, ExecutionOutcome::Unknown));
}

#[tokio::test]
async fn a_claim_holds_for_as_long_as_its_execution_runs() {
    let fleet = Fleet::with_short_leases();
    let [a, b] = &fleet.gateways;
    let permit = win(a, claim_request(1)).await;
    let until = Instant::now() + LEASE * 3;
    while Instant::now() < until {
        drop(wait(b, claim_request(1)).await);
        tokio::time::sleep(LEASE / 5).await;
    }
    a.end(permit, ExecutionOutcome::Completed(answer(1)))
        .await
        .unwrap();
    replays(b, claim_request(1), &answer(1)).await;
}

#[tokio::test]
async fn a_gateway_that_dies_leaves_a_claim_that_becomes_unknown_when_its_lease_is_over() {
    let fleet = Fleet::start();
    let [a, b] = &fleet.gateways;
    // Nobody renews a claim of a clock that stands still.
    let permit = win(a, claim_request(1)).await;
    let waiting = wait(b, claim_request(1)).await;
    fleet.server.advance(fleet.settings.lease);
    assert!(matches!(ended(waiting).await, ExecutionOutcome::Unknown));
    assert!(matches!(
        when_over(b, claim_request(1)).await,
        Claim::Unknown
    ));
    let found = b.find(id(1, 1).key, None, 10).await.unwrap();
    assert_eq!(found[0].state, RecordState::Unknown);
    // Its own token may still say how it ended.
    a.end(permit, ExecutionOutcome::Completed(answer(1)))
        .await
        .unwrap();
    replays(b, claim_request(1), &answer(1)).await;
}

#[tokio::test]
async fn a_claim_that_lapsed_cannot_end_another() {
    let fleet = Fleet::start();
    let [a, b] = &fleet.gateways;
    for (key, how) in [(1, "complete"), (2, "unknown"), (3, "release")] {
        let lapsed = win(a, retried(key)).await;
        fleet.server.advance(fleet.settings.lease);
        let permit = win(b, retried(key)).await;
        match how {
            "complete" => {
                let outcome = ExecutionOutcome::Completed(answer(7));
                a.end(lapsed, outcome).await.unwrap_err();
            }
            "unknown" => a.end(lapsed, ExecutionOutcome::Unknown).await.unwrap(),
            _ => a
                .end(lapsed, ExecutionOutcome::Released(None))
                .await
                .unwrap(),
        }
        drop(wait(&join(&fleet.settings), claim_request(key)).await);
        b.end(permit, ExecutionOutcome::Completed(answer(key)))
            .await
            .unwrap();
        for gateway in [a, b] {
            replays(gateway, claim_request(key), &answer(key)).await;
        }
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_called_off_even_if_it_comes_late() {
    let fleet = Fleet::with(|settings| RedisSettings {
        records_timeout: Duration::from_millis(200),
        ..settings
    });
    let [a, b] = &fleet.gateways;
    // So that there is a connection for the claim to be stuck in.
    drop(win(a, claim_request(9)).await);
    fleet.redis().freeze();
    a.claim(&claim_request(1)).await.unwrap_err();
    fleet.redis().thaw();
    match when_over(b, claim_request(1)).await {
        Claim::Won(permit) => drop(permit),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_full_server_takes_no_new_keys_and_still_concludes_and_replays() {
    let fleet = Fleet::start();
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
        Claim::StoreFull
    ));
    drop(wait(b, claim_request(2)).await);
    a.end(completed, ExecutionOutcome::Completed(answer(1)))
        .await
        .unwrap();
    a.end(lost, ExecutionOutcome::Unknown).await.unwrap();
    assert!(matches!(
        ended(waiting).await,
        ExecutionOutcome::Completed(_)
    ));
    replays(b, claim_request(1), &answer(1)).await;
    assert!(matches!(
        b.claim(&claim_request(2)).await.unwrap(),
        Claim::Unknown
    ));
    fleet.redis().unfill();
    drop(win(b, claim_request(3)).await);
}

/// A server whose memory is full can still confirm that its replicas have what it has recorded.
#[tokio::test]
async fn a_full_server_with_replicas_gives_out_the_response_it_has_recorded() {
    let fleet = Fleet::start();
    let replica = RedisServer::options().replica_of(fleet.redis()).start();
    let settings = RedisSettings {
        wait_replicas: NonZeroU32::new(1),
        lease: Duration::from_secs(8),
        ..fleet.settings.clone()
    };
    let gateway = join(&settings);
    // A replica counts when it has first reported its offset, which takes up to a second.
    let (completed, entombed) = loop {
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
    let outcome = ExecutionOutcome::Completed(answer(1));
    gateway.end(completed, outcome).await.unwrap();
    gateway
        .end(entombed, ExecutionOutcome::Tombstone)
        .await
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(4));
    replays(&fleet.gateways[1], claim_request(1), &answer(1)).await;
    // The replica has them: it can take over.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let records = replica.command(&["KEYS", "*:r:*"]).array();
    assert_eq!(records.len(), 2, "{records:?}");
    drop(replica);
}

#[tokio::test]
async fn a_response_is_withheld_while_a_connection_other_than_its_own_has_replicas_behind() {
    let fleet = Fleet::start();
    let replica = RedisServer::options().replica_of(fleet.redis()).start();
    let gateway = join(&RedisSettings {
        wait_replicas: NonZeroU32::new(1),
        records_timeout: Duration::from_millis(300),
        lease: Duration::from_secs(2),
        ..fleet.settings.clone()
    });
    soon(async || gateway.claim(&claim_request(9)).await.map(drop)).await;
    let permit = win(&gateway, claim_request(1)).await;
    replica.freeze();
    // New connections have written nothing, and must not take that for being replicated.
    hang_up(fleet.redis());
    let outcome = ExecutionOutcome::Completed(answer(1));
    gateway.end(permit, outcome).await.unwrap_err();
    gateway.claim(&claim_request(2)).await.unwrap_err();
    replica.thaw();
}

/// Users of Redis 7 have no channel unless one is granted.
const WITHOUT_CHANNELS: &str = "on >s3cret ~* resetchannels +@read +@write +@scripting +@pubsub \
                                +@connection -@dangerous +time +wait +info";

#[tokio::test]
async fn duplicates_poll_and_no_call_fails_if_the_user_may_not_publish() {
    let server = RedisServer::options()
        .user("gate", WITHOUT_CHANNELS)
        .start();
    let settings = RedisSettings {
        nodes: Nodes::Single(node(&server)),
        user: Some("gate".into()),
        password: Some("s3cret".into()),
        ..Server::start(Kind::Redis).settings()
    };
    let redis = [0, 1].map(|_| Redis::open(settings.clone(), true, Clock::real()).unwrap());
    let [a, b] = redis.each_ref().map(Redis::records);
    for key in 0..5 {
        let (completed, released) = (
            win(&a, claim_request(key)).await,
            win(&a, claim_request(key + 100)).await,
        );
        let waiting = (
            wait(&b, claim_request(key)).await,
            wait(&b, claim_request(key + 100)).await,
        );
        let outcome = ExecutionOutcome::Completed(answer(key));
        a.end(completed, outcome).await.unwrap();
        a.end(released, ExecutionOutcome::Released(None))
            .await
            .unwrap();
        assert!(matches!(
            ended(waiting.0).await,
            ExecutionOutcome::Completed(_)
        ));
        assert!(matches!(
            ended(waiting.1).await,
            ExecutionOutcome::Released(None)
        ));
    }
    for redis in redis {
        let [_, records] = redis.health();
        assert_eq!((records.failures, records.degraded), (0, None));
    }
}

#[tokio::test]
async fn what_was_carried_out_while_redis_lost_everything_is_recorded_all_the_same() {
    let fleet = Fleet::start();
    let [a, b] = &fleet.gateways;
    let permit = win(a, claim_request(1)).await;
    fleet.redis().restart_empty();
    a.end(permit, ExecutionOutcome::Completed(answer(1)))
        .await
        .unwrap();
    match when_over(b, claim_request(1)).await {
        Claim::Replay(replayed) => assert_eq!(replayed, answer(1)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_is_recorded_when_redis_is_back_and_given_up_when_the_lease_is_over() {
    let fleet = Fleet::with(|settings| RedisSettings {
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
    let outcome = || ExecutionOutcome::Completed(answer(1));
    let thaw = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        fleet.redis().thaw();
    };
    let (recorded, ()) = tokio::join!(a.end(soon, outcome()), thaw);
    recorded.unwrap();
    replays(b, claim_request(1), &answer(1)).await;

    let waiting = wait(a, claim_request(2)).await;
    fleet.redis().freeze();
    a.end(late, outcome()).await.unwrap_err();
    assert!(matches!(ended(waiting).await, ExecutionOutcome::Unknown));
    fleet.redis().thaw();
    // What Redis had been told while it stood still it does now: its token may still say how it ended.
    match when_over(b, claim_request(2)).await {
        Claim::Unknown => {}
        Claim::Replay(replayed) => assert_eq!(replayed, answer(1)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn gateways_make_names_alike_whoever_was_first_and_also_when_redis_lost_everything() {
    let server = Server::start(Kind::Redis);
    let settings = server.settings();
    let open = || Redis::open(settings.clone(), true, Clock::real()).unwrap();
    let (first, second) = (open(), open());
    let secret = |redis: &Redis| *redis.hash_keys().keys().secret.as_bytes();
    assert_eq!(secret(&first), secret(&second));
    let Server::Redis(redis, _) = &server else {
        panic!("a single server was started");
    };
    redis.restart_empty();
    // Whoever comes first now says what it is, and may be new.
    let third = open();
    let deadline = Instant::now() + PATIENCE;
    while secret(&first) != secret(&third) || secret(&second) != secret(&third) {
        assert!(Instant::now() < deadline, "they never agree");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_redis_that_makes_names_otherwise_is_not_asked_before_that_is_known() {
    let server = Server::start(Kind::Redis);
    let settings = server.settings();
    let redis = Redis::open(settings.clone(), true, Clock::real()).unwrap();
    let records = redis.records();
    drop(win(&records, claim_request(1)).await);
    let Server::Redis(other, _) = &server else {
        panic!("a single server was started");
    };
    // As if it had been restarted empty, and somebody else was there first.
    let name = format!("{}:{{fleet}}:secret", settings.prefix);
    other.command(&[b"SET".as_slice(), name.as_bytes(), &[7; 32]]);
    other.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let deadline = Instant::now() + PATIENCE;
    while records.claim(&claim_request(2)).await.is_err() {
        assert!(Instant::now() < deadline, "it is never asked again");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(redis.hash_keys().keys().secret.as_bytes(), &[7; 32]);
}

/// Has the server close all connections, as it does with those that are idle for long.
fn hang_up(server: &RedisServer) {
    let closed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]).int();
    assert!(closed > 0, "nobody was connected");
}

#[tokio::test]
async fn connections_that_were_closed_are_made_anew_whatever_they_are_for() {
    let fleet = Fleet::start();
    let replica = RedisServer::options().replica_of(fleet.redis()).start();
    let gateway = join(&RedisSettings {
        wait_replicas: NonZeroU32::new(1),
        ..fleet.settings.clone()
    });
    // Soon, and not at once: a replica counts when it has said how far it is, and whoever is hung up on twice in
    // a row takes Redis for gone until it has looked again.
    let mut keys = 0..;
    for _ in 0..5 {
        soon(async || {
            gateway
                .claim(&claim_request(keys.next().unwrap()))
                .await
                .map(drop)
        })
        .await;
        hang_up(fleet.redis());
        soon(async || gateway.find(id(99, 1).key, None, 10).await.map(drop)).await;
        hang_up(fleet.redis());
        soon(async || gateway.count().await.map(drop)).await;
        hang_up(fleet.redis());
    }
    drop(replica);
}

/// Tries until it is done.
async fn soon(mut attempt: impl AsyncFnMut() -> Result<(), StoreError>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = attempt().await {
        assert!(Instant::now() < deadline, "never done: {error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
