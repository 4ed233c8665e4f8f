//! Tests of the chain of stages in one process, without sockets: order of the stages, request context, metrics.
//!
//! A [`Chain`] is a pipeline with one worker and a virtual clock. Its upstream is a [server in memory](in_memory).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::*;
use crate::config::{self, Environment, Overrides};
use crate::context::ConnectionPermit;
use crate::upstream::tests::in_memory;

/// Pipeline whose upstream server records the headers of the requests that it receives.
struct Chain {
    pipeline: Pipeline,
    connection: Arc<ClientConnection>,
    shared: Shared,
    received: Arc<Mutex<Vec<HeaderMap>>>,
}

/// Response that the client received, with its complete body.
struct Received {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Chain {
    /// Creates a chain whose upstream server responds with 201 and the number of requests that it has received.
    /// `routes` is the part of the configuration after `[upstream.api]`.
    fn new(routes: &str) -> Self {
        Self::with(None, "", routes)
    }

    /// Creates a pipeline whose upstream waits for `gate` before each response. The parameter `server` contains
    /// additional lines for the section `[server]` of the configuration.
    fn with(gate: Option<Arc<Notify>>, server: &str, routes: &str) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let host = {
            let received = Arc::clone(&received);
            in_memory::serve(move |request| {
                let (received, gate) = (Arc::clone(&received), gate.clone());
                async move {
                    if let Some(gate) = gate {
                        gate.notified().await;
                    }
                    let mut received = received.lock();
                    received.push(request.headers().clone());
                    let body = Full::from(received.len().to_string());
                    Response::builder().status(201).body(body).unwrap()
                }
            })
        };
        let text = format!(
            "log.access = false\n[server]\nworkers = 1\n{server}\n[upstream.api]\nservers = [\"http://{host}\"]\n{routes}"
        );
        let loaded = config::parse(
            "chain.toml",
            &text,
            &Environment::default(),
            &Overrides::default(),
        );
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        let shared = Shared::new(Arc::new(policy), clock);
        let tasks = TaskTracker::new();
        let permit = ConnectionPermit::new(shared.metrics[0].connected(), None);
        Self {
            pipeline: Pipeline::new(&shared, 0, tasks.clone()).unwrap(),
            connection: Arc::new(ClientConnection::new(
                "192.0.2.1".parse().unwrap(),
                "http",
                tasks,
                Arc::new(permit),
            )),
            shared,
            received,
        }
    }

