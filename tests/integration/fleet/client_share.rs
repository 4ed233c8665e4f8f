//! Tests of `max_keys_per_client`: one client cannot fill Redis with idempotency keys.

use crate::fleet::gateways::Setup;
use crate::fleet::upstream_api::{Api, ApiResponse};
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::{ClientResponse, Process, eventually, is_problem};

/// `max_keys_per_client` in these tests.
const MAX_KEYS: usize = 40;

/// Sends a request with an idempotency key from the address `source`. If `invented` is true, each request has its
/// own `Authorization` header, and so its own scope.
async fn pay(gateway: &Process, source: &str, key: &str, invented: bool) -> ClientResponse {
    let client = gateway.client().from(source);
    let request = client.post("/pay").key(key).body("amount=1");
    if invented {
        let credentials = format!("Bearer {key}");
        request.header("Authorization", &credentials).send().await
    } else {
        request.send().await
    }
}

fn is_exhausted(response: &ClientResponse) -> bool {
    let detail = response.json()["detail"].to_string();
    response.status == 429
        && is_problem(response, "idempotency-keys-exhausted")
        && detail.contains("client has 40 idempotency keys or more")
        && response.retry_after() > 80_000
}

/// Sends more idempotency keys from one client than `max_keys_per_client` allows, to both gateways. Asserts that other
/// clients are not affected.
async fn assert_other_clients_can_claim(gateways: &[Process; 2], api: &Api, invented: bool) {
    for number in 1..=60 {
        let key = format!("{invented}-{number}");
        let response = pay(&gateways[number % 2], "127.0.0.1", &key, invented).await;
        if number <= MAX_KEYS {
            assert!(
                ApiResponse::of(&response).is_some(),
                "{number}: {response:?}"
            );
        } else {
            assert!(is_exhausted(&response), "{number}: {response:?}");
            assert_eq!(api.times(&key), 0, "nothing was sent");
        }
    }
    for gateway in gateways {
        for number in [1, MAX_KEYS] {
            let key = format!("{invented}-{number}");
            let response = pay(gateway, "127.0.0.1", &key, invented).await;
            assert!(response.is_replay(), "{response:?}");
        }
        let key = format!("{invented}-{}", gateway.address());
        let response = pay(gateway, "127.0.0.2", &key, invented).await;
        assert!(ApiResponse::of(&response).is_some(), "{response:?}");
        let rejections = gateway
            .metric_sum("idempotency_client_share_rejections_total")
            .await;
        assert!(rejections >= 10, "{rejections}");
    }
}

#[tokio::test]
async fn invented_credentials_do_not_raise_the_bound_of_a_client() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let setup = Setup::new(&api, &redis.url()).store("max_keys_per_client = 40");
    assert_other_clients_can_claim(&[setup.start(), setup.start()], &api, true).await;
}

#[tokio::test]
async fn the_bound_of_a_client_holds_on_a_cluster() {
    let (api, cluster) = (Api::start(), RedisCluster::start());
    let setup = Setup::on_cluster(&api, &cluster.urls()).store("max_keys_per_client = 40");
    assert_other_clients_can_claim(&[setup.start(), setup.start()], &api, true).await;
}

#[tokio::test]
async fn a_count_that_cannot_be_read_rejects_no_request() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let setup = Setup::new(&api, &redis.url()).store("max_keys_per_client = 40");
    let gateway = setup.start();
    gateway.execute("first").await;
    let counts = redis.command(&["KEYS", "tidegate:{*}:client"]).array();
    assert_eq!(counts.len(), 1);
    // The Redis key of the count gets a value of another type, so every command on the count fails.
    let count = counts.into_iter().next().unwrap().text();
    redis.command(&["SET", &count, "damaged"]);
    for number in 0..10 {
        gateway.execute(&format!("key-{number}")).await;
        gateway.replay(&format!("key-{number}")).await;
    }
    gateway.replay("first").await;
    assert_eq!(gateway.readyz().await, "ready\n");
}

#[tokio::test]
async fn without_the_bound_nothing_is_counted() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let gateway = Setup::new(&api, &redis.url()).start();
    // The test counts the script calls of one replay. Probes call a script too, so the test repeats the count until no
    // probe ran at the same time. The script of a probe calls GET, so the number of GET calls shows whether one ran.
    gateway.execute("first").await;
    let mut calls = 0;
    eventually("no probe interferes", async || {
        let (scripts, probes) = (redis.calls("evalsha"), redis.calls("get"));
        gateway.replay("first").await;
        calls = redis.calls("evalsha") - scripts;
        redis.calls("get") == probes
    })
    .await;
    assert_eq!(calls, 1);
    assert_eq!(redis.command(&["KEYS", "tidegate:{*}:client"]).array(), []);
}
