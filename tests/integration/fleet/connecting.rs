//! Tests of connections to Redis: startup before Redis, replicas, TLS, ACL users.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::fleet::gateways::{Setup, is_unavailable};
use crate::fleet::upstream_api::{Api, ApiResponse};
use crate::support::redis::RedisServer;
use crate::support::{Certificates, Process, eventually};

/// Maximum time between the recovery of Redis and the recovery of a gateway.
const RECOVERY: Duration = Duration::from_secs(2);

/// Waits until requests with an idempotency key are executed, and asserts that this takes at most [`RECOVERY`]. Each
/// attempt has a new key.
async fn assert_recovery(gateway: &Process) {
    let began = Instant::now();
    let mut attempt = 0;
    eventually("requests with keys are executed", async || {
        attempt += 1;
        let response = gateway.pay(&format!("again-{attempt}")).await;
        assert!(
            is_unavailable(&response) || ApiResponse::of(&response).is_some(),
            "{response:?}"
        );
        ApiResponse::of(&response).is_some() && gateway.readyz().await == "ready\n"
    })
    .await;
    let took = began.elapsed();
    eprintln!("recovered after {took:?}");
    assert!(took < RECOVERY, "{took:?}");
}

#[tokio::test]
async fn a_gateway_can_start_before_its_redis() {
    let (api, redis) = (Api::start(), RedisServer::start());
    redis.kill();
    let gateways = [(); 2].map(|()| Setup::new(&api, &redis.url()).start());
    for gateway in &gateways {
        let rejected = gateway.pay("key").await;
        assert!(is_unavailable(&rejected), "{rejected:?}");
        let response = gateway.get().await;
        assert!((200..300).contains(&response.status), "{response:?}");
    }
    redis.restart();
    for gateway in &gateways {
        assert_recovery(gateway).await;
    }
    // The gateways now share idempotency records, although each gateway started with its own secret.
    let first = gateways[0].execute("key").await;
    assert_eq!(gateways[1].replay("key").await, first);
    assert_eq!(api.times("key"), 1);
}

#[tokio::test]
async fn with_wait_replicas_a_request_is_sent_only_after_a_replica_has_the_claim() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let replica = RedisServer::options().replica_of(&redis).start();
    // The test waits for the replica, because WAIT counts a replica only after its first report of its offset. That
    // takes up to a second.
    redis.command(&["SET", "something", "new"]);
    eventually("the replica reports its offset", async || {
        let replica = redis.info("replication", "slave0");
        replica.contains("state=online") && !replica.contains("offset=0,")
    })
    .await;
    let setup = Setup::new(&api, &redis.url()).store("wait_replicas = 1");
    let gateways = [setup.start(), setup.start()];
    let first = gateways[0].execute("key").await;
    assert_eq!(gateways[1].replay("key").await, first);

    replica.freeze();
    for (gateway, key) in gateways.iter().zip(["later", "later-still"]) {
        let rejected = gateway.pay(key).await;
        assert!(is_unavailable(&rejected), "{rejected:?}");
        assert_eq!(api.times(key), 0, "nothing was sent");
        // A replay is sent without confirmation by a replica.
        assert_eq!(gateway.replay("key").await, first);
    }

    replica.thaw();
    assert_recovery(&gateways[0]).await;
    let mut later = None;
    eventually("the rejected claim is cancelled", async || {
        let response = gateways[1].pay("later").await;
        later = ApiResponse::of(&response);
        later.is_some()
    })
    .await;
    assert_eq!(Some(gateways[0].replay("later").await), later);
    assert_eq!(api.times("later"), 1);
}

/// The ACL rules of `docs/fleet.md`.
pub(crate) const RULES: &str =
    "on >s3cret ~tidegate:* +@read +@write +@scripting +@connection -@dangerous +time +wait +info";

#[tokio::test]
async fn a_gateway_uses_tls_and_an_acl_user() {
    let certificates = Certificates::for_localhost();
    let (certificate, key) = (certificates.cert_file(), certificates.key_file());
    let redis = RedisServer::options()
        .tls(&certificate, &key, &certificate)
        .password("not this one")
        .user("gate", RULES)
        .start();
    let api = Api::start();
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "s3cret\n").unwrap();
    let setup = Setup::new(&api, &redis.url())
        .store(&format!("user = \"gate\"\npassword_file = {password:?}"));
    let with_ca = setup.clone().store(&format!("ca_file = {certificate:?}"));
    let gateways = [with_ca.start(), with_ca.start()];
    let first = gateways[0].execute("key").await;
    assert_eq!(gateways[1].replay("key").await, first);
    for gateway in &gateways {
        let response = gateway.get().await;
        assert!((200..300).contains(&response.status), "{response:?}");
        assert!(!gateway.log().contains("degraded"), "{}", gateway.log());
        assert!(!gateway.log().contains("s3cret"), "{}", gateway.log());
    }

    // If the CA certificate is not configured, the gateway starts, but it cannot use Redis.
    let without_ca = setup.start();
    without_ca.wait_for_line("certificate");
    let rejected = without_ca.pay("key").await;
    assert!(is_unavailable(&rejected), "{rejected:?}");
}

/// The head of the request arrives before the gateway has the secret of the fleet, and the body arrives after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_hashed_with_the_secret_of_the_fleet_when_the_request_is_complete() {
    let api = Api::start();
    let redis = RedisServer::options().append_only().start();
    let setup = Setup::new(&api, &redis.url());
    let before = setup.start();
    before.execute("other").await;
    redis.kill();
    let new = setup.start();

    let mut stream = TcpStream::connect(new.address()).unwrap();
    let head = "POST /pay HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nIdempotency-Key: key\r\n\
                Content-Length: 8\r\n\r\namou";
    stream.write_all(head.as_bytes()).unwrap();
    redis.restart();
    for gateway in [&before, &new] {
        assert_recovery(gateway).await;
    }
    // The rest of the body is sent after the gateway has recovered.
    stream.write_all(b"nt=1").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 2"), "{response}");
    before.replay("key").await;
    assert_eq!(api.times("key"), 1);
}
