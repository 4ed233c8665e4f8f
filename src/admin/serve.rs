//! Serves the admin listener with the HTTP/1 server of the gateway, because it has a timeout for each thing that a
//! connection waits for, and rejects ambiguous requests. `axum::serve` has no timeouts.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::problem::AdminProblem;
use crate::http::connections::{ConnectionPermit, Connections};
use crate::http::http1::{self, FlushBatch, Http1Body, TrackDelivery};
use crate::http::service::{Received, Reply};
use crate::http::settings::{ClientTimeouts, ServerLimits};
use crate::request::client::Trust;

/// At the maximum, a new connection replaces an idle one, so probes and scrapes always find one.
pub(super) const MAX_CONNECTIONS: usize = 256;

pub(super) const MAX_CONNECTIONS_PER_CLIENT: usize = MAX_CONNECTIONS / 4;

/// The idle timeout is longer than the usual scrape interval, so that Prometheus can reuse its connection.
const TIMEOUTS: ClientTimeouts = ClientTimeouts {
    handshake: Duration::ZERO,
    head: Duration::from_secs(10),
    body: Duration::from_secs(10),
    min_rate: 0,
    idle: Duration::from_secs(75),
    write: Duration::from_secs(10),
    tunnel: Duration::ZERO,
    drain: Duration::ZERO,
};

/// The HTTP/1 server uses only the size of the head and the number of its lines.
const LIMITS: ServerLimits = ServerLimits {
    connections: MAX_CONNECTIONS,
    connections_per_client: MAX_CONNECTIONS_PER_CLIENT,
    head_bytes: 32 * 1024,
    header_lines: 100,
    body_bytes: 0,
    h2_streams: 0,
    h2_resets: 0,
};

