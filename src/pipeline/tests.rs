//! Tests of the chain of stages in one process, without sockets, Redis or child processes.
//!
//! A [`Chain`] is a pipeline with one worker and a virtual clock. Its upstream is a [server in memory](in_memory).
//! `entry` and `spellings` test what precedes the stages. `throttling`, `keys` and `upstream` test one stage each and
//! its position in the chain. `responses` tests what all responses have in common.

mod body_keys;
mod entry;
mod key_scopes;
mod keys;
mod rate_limit_fields;
mod recording;
mod responses;
mod retries;
mod spellings;
mod throttling;
mod upstream;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::request::{Builder, Parts};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::*;
use crate::config::{self, Environment, Overrides};
use crate::http::http1::TrackDelivery as _;
use crate::idempotency::RecordCounts;
use crate::upstream::tests::in_memory;

/// Pipeline with an upstream server that records the requests that it receives.
pub(crate) struct Chain {
    pipeline: Arc<Pipeline>,
    tasks: TaskTracker,
    pub(crate) shared: GatewayState,
    received: Arc<Mutex<Vec<(Parts, Bytes)>>>,
}

/// Response that the client received, with its complete body.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Chain {
    /// Creates a chain whose upstream server responds with 201 and the number of requests that it has received.
    ///
    /// `config` is appended to lines with dotted keys such as `server.workers = 1`. So it can start with further dotted
    /// keys, and continue with tables.
    pub(crate) fn new(config: &str) -> Self {
        Self::with_upstream(config, |number| async move { created(number) })
    }

    /// Creates a chain whose upstream server waits for `gate` before each response.
    fn gated(config: &str, gate: &Arc<Notify>) -> Arc<Self> {
        let gate = Arc::clone(gate);
        Arc::new(Self::with_upstream(config, move |number| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                created(number)
            }
        }))
    }

    /// Creates a chain whose upstream server responds with `respond`, which gets the number of the request.
    fn with_upstream<F, Fut>(config: &str, respond: F) -> Self
    where
        F: Fn(usize) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let received = Arc::new(Mutex::new(Vec::new()));
        let host = {
            let received = Arc::clone(&received);
            in_memory::serve(move |request| {
                let (received, respond) = (Arc::clone(&received), respond.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let number = {
                        let mut received = received.lock();
                        received.push((parts, body));
                        received.len()
                    };
                    respond(number).await
                }
            })
        };
        Self::with_server(&host, config, received)
    }

    /// Creates a chain whose upstream server responds with these statuses in turn, then always with the last, and with
    /// the number of the request.
    fn with_statuses(config: &str, statuses: &[u16]) -> Self {
        let statuses: Arc<[u16]> = statuses.into();
        Self::with_upstream(config, move |number| {
            let status = statuses[number.min(statuses.len()) - 1];
            async move { response(status, "", &number.to_string()) }
        })
    }

    /// Creates a chain whose upstream server responds with 200 and these header lines.
    fn with_headers(config: &str, lines: &str) -> Self {
        let response = response(200, lines, "ok");
        Self::with_upstream(config, move |_| future::ready(response.clone()))
    }

    /// Creates a chain whose upstream server rejects all connections.
    fn without_upstream(config: &str) -> Self {
        Self::with_server("127.0.0.1:1", config, Arc::default())
    }

    fn with_server(server: &str, config: &str, received: Arc<Mutex<Vec<(Parts, Bytes)>>>) -> Self {
        let text =
            format!("server.workers = 1\nupstream.api.servers = [\"http://{server}\"]\n{config}");
        let loaded = config::parse(
            "chain.toml",
            &text,
            &Environment::default(),
            &Overrides::default(),
        );
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        let shared = GatewayState::open(Arc::new(policy), clock).unwrap();
        let tasks = TaskTracker::new();
        Self {
            pipeline: Pipeline::new(&shared, 0, tasks.clone()).into(),
            tasks,
            shared,
            received,
        }
    }

    /// Sends a request without a body from 192.0.2.1.
    async fn send(&self, request: Builder) -> Received {
        self.send_body(request, "").await
    }

    /// Sends a request with a body from 192.0.2.1.
    async fn send_body(&self, request: Builder, body: impl Into<Bytes>) -> Received {
        self.send_from("192.0.2.1", request, body).await
    }

    /// Sends a request on a new connection from `peer`, and reads the complete response.
    async fn send_from(&self, peer: &str, request: Builder, body: impl Into<Bytes>) -> Received {
        let body: Bytes = body.into();
        let body = if body.is_empty() {
            RequestBody::empty()
        } else {
            RequestBody::from(body)
        };
        self.respond(peer, request.body(body).unwrap()).await
    }

    pub(crate) async fn respond(&self, peer: &str, request: Request<RequestBody>) -> Received {
        received(self.reply(peer, request).await).await
    }

    async fn reply(&self, peer: &str, request: Request<RequestBody>) -> Reply<LoggedBody> {
        Arc::clone(&self.pipeline)
            .respond(&self.connection(peer), request)
            .await
    }

    fn connection(&self, peer: &str) -> Arc<ClientConnection> {
        let permit = self.shared.connections.add(None);
        let (peer, tasks) = (peer.parse().unwrap(), self.tasks.clone());
        Arc::new(ClientConnection::new(peer, "http", tasks, permit))
    }

    /// Sends a request in a task, and returns when the upstream server has received `expected` requests in total.
    async fn start(self: &Arc<Self>, request: Builder, expected: usize) -> JoinHandle<Received> {
        let chain = Arc::clone(self);
        let sending = tokio::spawn(async move { chain.send(request).await });
        while self.executions() < expected {
            tokio::task::yield_now().await;
        }
        sending
    }

    /// Sends a request in a task, and returns when `expected` requests in total have waited for the response to an
    /// earlier request with their idempotency key.
    async fn start_waiting(
        self: &Arc<Self>,
        request: Builder,
        expected: u64,
    ) -> JoinHandle<Received> {
        let chain = Arc::clone(self);
        let sending = tokio::spawn(async move { chain.send(request).await });
        while self.shared.metrics[0].routes[0].keyed.waits.get() < expected {
            tokio::task::yield_now().await;
        }
        sending
    }

    /// Returns the number of requests that the upstream server has received.
    fn executions(&self) -> usize {
        self.received.lock().len()
    }

    /// Returns the number of requests that are in flight to the upstream.
    fn in_flight(&self) -> i64 {
        self.shared.metrics[0].upstreams[0].in_flight.get()
    }

    /// Returns the number of responses of the first route with this status.
    fn count(&self, status: u16) -> u64 {
        self.shared.metrics[0].routes[0].by_status[usize::from(status) - 100].get()
    }

    /// Returns the number of idempotency records in each state.
    async fn records(&self) -> RecordCounts {
        self.shared.store.records.count().await.unwrap()
    }

    fn advance(&self, time: Duration) {
        self.shared.clock.advance(time);
    }
}

