//! The API behind the gateways, which counts what it does and never does the same twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::harness::{Answer, Received, Reply, Upstream};

/// The header that carries the number of an execution.
const EXECUTION: &str = "x-execution";

/// An API that listens until dropped.
pub(crate) struct Api {
    upstream: Upstream,
    executions: Arc<Executions>,
    held: watch::Sender<Held>,
}

/// What the API keeps to itself for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    /// The bodies of its answers; their heads are sent.
    Bodies,
    /// Its answers.
    Answers,
}

#[derive(Default)]
struct Executions {
    by_key: Mutex<HashMap<String, usize>>,
    all: AtomicUsize,
}

/// What is the same in an answer and in every replay of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
}

impl Api {
    pub(crate) fn start() -> Self {
        Self::holding(Held::Nothing)
    }

    pub(crate) fn holding(held: Held) -> Self {
        let held = watch::Sender::new(held);
        let executions = Arc::<Executions>::default();
        let (gate, count) = (held.subscribe(), Arc::clone(&executions));
        let upstream = Upstream::with(move |received| {
            let number = count.begin(&received);
            answer(received, number, gate.clone())
        });
        Self {
            upstream,
            executions,
            held,
        }
    }

    /// Keeps this to itself from now on, and lets go of what it held beyond that.
    pub(crate) fn hold(&self, held: Held) {
        self.held.send_replace(held);
    }

    pub(crate) fn url(&self) -> String {
        self.upstream.url()
    }

    /// How often a key was carried out, or has begun to be.
    pub(crate) fn times(&self, key: &str) -> usize {
        self.executions.by_key.lock().get(key).map_or(0, |it| *it)
    }

    /// All that was ever carried out, with a key or without.
    pub(crate) fn count(&self) -> usize {
        self.executions.all.load(Ordering::SeqCst)
    }

    /// Keys that were carried out more than once.
    pub(crate) fn repeated(&self) -> Vec<String> {
        let by_key = self.executions.by_key.lock();
        let repeated = by_key.iter().filter(|(_, times)| **times > 1);
        repeated.map(|(key, _)| key.clone()).collect()
    }
}

impl Executions {
    /// Counts an execution, and says which it is.
    fn begin(&self, received: &Received) -> usize {
        let key = received.header("idempotency-key");
        if !key.is_empty() {
            *self.by_key.lock().entry(key).or_default() += 1;
        }
        self.all.fetch_add(1, Ordering::SeqCst) + 1
    }
}

async fn answer(received: Received, number: usize, mut gate: watch::Receiver<Held>) -> Reply {
    // Whoever drops the gate leaves it open.
    drop(gate.wait_for(|held| *held != Held::Answers).await);
    let key = received.header("idempotency-key");
    let (mut rest, body) = Channel::new(1);
    tokio::spawn(async move {
        drop(gate.wait_for(|held| *held == Held::Nothing).await);
        let said = format!("`{key}` was execution {number}");
        // A gateway that is gone needs no answer.
        let _ = rest.send_data(Bytes::from(said)).await;
    });
    let mut reply = Response::new(body.boxed_unsync());
    let status = 200 + u16::try_from(number % 3).expect("small");
    *reply.status_mut() = status.try_into().expect("a status");
    reply.headers_mut().insert(EXECUTION, number.into());
    reply
}

impl Print {
    /// The print of an answer that came from the API, at whatever time; none if it is the gateway's own.
    pub(crate) fn of(answer: &Answer) -> Option<Self> {
        // Each request has an id of its own.
        let same = |name: &str| !["idempotent-replayed", "x-request-id"].contains(&name);
        let headers = answer.headers.iter();
        let headers = headers.filter(|(name, _)| same(name.as_str()));
        answer.has(EXECUTION).then(|| Self {
            status: answer.status,
            headers: headers
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect(),
            body: answer.body.clone(),
        })
    }

    /// Which execution it is the answer of.
    pub(crate) fn execution(&self) -> usize {
        let mut headers = self.headers.iter();
        let (_, number) = headers.find(|(name, _)| name == EXECUTION).unwrap();
        String::from_utf8_lossy(number).parse().unwrap()
    }
}
