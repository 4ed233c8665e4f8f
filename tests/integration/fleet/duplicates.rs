//! Tests of many requests with the same idempotency key at two gateways: one execution, and the same response for all.

use std::collections::HashMap;

use crate::fleet::gateways::Setup;
use crate::fleet::upstream_api::{Api, ApiResponse, Withheld};
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::{ClientResponse, Process, eventually};

/// Number of concurrent HTTP/2 streams on one connection.
const STREAMS: usize = 250;

/// Number of idempotency keys and requests of a test.
struct DuplicateLoad {
    keys: usize,
    /// Number of idempotency keys that are in flight at the same time.
    concurrent_keys: usize,
    /// Number of requests for each idempotency key.
    duplicates: usize,
}

impl DuplicateLoad {
    /// Sends all requests, half of them to each gateway. Asserts that each idempotency key has one execution and one
    /// response.
    async fn run(&self, api: &Api, gateways: &[Process; 2]) {
        let keys: Vec<_> = (0..self.keys).map(|key| format!("key-{key}")).collect();
        for (round, keys) in keys.chunks(self.concurrent_keys).enumerate() {
            let done = round * self.concurrent_keys;
            let responses = self.send_concurrently(api, gateways, keys, done).await;
            for (key, responses) in responses {
                assert_eq!(responses.len(), self.duplicates);
                let first: Vec<_> = responses.iter().filter(|it| !it.is_replay()).collect();
                assert_eq!(first.len(), 1, "one response is not a replay: {key}");
                let content = ApiResponse::of(first[0]).expect("a response of the API");
                for response in &responses {
                    assert_eq!(ApiResponse::of(response).as_ref(), Some(&content), "{key}");
                }
                // A later request with the same idempotency key gets a replay from either gateway.
                for gateway in gateways {
                    let late = gateway.pay_request(&key).header("Authorization", &key);
                    let late = late.send().await;
                    assert!(late.is_replay(), "{late:?}");
                    assert_eq!(ApiResponse::of(&late), Some(content.clone()), "{key}");
                }
            }
        }
        assert_eq!(api.count(), self.keys, "one execution per key");
        assert_eq!(api.repeated(), Vec::<String>::new());
        let mut executed = [0; 2];
        for (executed, gateway) in executed.iter_mut().zip(gateways) {
            *executed = gateway.outcomes("executed").await;
        }
        eprintln!("executions of each gateway: {executed:?}");
        assert_eq!(executed.iter().sum::<u64>(), self.keys as u64);
    }

    /// Sends all requests for `keys`. The API responds when all duplicate requests wait. `done` is the number of
    /// idempotency keys in earlier rounds.
    async fn send_concurrently(
        &self,
        api: &Api,
        gateways: &[Process; 2],
        keys: &[String],
        done: usize,
    ) -> HashMap<String, Vec<ClientResponse>> {
        api.hold(Withheld::Responses);
        let mut connections = Vec::new();
        for _ in 0..(keys.len() * self.duplicates).div_ceil(2 * STREAMS) {
            for gateway in gateways {
                let client = gateway.client().h2();
                connections.push((client.clone(), client.keep_alive().await));
            }
        }
        let mut tasks = Vec::new();
        for number in 0..self.duplicates {
            for key in keys {
                let (client, connection) = &connections[tasks.len() % connections.len()];
                let mut stream = connection.open_stream();
                // Each idempotency key has its own scope, so the records are distributed over all servers of a cluster.
                let request = client.post("/pay").key(key).header("Authorization", key);
                let request = request.body("amount=1");
                let key = key.clone();
                tasks.push(tokio::spawn(
                    async move { (key, stream.send(request).await) },
                ));
            }
            // The order of the connections alternates, so each gateway is the first to receive some of the idempotency
            // keys.
            if number % 2 == 0 {
                connections.rotate_left(1);
            }
        }
        let waiting = ((done + keys.len()) * (self.duplicates - 1)) as u64;
        eventually("all duplicates wait", async || {
            let waited = [
                gateways[0].outcomes("waited").await,
                gateways[1].outcomes("waited").await,
            ];
            waited[0] + waited[1] == waiting && waited[0] > 0 && waited[1] > 0
        })
        .await;
        api.hold(Withheld::Nothing);
        let mut responses = HashMap::<_, Vec<_>>::new();
        for task in tasks {
            let (key, response) = task.await.expect("the task completes");
            responses.entry(key).or_default().push(response);
        }
        responses
    }
}

fn start(setup: Setup) -> [Process; 2] {
    let setup = setup
        .server("h2_max_streams = 256")
        .keyed("wait_timeout = \"1m\"");
    [setup.start(), setup.start()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_500_duplicates_at_two_gateways_is_executed() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let gateways = start(Setup::new(&api, &redis.url()));
    let load = DuplicateLoad {
        keys: 100,
        concurrent_keys: 10,
        duplicates: 500,
    };
    load.run(&api, &gateways).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_100_duplicates_on_a_cluster_is_executed() {
    let (api, redis) = (Api::start(), RedisCluster::start());
    let gateways = start(Setup::on_cluster(&api, &redis.urls()));
    let load = DuplicateLoad {
        keys: 20,
        concurrent_keys: 10,
        duplicates: 100,
    };
    load.run(&api, &gateways).await;
}