/// Delay after a failed accept. The usual cause is `RLIMIT_NOFILE`, and without a delay the loop would use a CPU core
/// until a descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `done` is cancelled. Then finishes the requests in flight.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Arc<Connections>,
    trust: &Trust,
    done: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let batch = Arc::new(FlushBatch::default());
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let client = trust.connection_owner(peer.ip());
                    let Some(permit) = connections.admit(client).await else {
                        continue;
                    };
                    let (router, batch) = (router.clone(), Arc::clone(&batch));
                    let done = done.clone();
                    tasks.spawn(async move {
                        serve_connection(stream, &permit, router, &batch, &done).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "admin listener cannot accept connection, retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = done.cancelled() => {}
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn serve_connection(
    stream: TcpStream,
    permit: &Arc<ConnectionPermit>,
    router: Router,
    batch: &FlushBatch,
    done: &CancellationToken,
) {
    // An error is ignored: without `TCP_NODELAY` the responses are slower but correct.
    let _ = stream.set_nodelay(true);
    let service = |received| {
        let router = router.clone();
        Box::pin(async move { Reply::Response(respond(received, router).await) })
    };
    let stop = done.cancelled();
    let early = BytesMut::new();
    let serving = http1::serve(
        stream, early, permit, &LIMITS, TIMEOUTS, batch, stop, service,
    );
    tokio::select! {
        biased;
        () = permit.replaced() => tracing::debug!("idle admin connection replaced by a new one"),
        served = serving => {
            if let Err(error) = served {
                tracing::debug!(%error, "admin connection closed because of an error");
            }
        }
    }
}

async fn respond(received: Received<Http1Body>, router: Router) -> Response {
    match received {
        Received::Invalid { violation, .. } => AdminProblem::from(violation).into_response(),
        Received::Request(request) => {
            let Ok(response) = router.oneshot(request.map(Body::new)).await;
            response
        }
    }
}

impl TrackDelivery for Body {
    fn delivered(self: Pin<&mut Self>) {}

    fn is_reset(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    use super::*;

    /// A running admin server. `/` responds immediately, and `/slow` responds when `permits` has a permit.
    struct Fixture {
        address: SocketAddr,
        connections: Arc<Connections>,
        permits: Arc<Semaphore>,
        done: CancellationToken,
    }

    impl Fixture {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let fixture = Self {
                address: listener.local_addr().unwrap(),
                connections: Connections::new(MAX_CONNECTIONS, usize::MAX),
                permits: Arc::new(Semaphore::new(0)),
                done: CancellationToken::new(),
            };
            let permits = Arc::clone(&fixture.permits);
            let slow = async move || {
                permits.acquire().await.unwrap().forget();
                "late"
            };
            let router = Router::new()
                .route("/", get(|| async { "here" }))
                .route("/slow", get(slow));
            let connections = Arc::clone(&fixture.connections);
            let done = fixture.done.clone();
            tokio::spawn(async move {
                serve(listener, router, connections, &Trust::default(), done).await;
            });
            fixture
        }

        /// Opens a connection and sends `request` on it.
        async fn send(&self, request: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream
        }

        /// Waits until the gauge of open connections has this value.
        async fn wait_for_connections(&self, count: usize) {
            let deadline = Instant::now() + Duration::from_secs(30);
            while self.connections.count() != count {
                assert!(Instant::now() < deadline, "{:?}", self.connections);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    fn get_request(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    }

    /// Reads one response with the body `body`.
    async fn read_response(stream: &mut TcpStream, body: &str) -> String {
        let mut response = String::new();
        while !response.ends_with(&format!("\r\n\r\n{body}")) {
            let mut bytes = [0; 1024];
            let count = stream.read(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "the connection ended after {response:?}");
            response.push_str(str::from_utf8(&bytes[..count]).unwrap());
        }
        response
    }

    /// Asserts that the server closes the connection after `expected` and within a second of it.
    async fn assert_closed_after(mut stream: TcpStream, expected: Duration) -> String {
        let began = Instant::now();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        let waited = began.elapsed();
        let range = expected..expected + Duration::from_secs(1);
        assert!(range.contains(&waited), "{waited:?}");
        response
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_head_times_out() {
        let fixture = Fixture::start().await;
        let stream = fixture.send("GET / HTTP/1.1\r\nHost: lo").await;
        let response = assert_closed_after(stream, TIMEOUTS.head).await;
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed_after_its_last_request() {
        let fixture = Fixture::start().await;
        let mut stream = fixture.send(&get_request("/")).await;
        read_response(&mut stream, "here").await;
        assert_closed_after(stream, TIMEOUTS.idle).await;
    }

    #[tokio::test]
    async fn a_stopped_listener_closes_idle_connections() {
        let fixture = Fixture::start().await;
        let mut stream = fixture.send(&get_request("/")).await;
        let response = read_response(&mut stream, "here").await;
        assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
        fixture.done.cancel();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn at_the_maximum_a_new_connection_replaces_the_one_that_is_quiet_longest() {
        let fixture = Fixture::start().await;
        let handled = fixture.send(&get_request("/slow")).await;
        fixture.wait_for_connections(1).await;
        let mut quiet = Vec::new();
        for count in 2..=MAX_CONNECTIONS {
            quiet.push(fixture.send("GET / HTTP/1.1\r\nHost: lo").await);
            fixture.wait_for_connections(count).await;
        }
        let mut probe = fixture.send(&get_request("/")).await;
        read_response(&mut probe, "here").await;
        assert_eq!(fixture.connections.replaced.get(), 1);
        let mut first = quiet.remove(0);
        assert!(matches!(first.read(&mut [0]).await, Ok(0) | Err(_)));
        // The other connections are still served, including the oldest one, whose request is being handled.
        let last = quiet.last_mut().unwrap();
        last.write_all(b"calhost\r\n\r\n").await.unwrap();
        read_response(last, "here").await;
        fixture.permits.add_permits(1);
        let mut handled = handled;
        read_response(&mut handled, "late").await;
        fixture.wait_for_connections(MAX_CONNECTIONS).await;
        drop((probe, handled, quiet));
        fixture.wait_for_connections(0).await;
    }
}
