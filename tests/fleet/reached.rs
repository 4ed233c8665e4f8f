//! How Redis is reached: later than the gateway, through TLS, together with its replicas, and when it is full.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::api::{Api, Held, Print};
use crate::gateways::{Gateway, Setup, is_unavailable};
use crate::harness::{Certificates, eventually};
use crate::redis::RedisServer;

/// How soon a gateway is well again when its Redis is.
const RECOVERY: Duration = Duration::from_secs(2);

/// Waits until keys can be had, which must not take long; each attempt has a key of its own.
async fn recovers(gateway: &Gateway) {
    let began = Instant::now();
    let mut attempt = 0;
    eventually("keys can be had", async || {
        attempt += 1;
        let answer = gateway.pay(&format!("again-{attempt}")).await;
        assert!(
            is_unavailable(&answer) || Print::of(&answer).is_some(),
            "{answer:?}"
        );
        Print::of(&answer).is_some() && gateway.readiness().await == "ready\n"
    })
    .await;
    let took = began.elapsed();
    eprintln!("well again after {took:?}");
    assert!(took < RECOVERY, "{took:?}");
}

#[tokio::test]
async fn a_gateway_may_be_there_before_its_redis() {
    let (api, redis) = (Api::start(), RedisServer::start());
    redis.kill();
    let gateways = [(); 2].map(|()| Setup::before(&api, &redis.url()).start());
    for gateway in &gateways {
        let refused = gateway.pay("key").await;
        assert!(is_unavailable(&refused), "{refused:?}");
        let answer = gateway.get().await;
        assert!((200..300).contains(&answer.status), "{answer:?}");
    }
    redis.restart();
    for gateway in &gateways {
        recovers(gateway).await;
    }
    // From then on they are one fleet, though each had begun by itself.
    let first = gateways[0].execute("key").await;
    assert_eq!(gateways[1].replay("key").await, first);
    assert_eq!(api.times("key"), 1);
}

#[tokio::test]
async fn nothing_is_sent_before_a_replica_has_the_claim() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let replica = RedisServer::options().replica_of(&redis).start();
    // A replica is told nothing new before it has said for the first time how far it is, which takes it up to
    // a second.
    redis.command(&["SET", "something", "new"]);
    eventually("the replica says that it has it", async || {
        let replica = redis.info("replication", "slave0");
        replica.contains("state=online") && !replica.contains("offset=0,")
    })
    .await;
    let setup = Setup::before(&api, &redis.url()).store("wait_replicas = 1");
    let gateways = [setup.start(), setup.start()];
    let first = gateways[0].execute("key").await;
    assert_eq!(gateways[1].replay("key").await, first);

    replica.freeze();
    for (gateway, key) in gateways.iter().zip(["later", "later-still"]) {
        let refused = gateway.pay(key).await;
        assert!(is_unavailable(&refused), "{refused:?}");
        assert_eq!(api.times(key), 0, "nothing was sent");
        // What is on record takes nobody's word.
        assert_eq!(gateway.replay("key").await, first);
    }

    replica.thaw();
    recovers(&gateways[0]).await;
    let mut later = None;
    eventually(
        "the claims that came to nothing are called off",
        async || {
            let answer = gateways[1].pay("later").await;
            later = Print::of(&answer);
            later.is_some()
        },
    )
    .await;
    assert_eq!(Some(gateways[0].replay("later").await), later);
    assert_eq!(api.times("later"), 1);
}

/// What a gateway's user needs, and no more.
const RULES: &str = "on >s3cret ~tidegate:* &tidegate:* +@read +@write +@scripting +@pubsub \
                     +@connection -@dangerous +time +wait +info";

