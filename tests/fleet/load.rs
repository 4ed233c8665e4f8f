//! Traffic that goes on whatever happens, and what came of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Print;
use crate::gateways::{Gateway, is_in_flight, is_unavailable, is_unknown};
use crate::harness::Answer;

/// Clients of each kind at each gateway.
const CLIENTS: usize = 2;

/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(3);

/// Clients that ask two gateways again and again, some without keys and some with.
pub(crate) struct Load {
    traffic: Traffic,
    clients: JoinSet<()>,
}

/// What all clients share.
#[derive(Clone)]
struct Traffic {
    gateways: Arc<[Gateway; 2]>,
    tally: Arc<Mutex<Tally>>,
    stop: CancellationToken,
}

/// What came of all that was asked.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) plain: Vec<Sample>,
    pub(crate) keyed: Vec<Sample>,
    /// Every answer of the API to a key, with the time it had come.
    pub(crate) answers: HashMap<String, Vec<(Instant, Print)>>,
}

/// One exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) began: Instant,
    pub(crate) took: Duration,
    pub(crate) status: u16,
}

impl Load {
    /// Begins, and does not end before it is told to.
    pub(crate) fn on(gateways: &Arc<[Gateway; 2]>) -> Self {
        let traffic = Traffic {
            gateways: Arc::clone(gateways),
            tally: Arc::default(),
            stop: CancellationToken::new(),
        };
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            for home in 0..2 {
                clients.spawn(traffic.clone().ask_plainly(home));
                let name = format!("client-{home}-{number}");
                clients.spawn(traffic.clone().ask_with_keys(home, name));
            }
        }
        Self { traffic, clients }
    }

    /// Ends it; what was underway comes to its end.
    pub(crate) async fn end(mut self) -> Tally {
        self.traffic.stop.cancel();
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("every request was answered as it may be");
        }
        std::mem::take(&mut *self.traffic.tally.lock())
    }
}

impl Traffic {
    async fn ask_plainly(self, home: usize) {
        let client = self.gateways[home].client();
        let mut connection = client.keep_alive().await;
        while !self.stop.is_cancelled() {
            let began = Instant::now();
            let answer = connection.send(client.get("/any")).await;
            let sample = Sample::of(began, &answer);
            self.tally.lock().plain.push(sample);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks for a new key at one gateway, for the same at the other, and for one of old.
    async fn ask_with_keys(self, home: usize, name: String) {
        let gateways = [&self.gateways[home], &self.gateways[1 - home]];
        let clients = gateways.map(Gateway::client);
        let mut connections = [clients[0].keep_alive().await, clients[1].keep_alive().await];
        for number in 0_usize.. {
            let old = fastrand::usize(..=number);
            for (at, number) in [(0, number), (1, number), (number % 2, old)] {
                if self.stop.is_cancelled() {
                    return;
                }
                let key = format!("{name}-{number}");
                let began = Instant::now();
                let asking = clients[at].post("/pay").key(&key).body("amount=1");
                let answer = connections[at].send(asking).await;
                self.tally.lock().note(key, began, &answer);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Tally {
    fn note(&mut self, key: String, began: Instant, answer: &Answer) {
        self.keyed.push(Sample::of(began, answer));
        match Print::of(answer) {
            None => assert!(is_fair(answer), "{key}: {answer:?}"),
            Some(print) => {
                let answers = self.answers.entry(key).or_default();
                answers.push((Instant::now(), print));
            }
        }
    }
}

/// Whether a request with a key may be refused like this when its store is in trouble.
fn is_fair(answer: &Answer) -> bool {
    is_unavailable(answer) || is_in_flight(answer) || is_unknown(answer)
}

impl Sample {
    fn of(began: Instant, answer: &Answer) -> Self {
        Self {
            began,
            took: began.elapsed(),
            status: answer.status,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// The duration that 99 of 100 do not exceed, of what began from one moment to another; and the longest.
pub(crate) fn p99(samples: &[Sample], from: Instant, to: Instant) -> (Duration, Duration) {
    let within = samples.iter().filter(|it| (from..to).contains(&it.began));
    let mut took: Vec<_> = within.map(|it| it.took).collect();
    took.sort();
    assert!(took.len() >= 100, "only {} requests", took.len());
    (took[took.len() * 99 / 100], took[took.len() - 1])
}
