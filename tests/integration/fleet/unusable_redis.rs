//! Tests with a Redis that the gateway cannot use. The gateway logs the reason, applies rate limits locally, and
//! rejects requests with an idempotency key.

use crate::fleet::connecting::RULES;
use crate::fleet::fake_servers::FakeServer;
use crate::fleet::gateways::{Setup, is_unavailable};
use crate::fleet::upstream_api::Api;
use crate::support::eventually;
use crate::support::redis::{Options, RedisCluster, RedisServer};

/// A rate limit that admits three requests and rejects all later requests of a test.
const THREE_REQUESTS: &str = "rate = \"1/m\"\nburst = 2";

/// Asserts that a gateway starts, and that it logs and reports `reason`. It must apply rate limits locally, and reject
/// requests with an idempotency key.
async fn assert_degraded(setup: impl FnOnce(&Api) -> Setup, reason: &str) {
    let api = Api::start();
    let gateway = setup(&api).limit(THREE_REQUESTS).start();
    gateway.wait_for_line(reason);
    let log = gateway.log();
    let degraded = |line: &&str| line.contains("store degraded");
    for part in ["on_store_error", "idempotency records"] {
        let mut lines = log.lines().filter(degraded);
        assert!(
            lines.any(|line| line.contains(part) && line.contains(reason)),
            "{log}"
        );
    }
    let ready = gateway.readyz().await;
    for part in ["limits", "records"] {
        let expected = format!("ready, degraded: {part}: ");
        let mut lines = ready.lines();
        assert!(lines.any(|line| line.starts_with(&expected)), "{ready}");
    }
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(gateway.get().await.status);
        let rejected = gateway.pay("key").await;
        assert!(is_unavailable(&rejected), "{rejected:?}");
    }
    let limited = statuses.pop();
    assert_eq!(limited, Some(429));
    assert!(
        statuses.iter().all(|it| (200..300).contains(it)),
        "{statuses:?}"
    );
    assert_eq!(api.times("key"), 0, "no key is executed");
}

#[tokio::test]
async fn a_missing_password_degrades_the_store() {
    let redis = RedisServer::options().password("s3cret").start();
    let setup = |api: &Api| Setup::new(api, &redis.url());
    assert_degraded(setup, "store.password_file").await;
}

#[tokio::test]
async fn a_wrong_password_degrades_the_store() {
    let redis = RedisServer::options().password("s3cret").start();
    let setup = |api: &Api| Setup::new(api, &redis.url()).store("password = \"guess\"");
    assert_degraded(setup, "check `store.user` and `store.password_file`").await;
}

#[tokio::test]
async fn a_user_without_permission_for_the_keys_degrades_the_store() {
    let redis = RedisServer::options().user("app", "on >s3cret ~other:* &* +@all");
    let redis = redis.start();
    let setup = |api: &Api| {
        let setup = Setup::new(api, &redis.url());
        setup.store("user = \"app\"\npassword = \"s3cret\"")
    };
    assert_degraded(setup, "the Redis user of `store.user` lacks a permission").await;
}

/// The Redis user has all permissions except that for TIME, which the scripts call.
#[tokio::test]
async fn a_user_without_permission_for_a_command_of_the_scripts_degrades_the_store() {
    let rules = "on >s3cret ~* &* +@all -time";
    let redis = RedisServer::options().user("app", rules).start();
    let api = Api::start();
    let setup = Setup::new(&api, &redis.url());
    let setup = setup.store("user = \"app\"\npassword = \"s3cret\"");
    let gateway = setup.start();
    let rejected = gateway.pay("key").await;
    assert!(is_unavailable(&rejected), "{rejected:?}");
    assert_eq!(api.times("key"), 0);
    gateway.wait_for_line("the Redis user of `store.user` lacks a permission");
    let response = gateway.get().await;
    assert!((200..300).contains(&response.status), "{response:?}");
}

#[tokio::test]
async fn a_refused_connection_degrades_the_store() {
    let redis = RedisServer::start();
    redis.kill();
    let setup = |api: &Api| Setup::new(api, &redis.url());
    assert_degraded(setup, "Connection refused").await;
}

#[tokio::test]
async fn an_unresolvable_redis_host_degrades_the_store() {
    let setup = |api: &Api| Setup::new(api, "redis://redis.invalid:6379");
    assert_degraded(setup, "redis.invalid").await;
}

#[tokio::test]
async fn a_server_that_is_not_redis_degrades_the_store() {
    let garbage = FakeServer::garbage();
    let setup = |api: &Api| Setup::new(api, &garbage.url());
    assert_degraded(setup, "the server at `store.url` is not Redis").await;
}