/// Reads a complete response.
async fn received(reply: Reply<LoggedBody>) -> Received {
    let Reply::Response(response) = reply else {
        panic!("the gateway aborts the response");
    };
    let (parts, mut body) = response.into_parts();
    let collected = (&mut body).collect().await.unwrap().to_bytes();
    Pin::new(&mut body).delivered();
    Received {
        status: parts.status,
        headers: parts.headers,
        body: collected,
    }
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Returns the problem document.
    fn problem(&self) -> Value {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        problem
    }

    /// Asserts that this is the problem response with this status and problem type.
    #[track_caller]
    fn assert_problem(&self, status: u16, kind: &str) {
        let problem = self.problem();
        let expected = format!("urn:tidegate:problem:{kind}");
        assert_eq!(
            (self.status.as_u16(), problem["type"].as_str()),
            (status, Some(&*expected)),
            "{problem}"
        );
    }

    /// Asserts that this is the response of the upstream server to its request with this number.
    #[track_caller]
    fn assert_created(&self, number: usize) {
        assert_eq!(self.status, StatusCode::CREATED, "{self:?}");
        assert_eq!(self.body, number.to_string());
    }
}

fn created(number: usize) -> Response<Full<Bytes>> {
    response(201, "", &number.to_string())
}

fn response(status: u16, lines: &str, body: &str) -> Response<Full<Bytes>> {
    let response = parse_lines(lines).fold(
        Response::builder().status(status),
        |response, (name, value)| response.header(name, value),
    );
    response.body(Full::from(body.to_owned())).unwrap()
}

fn get(path: &str) -> Builder {
    Request::get(path).header("host", "api.example")
}

/// Parses header lines such as `a: 1 | b: 2`. A character of a value is one octet (Latin-1).
fn parse_lines(text: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let lines = text.split(" | ").filter(|line| !line.is_empty());
    lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        let octets = value.chars().map(|octet| u8::try_from(octet).unwrap());
        (name, octets.collect())
    })
}

fn with_lines(request: Builder, lines: &str) -> Builder {
    parse_lines(lines).fold(request, |request, (name, value)| {
        request.header(name, value)
    })
}

/// Returns a `POST /pay` with an idempotency key.
fn post(key: &str) -> Builder {
    get("/pay")
        .method(Method::POST)
        .header("idempotency-key", key)
}

/// Route with a limit of three requests at once and one per minute, and with idempotency keys.
const LIMITED_AND_KEYED: &str = r#"
    [limit.device]
    rate = "1/m"
    burst = 2
    [[route]]
    name = "pay"
    path = "/pay"
    limits = ["device"]
    idempotency = { scope = "client" }
"#;

/// Route with idempotency keys and without limits.
const KEYED: &str = r#"
    [[route]]
    name = "pay"
    path = "/pay"
    idempotency = { scope = "client" }
"#;

/// Route with an idempotency rule that has these further settings.
fn keyed(rule: &str) -> String {
    let comma = if rule.is_empty() { "" } else { ", " };
    format!(
        "[[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
    )
}

/// Route with the limit `hourly`, whose section has these lines.
fn limited(limit: &str) -> String {
    limited_by(&[("hourly", limit)])
}

/// Route with these limits: the name of each, and the lines of its section.
fn limited_by(limits: &[(&str, &str)]) -> String {
    let sections = limits
        .iter()
        .map(|(name, lines)| format!("[limit.\"{name}\"]\n{lines}\n"));
    let names: Vec<_> = limits.iter().map(|(name, _)| *name).collect();
    format!(
        "{}[[route]]\nname = \"all\"\npath = \"/\"\nlimits = {names:?}\n",
        sections.collect::<String>()
    )
}

/// Route with the limit of [`LIMITED_AND_KEYED`] and without idempotency keys.
const LIMITED: &str = r#"
    [limit.device]
    rate = "1/m"
    burst = 2
    [[route]]
    name = "all"
    path = "/"
    limits = ["device"]
"#;
