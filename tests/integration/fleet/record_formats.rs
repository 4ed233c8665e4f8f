//! Tests with idempotency records in Redis that another version of the gateway wrote in another format.

use crate::fleet::gateways::{Setup, is_unavailable};
use crate::fleet::upstream_api::Api;
use crate::support::redis::{RedisServer, Reply};
use crate::support::{Process, eventually};

/// The record format that this version of the gateway writes.
const FORMAT: &str = "2";

/// Returns all Redis keys that match `pattern`.
fn keys(redis: &RedisServer, pattern: &str) -> Vec<Vec<u8>> {
    let found = redis.command(&["KEYS", pattern]).array();
    let bytes = found.into_iter().map(|key| match key {
        Reply::Bulk(key) => key,
        other => panic!("{other:?}"),
    });
    bytes.collect()
}

fn delete_all(redis: &RedisServer) {
    for key in keys(redis, "tidegate:*") {
        redis.command(&[b"DEL", &*key]);
    }
}

/// Writes records of format 1: a fleet secret without a format number, and the record of the idempotency key `old` with
/// a fingerprint of 16 bytes.
async fn write_format_1(api: &Api, redis: &RedisServer) {
    let gateway = Setup::new(api, &redis.url()).start();
    gateway.execute("old").await;
    gateway.stop();
    redis.command(&["DEL", "tidegate:{fleet}:format"]);
    let records = keys(redis, "tidegate:{*}:r:*");
    assert_eq!(records.len(), 1);
    let shortened = redis.command(&[b"HSET", &*records[0], b"f", b"0123456789abcdef"]);
    assert_eq!(shortened, Reply::Int(0));
}

/// Asserts that requests with an idempotency key are rejected, that rate limits are not degraded, and that the log has
/// the remedy.
async fn assert_keys_rejected(gateway: &Process, api: &Api, format: u32) {
    let reason = format!("format {format}");
    gateway.wait_for_line(&reason);
    for key in ["old", "new"] {
        let before = api.times(key);
        let response = gateway.pay(key).await;
        assert!(is_unavailable(&response), "{response:?}");
        assert_eq!(api.times(key), before, "nothing was sent");
    }
    let response = gateway.get().await;
    assert!((200..300).contains(&response.status), "{response:?}");
    let ready = gateway.readyz().await;
    assert!(ready.starts_with("ready, degraded: records: "), "{ready}");
    assert_eq!(ready.lines().count(), 1, "limits work: {ready}");
    assert!(
        ready.contains(&reason) && ready.contains("`prefix`"),
        "{ready}"
    );
    let log = gateway.log();
    let reports = log.lines().filter(|line| line.contains(&reason)).count();
    assert_eq!(reports, 1, "{log}");
}

/// Deletes all Redis keys with the prefix `tidegate:`. Asserts that the gateway then stores records in Redis again
/// without a restart.
async fn assert_recovery_after_delete(gateway: &Process, api: &Api, redis: &RedisServer) {
    delete_all(redis);
    eventually("the records are used", async || {
        gateway.readyz().await == "ready\n"
    })
    .await;
    gateway.execute("new").await;
    gateway.replay("new").await;
    assert_eq!(api.times("new"), 1);
    let format = redis.command(&["GET", "tidegate:{fleet}:format"]);
    assert_eq!(format.text(), FORMAT);
}

#[tokio::test]
async fn records_of_format_1_are_not_used_until_they_are_deleted() {
    let (api, redis) = (Api::start(), RedisServer::start());
    write_format_1(&api, &redis).await;
    let gateway = Setup::new(&api, &redis.url()).start();
    assert_keys_rejected(&gateway, &api, 1).await;
    assert_recovery_after_delete(&gateway, &api, &redis).await;
}

#[tokio::test]
async fn records_of_a_later_format_are_not_used_until_they_are_deleted() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let setup = Setup::new(&api, &redis.url());
    let gateway = setup.start();
    gateway.execute("old").await;
    redis.command(&["SET", "tidegate:{fleet}:format", "3"]);
    // Both the running gateway and a new gateway must detect that Redis contains records of another format.
    eventually("the format is checked again", async || {
        gateway.readyz().await != "ready\n"
    })
    .await;
    assert_keys_rejected(&gateway, &api, 3).await;
    let second = setup.start();
    assert_keys_rejected(&second, &api, 3).await;
    assert_recovery_after_delete(&gateway, &api, &redis).await;
}

#[tokio::test]
async fn another_format_is_reported_when_redis_is_first_reached() {
    let api = Api::start();
    let redis = RedisServer::options().append_only().start();
    write_format_1(&api, &redis).await;
    redis.kill();
    let gateway = Setup::new(&api, &redis.url()).start();
    gateway.wait_for_line("Connection refused");
    redis.restart();
    gateway.wait_for_line("format 1");
    eventually("limits work", async || {
        gateway.readyz().await.lines().count() == 1
    })
    .await;
    assert_keys_rejected(&gateway, &api, 1).await;
}

#[tokio::test]
async fn another_format_has_no_effect_without_idempotency() {
    let (api, redis) = (Api::start(), RedisServer::start());
    write_format_1(&api, &redis).await;
    let gateway = Setup::new(&api, &redis.url()).keyless().start();
    gateway.wait_for_line("connected to Redis");
    let response = gateway.get().await;
    assert!((200..300).contains(&response.status), "{response:?}");
    assert_eq!(gateway.readyz().await, "ready\n");
    assert!(!gateway.log().contains("degraded"), "{}", gateway.log());
}