#[tokio::test]
async fn a_server_that_never_replies_degrades_the_store() {
    let silent = FakeServer::silent();
    let setup = |api: &Api| Setup::new(api, &silent.url());
    assert_degraded(setup, "Redis timed out").await;
}

#[tokio::test]
async fn a_replica_degrades_the_store() {
    let primary = RedisServer::start();
    let replica = RedisServer::options().replica_of(&primary).start();
    let setup = |api: &Api| Setup::new(api, &replica.url());
    assert_degraded(setup, "`store.url` must name the primary").await;
}

fn evicting_server() -> RedisServer {
    let options = RedisServer::options().arg("--maxmemory", "100mb");
    options.arg("--maxmemory-policy", "allkeys-lru").start()
}

#[tokio::test]
async fn a_gateway_with_idempotency_does_not_start_if_redis_evicts_keys() {
    let (api, redis) = (Api::start(), evicting_server());
    let mut process = Setup::new(&api, &redis.url()).process().start();
    assert!(!process.wait_for_exit().success());
    process.wait_for_line("`maxmemory-policy` is `allkeys-lru`");
    process.wait_for_line("CONFIG SET maxmemory-policy noeviction");
}

#[tokio::test]
async fn a_gateway_without_idempotency_starts_if_redis_evicts_keys() {
    let (api, redis) = (Api::start(), evicting_server());
    let gateway = Setup::new(&api, &redis.url()).keyless().start();
    gateway.wait_for_line("set `maxmemory-policy` of Redis to `noeviction`");
    assert!(!gateway.log().contains("degraded"), "{}", gateway.log());
    let response = gateway.get().await;
    assert!((200..300).contains(&response.status), "{response:?}");
}

#[tokio::test]
async fn a_warning_is_logged_if_redis_can_lose_acknowledged_records() {
    const WARNING: &str = "Redis can lose acknowledged idempotency records in a crash";
    let api = Api::start();
    let (volatile, durable) = (
        RedisServer::start(),
        RedisServer::options().append_only().start(),
    );
    let gateway = Setup::new(&api, &volatile.url()).start();
    gateway.wait_for_line(WARNING);
    gateway.wait_for_line("`appendfsync` to `always`");
    for setup in [
        Setup::new(&api, &durable.url()),
        Setup::new(&api, &volatile.url()).keyless(),
    ] {
        let gateway = setup.start();
        gateway.wait_for_line("connected to Redis");
        let log = gateway.log();
        assert!(!log.contains(WARNING) && !log.contains("CONFIG"), "{log}");
    }
}

#[tokio::test]
async fn a_warning_is_logged_if_the_persistence_of_redis_cannot_be_checked() {
    let api = Api::start();
    let redis = RedisServer::options().append_only().user("gate", RULES);
    let redis = redis.start();
    let setup = Setup::new(&api, &redis.url()).store("user = \"gate\"\npassword = \"s3cret\"");
    let gateway = setup.start();
    gateway.wait_for_line("cannot check whether Redis can lose acknowledged idempotency records");
    gateway.execute("key").await;
    let log = gateway.log();
    assert!(!log.contains("WARN Redis can lose"), "{log}");
    assert_eq!(gateway.readyz().await, "ready\n");
}

#[tokio::test]
async fn a_redis_that_is_emptied_is_reported() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let gateway = Setup::new(&api, &redis.url()).start();
    gateway.execute("key").await;
    assert_eq!(gateway.metric_sum("redis_data_losses_total").await, 0);
    redis.command(&["FLUSHALL"]);
    gateway.wait_for_line("Redis lost its data, for example by FLUSHALL");
    assert_eq!(gateway.metric_sum("redis_data_losses_total").await, 1);
    gateway.execute("key").await;
    assert_eq!(api.times("key"), 2);
}

#[tokio::test]
async fn a_redis_that_rejects_the_first_writes_has_lost_nothing() {
    let (api, redis) = (Api::start(), RedisServer::start());
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let gateway = Setup::new(&api, &redis.url()).start();
    gateway.wait_for_line("Redis has no fleet secret");
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    eventually("the gateway recovers", async || {
        gateway.readyz().await == "ready\n"
    })
    .await;
    assert_eq!(gateway.metric_sum("redis_data_losses_total").await, 0);
}

#[tokio::test]
async fn a_user_of_a_cluster_needs_permission_for_cluster_slots() {
    let rules = format!("{RULES} +cluster|slots");
    let cluster = RedisCluster::with(Options::default().user("gate", &rules));
    let api = Api::start();
    let setup = Setup::on_cluster(&api, &cluster.urls());
    let gateway = setup
        .store("user = \"gate\"\npassword = \"s3cret\"")
        .start();
    gateway.execute("key").await;
    gateway.replay("key").await;
    assert_eq!(gateway.readyz().await, "ready\n");
}
