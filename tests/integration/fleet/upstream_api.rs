//! An upstream API that counts executions. Each execution has a different response.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::support::{ClientResponse, Received, Reply, Upstream};

/// The header field with the number of an execution.
const EXECUTION: &str = "x-execution";

/// An API server that listens until it is dropped.
pub(crate) struct Api {
    upstream: Upstream,
    executions: Arc<Executions>,
    withheld: watch::Sender<Withheld>,
}

/// The part of its responses that the API does not send until the test permits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withheld {
    Nothing,
    /// The API sends only the heads of its responses.
    Bodies,
    /// The API sends nothing.
    Responses,
}

#[derive(Default)]
struct Executions {
    by_key: Mutex<HashMap<String, usize>>,
    all: AtomicUsize,
}

/// A response of the API, without the header fields that differ in a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiResponse {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
}

impl Api {
    pub(crate) fn start() -> Self {
        Self::holding(Withheld::Nothing)
    }

    /// Starts an API that does not send the part `withheld` of its responses.
    pub(crate) fn holding(withheld: Withheld) -> Self {
        let withheld = watch::Sender::new(withheld);
        let executions = Arc::<Executions>::default();
        let (gate, count) = (withheld.subscribe(), Arc::clone(&executions));
        let upstream = Upstream::with(move |received| {
            let number = count.begin(&received);
            respond(received, number, gate.clone())
        });
        Self {
            upstream,
            executions,
            withheld,
        }
    }

    /// Withholds only the part `withheld` of each response from now on. Sends all other parts that were withheld
    /// before.
    pub(crate) fn hold(&self, withheld: Withheld) {
        self.withheld.send_replace(withheld);
    }

    pub(crate) fn url(&self) -> String {
        self.upstream.url()
    }

    /// Returns how many executions had the idempotency key `key`, including those in flight.
    pub(crate) fn times(&self, key: &str) -> usize {
        self.executions.by_key.lock().get(key).map_or(0, |it| *it)
    }

    /// Returns the number of all executions, with or without an idempotency key.
    pub(crate) fn count(&self) -> usize {
        self.executions.all.load(Ordering::SeqCst)
    }

    /// Returns the idempotency keys that had more than one execution.
    pub(crate) fn repeated(&self) -> Vec<String> {
        let by_key = self.executions.by_key.lock();
        let repeated = by_key.iter().filter(|(_, times)| **times > 1);
        repeated.map(|(key, _)| key.clone()).collect()
    }
}

impl Executions {
    /// Counts an execution, and returns its number.
    fn begin(&self, received: &Received) -> usize {
        let key = received.header("idempotency-key");
        if !key.is_empty() {
            *self.by_key.lock().entry(key).or_default() += 1;
        }
        self.all.fetch_add(1, Ordering::SeqCst) + 1
    }
}

async fn respond(received: Received, number: usize, mut gate: watch::Receiver<Withheld>) -> Reply {
    // An error is ignored: it means that the API was dropped, and then nothing is withheld.
    drop(gate.wait_for(|it| *it != Withheld::Responses).await);
    let key = received.header("idempotency-key");
    let (mut rest, body) = Channel::new(1);
    tokio::spawn(async move {
        drop(gate.wait_for(|it| *it == Withheld::Nothing).await);
        let content = format!("`{key}` was execution {number}");
        // An error is ignored, because the gateway can have closed the connection.
        let _ = rest.send_data(Bytes::from(content)).await;
    });
    let mut reply = Response::new(body.boxed_unsync());
    let status = 200 + u16::try_from(number % 3).expect("0 to 2");
    *reply.status_mut() = status.try_into().expect("200 to 202");
    reply.headers_mut().insert(EXECUTION, number.into());
    reply
}

impl ApiResponse {
    /// Returns the response of the API that the gateway forwarded. Returns `None` if the gateway generated `response`.
    pub(crate) fn of(response: &ClientResponse) -> Option<Self> {
        // These header fields are left out, because they differ in a replay.
        let same = |name: &str| !name.starts_with("idempotent-") && name != "x-request-id";
        let headers = response.headers.iter();
        let headers = headers.filter(|(name, _)| same(name.as_str()));
        response.has(EXECUTION).then(|| Self {
            status: response.status,
            headers: headers
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect(),
            body: response.body.clone(),
        })
    }

    /// Returns the number of the execution that created this response.
    pub(crate) fn execution(&self) -> usize {
        let mut headers = self.headers.iter();
        let (_, number) = headers.find(|(name, _)| name == EXECUTION).unwrap();
        String::from_utf8_lossy(number).parse().unwrap()
    }
}
