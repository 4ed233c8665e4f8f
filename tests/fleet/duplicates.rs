//! Crowds with the same key, half of them at each of two gateways: one execution, and one answer for all.

use std::collections::HashMap;

use crate::api::{Api, Held, Print};
use crate::gateways::{Gateway, Setup};
use crate::harness::{Answer, eventually};
use crate::redis::{RedisCluster, RedisServer};

/// Streams of one connection.
const STREAMS: usize = 250;

struct Crowd {
    /// How many keys there are.
    keys: usize,
    /// How many of them at the same time.
    at_once: usize,
    /// How many requests each has.
    duplicates: usize,
}

impl Crowd {
    /// Has all keys asked for at both gateways.
    async fn come(&self, api: &Api, gateways: &[Gateway; 2]) {
        let keys: Vec<_> = (0..self.keys).map(|key| format!("key-{key}")).collect();
        for (round, keys) in keys.chunks(self.at_once).enumerate() {
            let done = round * self.at_once;
            let answers = self.rush(api, gateways, keys, done).await;
            for (key, answers) in answers {
                assert_eq!(answers.len(), self.duplicates);
                let first: Vec<_> = answers.iter().filter(|it| !it.is_replay()).collect();
                assert_eq!(first.len(), 1, "all but one are replays: {key}");
                let print = Print::of(first[0]).expect("an answer of the API");
                for answer in &answers {
                    assert_eq!(Print::of(answer).as_ref(), Some(&print), "{key}");
                }
                // Later ones find it wherever they come.
                for gateway in gateways {
                    let late = gateway.paying(&key).header("Authorization", &key);
                    let late = late.send().await;
                    assert!(late.is_replay(), "{late:?}");
                    assert_eq!(Print::of(&late), Some(print.clone()), "{key}");
                }
            }
        }
        assert_eq!(api.count(), self.keys, "one execution a key");
        assert_eq!(api.repeated(), Vec::<String>::new());
        let mut executed = [0; 2];
        for (executed, gateway) in executed.iter_mut().zip(gateways) {
            *executed = gateway.outcomes("executed").await;
        }
        eprintln!("executions of each gateway: {executed:?}");
        assert_eq!(executed.iter().sum::<u64>(), self.keys as u64);
    }

    /// Sends all requests with these keys, and lets the API answer when all the others wait.
    async fn rush(
        &self,
        api: &Api,
        gateways: &[Gateway; 2],
        keys: &[String],
        done: usize,
    ) -> HashMap<String, Vec<Answer>> {
        api.hold(Held::Answers);
        let mut connections = Vec::new();
        for _ in 0..(keys.len() * self.duplicates).div_ceil(2 * STREAMS) {
            for gateway in gateways {
                let client = gateway.client().h2();
                connections.push((client.clone(), client.keep_alive().await));
            }
        }
        let mut asked = Vec::new();
        for number in 0..self.duplicates {
            for key in keys {
                let (client, connection) = &connections[asked.len() % connections.len()];
                let mut stream = connection.stream_beside();
                // Each is somebody else's, so they lie all over a cluster.
                let asking = client.post("/pay").key(key).header("Authorization", key);
                let asking = asking.body("amount=1");
                let key = key.clone();
                asked.push(tokio::spawn(
                    async move { (key, stream.send(asking).await) },
                ));
            }
            // Whoever comes first is not always the same.
            if number % 2 == 0 {
                connections.rotate_left(1);
            }
        }
        let waiting = ((done + keys.len()) * (self.duplicates - 1)) as u64;
        eventually("all but the first wait", async || {
            let waited = [
                gateways[0].outcomes("waited").await,
                gateways[1].outcomes("waited").await,
            ];
            waited[0] + waited[1] == waiting && waited[0] > 0 && waited[1] > 0
        })
        .await;
        api.hold(Held::Nothing);
        let mut answers = HashMap::<_, Vec<_>>::new();
        for asked in asked {
            let (key, answer) = asked.await.expect("an answer");
            answers.entry(key).or_default().push(answer);
        }
        answers
    }
}

fn ready(setup: Setup) -> [Gateway; 2] {
    let setup = setup
        .server("h2_max_streams = 256")
        .keyed("wait_timeout = \"1m\"");
    [setup.start(), setup.start()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_hundred_duplicates_at_two_gateways_one_is_carried_out() {
    let (api, redis) = (Api::start(), RedisServer::start());
    let gateways = ready(Setup::before(&api, &redis.url()));
    let crowd = Crowd {
        keys: 100,
        at_once: 10,
        duplicates: 500,
    };
    crowd.come(&api, &gateways).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_duplicates_on_a_cluster_one_is_carried_out() {
    let (api, redis) = (Api::start(), RedisCluster::start());
    let gateways = ready(Setup::on_cluster(&api, &redis.urls()));
    let crowd = Crowd {
        keys: 20,
        at_once: 10,
        duplicates: 100,
    };
    crowd.come(&api, &gateways).await;
}
