//! Clients that send requests continuously to two gateways, and the results of these requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fleet::gateways::{is_in_flight, is_unavailable};
use crate::fleet::upstream_api::ApiResponse;
use crate::support::{ClientResponse, Process, is_unknown};

/// Number of clients with idempotency keys at each gateway. The number of clients without keys is the same.
const CLIENTS: usize = 2;

/// Pause between two requests of a client.
const PAUSE: Duration = Duration::from_millis(3);

/// Clients that send requests to two gateways, some with idempotency keys and some without.
pub(crate) struct Load {
    traffic: Traffic,
    clients: JoinSet<()>,
}

/// State that all clients share.
#[derive(Clone)]
struct Traffic {
    gateways: Arc<[Process; 2]>,
    results: Arc<Mutex<LoadResults>>,
    stop: CancellationToken,
}

/// Results of all requests of the load.
#[derive(Default)]
pub(crate) struct LoadResults {
    pub(crate) plain: Vec<Sample>,
    pub(crate) keyed: Vec<Sample>,
    /// For each idempotency key, all responses of the API, each with the time of its arrival.
    pub(crate) responses: HashMap<String, Vec<(Instant, ApiResponse)>>,
}

/// Time, duration and status of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) began: Instant,
    pub(crate) took: Duration,
    pub(crate) status: u16,
}

impl Load {
    /// Starts clients with and without idempotency keys at both gateways.
    pub(crate) fn start(gateways: &Arc<[Process; 2]>) -> Self {
        let traffic = Traffic {
            gateways: Arc::clone(gateways),
            results: Arc::default(),
            stop: CancellationToken::new(),
        };
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            for home in 0..2 {
                clients.spawn(traffic.clone().send_without_keys(home));
                let name = format!("client-{home}-{number}");
                clients.spawn(traffic.clone().send_with_keys(home, name));
            }
        }
        Self { traffic, clients }
    }

    /// Stops the clients after their current requests, and returns the results of all requests.
    pub(crate) async fn stop(mut self) -> LoadResults {
        self.traffic.stop.cancel();
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("every response is as expected");
        }
        std::mem::take(&mut *self.traffic.results.lock())
    }
}

impl Traffic {
    async fn send_without_keys(self, home: usize) {
        let client = self.gateways[home].client();
        let mut connection = client.keep_alive().await;
        while !self.stop.is_cancelled() {
            let began = Instant::now();
            let response = connection.send(client.get("/any")).await;
            let sample = Sample::of(began, &response);
            self.results.lock().plain.push(sample);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a new idempotency key to one gateway, the same key to the other gateway, and then an earlier key. Repeats
    /// this until the load is stopped.
    async fn send_with_keys(self, home: usize, name: String) {
        let gateways = [&self.gateways[home], &self.gateways[1 - home]];
        let clients = gateways.map(Process::client);
        let mut connections = [clients[0].keep_alive().await, clients[1].keep_alive().await];
        for number in 0_usize.. {
            let earlier = fastrand::usize(..=number);
            for (at, number) in [(0, number), (1, number), (number % 2, earlier)] {
                if self.stop.is_cancelled() {
                    return;
                }
                let key = format!("{name}-{number}");
                let began = Instant::now();
                let request = clients[at].post("/pay").key(&key).body("amount=1");
                let response = connections[at].send(request).await;
                self.results.lock().add(key, began, &response);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl LoadResults {
    fn add(&mut self, key: String, began: Instant, response: &ClientResponse) {
        self.keyed.push(Sample::of(began, response));
        match ApiResponse::of(response) {
            None => assert!(is_expected_rejection(response), "{key}: {response:?}"),
            Some(content) => {
                let responses = self.responses.entry(key).or_default();
                responses.push((Instant::now(), content));
            }
        }
    }
}

/// Returns whether `response` is a rejection that a request with an idempotency key can get while Redis fails.
fn is_expected_rejection(response: &ClientResponse) -> bool {
    is_unavailable(response) || is_in_flight(response) || is_unknown(response)
}

impl Sample {
    fn of(began: Instant, response: &ClientResponse) -> Self {
        Self {
            began,
            took: began.elapsed(),
            status: response.status,
        }
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Returns the 99th percentile and the maximum of the durations of requests that began between `from` and `to`.
pub(crate) fn p99(samples: &[Sample], from: Instant, to: Instant) -> (Duration, Duration) {
    let within = samples.iter().filter(|it| (from..to).contains(&it.began));
    let mut took: Vec<_> = within.map(|it| it.took).collect();
    took.sort();
    assert!(took.len() >= 100, "only {} requests", took.len());
    (took[took.len() * 99 / 100], took[took.len() - 1])
}