#[tokio::test]
async fn redis_is_spoken_to_through_tls_as_a_user_of_its_own() {
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
    let setup = Setup::before(&api, &redis.url())
        .store(&format!("user = \"gate\"\npassword_file = {password:?}"));
    let trusting = setup.clone().store(&format!("ca_file = {certificate:?}"));
    let gateways = [trusting.start(), trusting.start()];
    let first = gateways[0].execute("key").await;
    assert_eq!(gateways[1].replay("key").await, first);
    for gateway in &gateways {
        let answer = gateway.get().await;
        assert!((200..300).contains(&answer.status), "{answer:?}");
        assert!(!gateway.log().contains("degraded"), "{}", gateway.log());
        assert!(!gateway.log().contains("s3cret"), "{}", gateway.log());
    }

    // Whoever does not know the certificate says so, and does without.
    let wary = setup.start();
    wary.says("certificate");
    let refused = wary.pay("key").await;
    assert!(is_unavailable(&refused), "{refused:?}");
}

#[tokio::test]
async fn a_user_without_channels_is_reported_at_start_and_duplicates_poll() {
    let rules = RULES.replace("&tidegate:*", "resetchannels");
    let redis = RedisServer::options().user("gate", &rules).start();
    let api = Api::holding(Held::Answers);
    let setup = Setup::before(&api, &redis.url()).store("user = \"gate\"\npassword = \"s3cret\"");
    let gateways = [setup.start(), setup.start()];
    for gateway in &gateways {
        gateway.says("`ACL SETUSER gate &tidegate:* +@pubsub`");
    }
    let keys: Vec<_> = (0..5).map(|key| format!("key-{key}")).collect();
    let firsts: Vec<_> = keys
        .iter()
        .map(|key| tokio::spawn(gateways[0].paying(key).send()))
        .collect();
    eventually("the executions have begun", async || {
        api.count() == keys.len()
    })
    .await;
    let seconds: Vec<_> = keys
        .iter()
        .map(|key| tokio::spawn(gateways[1].paying(key).send()))
        .collect();
    eventually("the duplicates wait", async || {
        gateways[1].outcomes("waited").await == keys.len() as u64
    })
    .await;
    api.hold(Held::Nothing);
    for (first, second) in firsts.into_iter().zip(seconds) {
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert!(second.is_replay(), "{second:?}");
        assert_eq!(Print::of(&second), Print::of(&first));
    }
    for gateway in &gateways {
        gateway
            .execute(&format!("unrelated-{}", gateway.address()))
            .await;
        assert_eq!(gateway.metric("store_failures_total").await, 0);
    }
}

#[tokio::test]
async fn a_full_redis_replays_and_takes_no_new_keys() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let setup = Setup::before(&api, &redis.url());
    let gateways = [setup.start(), setup.start()];
    let known = gateways[0].execute("known").await;
    redis.fill();
    for gateway in &gateways {
        assert_eq!(gateway.replay("known").await, known);
        let refused = gateway.pay("new").await;
        assert!(is_unavailable(&refused), "{refused:?}");
    }
    assert_eq!(api.times("new"), 0);
    redis.unfill();
    let new = gateways[1].execute("new").await;
    assert_eq!(gateways[0].replay("new").await, new);
}

/// The gateway learns what the fleet makes names with while the body of a request is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_named_as_the_fleet_names_it_when_it_is_whole() {
    let api = Api::start();
    let redis = RedisServer::options().append_only().start();
    let setup = Setup::before(&api, &redis.url());
    let before = setup.start();
    before.execute("other").await;
    redis.kill();
    let newcomer = setup.start();

    let mut stream = TcpStream::connect(newcomer.address()).unwrap();
    let head = "POST /pay HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nIdempotency-Key: key\r\n\
                Content-Length: 8\r\n\r\namou";
    stream.write_all(head.as_bytes()).unwrap();
    redis.restart();
    for gateway in [&before, &newcomer] {
        recovers(gateway).await;
    }
    // Long after the head, which these have overtaken.
    stream.write_all(b"nt=1").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    before.replay("key").await;
    assert_eq!(api.times("key"), 1);
}