    async fn send(&self, request: http::request::Builder) -> Received {
        let request = request.body(RequestBody::empty()).unwrap();
        let response = self.pipeline.respond(&self.connection, request, None).await;
        let (parts, body) = response.into_parts();
        Received {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    fn executions(&self) -> usize {
        self.received.lock().len()
    }
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

fn post(key: &str) -> http::request::Builder {
    get("/pay")
        .method(Method::POST)
        .header("idempotency-key", key)
}

fn get(path: &str) -> http::request::Builder {
    Request::get(path).header("host", "api.example")
}

const LIMITED_AND_KEYED: &str = r#"
    [limit.device]
    rate = "1/m"
    burst = 2
    [[route]]
    name = "pay"
    path = "/pay"
    limits = ["device"]
    idempotency = { mode = "optional", scope = ["client"] }
"#;

#[tokio::test]
async fn a_request_passes_the_stages_in_order() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    // A request with an invalid head is rejected before the rate limit is charged.
    let invalid = Request::post("/pay");
    assert_eq!(chain.send(invalid).await.status, StatusCode::BAD_REQUEST);
    let first = chain.send(post("a")).await;
    assert_eq!(
        (first.status, &*first.body),
        (StatusCode::CREATED, &b"1"[..])
    );
    assert_eq!(first.header("ratelimit"), Some(r#""device";r=2;t=60"#));
    // A replay takes a token of the rate limit, because the throttle stage precedes the idempotency stage.
    let replayed = chain.send(post("a")).await;
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"));
    assert_eq!(
        (replayed.status, &*replayed.body),
        (StatusCode::CREATED, &b"1"[..])
    );
    assert_eq!(replayed.header("ratelimit"), Some(r#""device";r=1;t=60"#));
    // A rejection by a stage after the throttle stage has the `RateLimit` headers, too.
    let malformed = chain.send(post("two words")).await;
    assert_eq!(malformed.status, StatusCode::BAD_REQUEST);
    assert_eq!(malformed.header("ratelimit"), Some(r#""device";r=0;t=60"#));
    // A request that the rate limit rejects claims no idempotency key and reaches no server.
    let rejected = chain.send(post("b")).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.header("retry-after"), Some("60"));
    assert_eq!(chain.executions(), 1);
    chain.shared.clock.advance(Duration::from_mins(1));
    assert_eq!(&*chain.send(post("b")).await.body, b"2");
}

#[tokio::test]
async fn a_request_without_a_route_is_rejected_before_the_stages() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    let rejected = chain.send(get("/other")).await;
    assert_eq!(rejected.status, StatusCode::NOT_FOUND);
    assert!(rejected.header("ratelimit").is_none());
    assert!(rejected.header("x-request-id").is_some());
    assert_eq!(chain.executions(), 0);
}

#[tokio::test]
async fn upstream_receives_the_context_of_the_request() {
    let chain = Chain::new(
        "[client]\ntrusted_proxies = [\"192.0.2.0/24\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n",
    );
    let request = get("/a").header("x-forwarded-for", "198.51.100.7");
    let response = chain.send(request.header("x-request-id", "abc")).await;
    assert_eq!(response.status, StatusCode::CREATED);
    assert_eq!(response.header("x-request-id"), Some("abc"));
    let received = chain.received.lock();
    for (name, expected) in [
        ("host", "api.example"),
        ("x-forwarded-for", "198.51.100.7, 192.0.2.1"),
        ("x-forwarded-host", "api.example"),
        ("x-forwarded-proto", "http"),
        ("x-request-id", "abc"),
    ] {
        assert_eq!(received[0][name], expected, "{name}");
    }
}

#[tokio::test]
async fn a_problem_is_rendered_in_the_format_that_the_client_accepts() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    for (accept, expected) in [
        ("*/*", "application/problem+json"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
    ] {
        // The first request is rejected because its head is invalid, the second because it matches no route, and the
        // third because its idempotency key is invalid.
        for request in [Request::get("/pay"), get("/other"), post("two words")] {
            let rejected = chain.send(request.header("accept", accept)).await;
            assert_eq!(rejected.header("content-type"), Some(expected), "{accept}");
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_is_counted_with_499_and_its_execution_continues() {
    let gate = Arc::new(Notify::new());
    let chain = Arc::new(Chain::with(Some(Arc::clone(&gate)), "", LIMITED_AND_KEYED));
    let sending = tokio::spawn({
        let chain = Arc::clone(&chain);
        async move { chain.send(post("a")).await }
    });
    let in_flight = || chain.shared.metrics[0].upstreams[0].in_flight.get();
    while in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    sending.abort();
    assert!(sending.await.is_err_and(|error| error.is_cancelled()));
    let count =
        |status: u16| chain.shared.metrics[0].routes[0].by_status[usize::from(status) - 100].get();
    assert_eq!(count(499), 1);
    gate.notify_one();
    while in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    let replayed = chain.send(post("a")).await;
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"));
    assert_eq!((chain.executions(), count(201)), (1, 1));
}

#[tokio::test]
async fn executions_are_bounded_also_after_their_clients_disconnect() {
    let gate = Arc::new(Notify::new());
    let routes = r#"
        [[route]]
        name = "pay"
        path = "/pay"
        idempotency = { mode = "optional", scope = ["client"] }
    "#;
    let server = "max_connections = 2";
    let chain = Arc::new(Chain::with(Some(Arc::clone(&gate)), server, routes));
    let in_flight = || chain.shared.metrics[0].upstreams[0].in_flight.get();
    for (key, expected) in [("a", 1), ("b", 2)] {
        let sending = tokio::spawn({
            let chain = Arc::clone(&chain);
            async move { chain.send(post(key)).await }
        });
        while in_flight() < expected {
            tokio::task::yield_now().await;
        }
        sending.abort();
    }
    let rejected = chain.send(post("c")).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(rejected.header("retry-after").is_some());
    // The rejected request has released its idempotency key. So its retry is executed after the other requests end.
    for _ in 0..2 {
        gate.notify_one();
        let before = in_flight();
        while in_flight() == before {
            tokio::task::yield_now().await;
        }
    }
    gate.notify_one();
    assert_eq!(chain.send(post("c")).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_violation_of_http_is_rejected_without_a_route() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    let placeholder = Request::new(RequestBody::empty());
    let violation = Some(Violation::RequestLine);
    let responding = chain
        .pipeline
        .respond(&chain.connection, placeholder, violation);
    assert_eq!(responding.await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(chain.shared.metrics[0].unrouted.by_status[300].get(), 1);
}
