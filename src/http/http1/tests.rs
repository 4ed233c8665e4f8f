//! Tests that send raw bytes to an HTTP/1 server.

mod comparison;
mod timeouts;

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use proptest::prelude::*;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::http::IncompleteBody;
use crate::http::connections::ConnectionPermit;
use crate::http::service::{Received, Reply};
use crate::http::settings::{ClientTimeouts, ServerLimits};
use crate::http::socket::ClientSocket;

const TIMEOUTS: ClientTimeouts = ClientTimeouts {
    handshake: Duration::from_secs(1),
    head: Duration::from_secs(10),
    body: Duration::from_secs(30),
    min_rate: 0,
    idle: Duration::from_secs(75),
    write: Duration::from_secs(20),
    tunnel: Duration::from_mins(10),
    drain: Duration::from_secs(1),
};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// How long the service takes to respond to `/slow`. This is longer than any timeout of the test server.
const SLOW: Duration = Duration::from_secs(500);

struct TestServer {
    client: DuplexStream,
    connection: JoinHandle<io::Result<()>>,
    served: Arc<AtomicUsize>,
}

impl TestServer {
    fn start() -> Self {
        Self::with_early(b"")
    }

    fn with_early(early: &[u8]) -> Self {
        Self::with(early, TIMEOUTS)
    }

    fn with(early: &[u8], timeouts: ClientTimeouts) -> Self {
        let (gateway, client) = duplex(64 * 1024);
        let (connection, served) = start(gateway, early, timeouts);
        Self {
            client,
            connection,
            served,
        }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.client.write_all(bytes.as_ref()).await.unwrap();
        self
    }

    /// Reads until the server closes the connection. Returns the received text.
    async fn responses(&mut self) -> String {
        let mut all = Vec::new();
        let reading = self.client.read_to_end(&mut all);
        timeout(3 * SLOW, reading).await.unwrap().unwrap();
        String::from_utf8(all).unwrap()
    }

    /// Reads until the received text ends with `end`.
    async fn response_until(&mut self, end: &str) -> String {
        let mut all = String::new();
        while !all.ends_with(end) {
            let byte = timeout(3 * SLOW, self.client.read_u8()).await.unwrap();
            all.push(char::from(byte.unwrap()));
        }
        all
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }
}

/// Starts a task that serves HTTP/1 on a connection. Returns the task and a counter of the served requests.
fn start<IO>(
    io: IO,
    early: &[u8],
    timeouts: ClientTimeouts,
) -> (JoinHandle<io::Result<()>>, Arc<AtomicUsize>)
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    let early = early.into();
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let service = move |received: Received<Http1Body>| -> Pin<Box<_>> {
        if matches!(received, Received::Request(_)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Box::pin(async { Reply::Response(respond(received).await) })
    };
    let connection = async move {
        serve(
            io,
            early,
            &ConnectionPermit::alone(),
            &ServerLimits::default(),
            timeouts,
            &FlushBatch::default(),
            pending(),
            service,
        )
        .await
    };
    (tokio::spawn(connection), served)
}

fn response(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

fn rejection(violation: Violation) -> Response<Full<Bytes>> {
    response(violation.status(), violation.to_string())
}

/// Service of the tests. It responds with the body of the request, unless the path selects another behaviour or the
/// request is invalid.
async fn respond(received: Received<Http1Body>) -> Response<Full<Bytes>> {
    let mut request = match received {
        Received::Request(request) => request,
        Received::Invalid { violation, .. } => return rejection(violation),
    };
    match request.uri().path() {
        "/slow" => sleep(SLOW).await,
        "/unread" => return response(StatusCode::PAYLOAD_TOO_LARGE, "unread"),
        "/large" => return response(StatusCode::OK, vec![b'x'; 1 << 20]),
        "/tunnel" => {
            let upgrade = upgrade::on(&mut request).expect("the request asks for an upgrade");
            tokio::spawn(async move {
                let mut tunnel = upgrade.await.unwrap();
                let mut received = [0; 5];
                tunnel.read_exact(&mut received).await.unwrap();
                tunnel.write_all(&received).await.unwrap();
                tunnel.shutdown().await.unwrap();
            });
            return response(StatusCode::SWITCHING_PROTOCOLS, "");
        }
        _ => {}
    }
    match request.into_body().collect().await {
        Ok(body) => response(StatusCode::OK, body.to_bytes()),
        Err(IncompleteBody::Invalid(violation)) => rejection(violation),
        Err(error @ IncompleteBody::Disconnected) => {
            response(StatusCode::BAD_REQUEST, error.to_string())
        }
    }
}

/// Returns the status codes of all responses. A body must not contain `HTTP/1.1`, a space and a digit in this order,
/// because the function would treat this text as a status line.
fn statuses(responses: &str) -> Vec<&str> {
    responses
        .split("HTTP/1.1 ")
        .skip(1)
        .filter(|response| response.starts_with(|first: char| first.is_ascii_digit()))
        .map(|response| &response[..3])
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_get_their_responses_in_order() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst";
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   6\r\nsecond\r\n0\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut server = TestServer::start();
    server.send([post, chunked, GET, last].concat()).await;
    let responses = server.responses().await;
    assert_eq!(statuses(&responses), ["200"; 4]);
    assert!(responses.find("first") < responses.find("second"));
    server.connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn early_bytes_belong_to_the_first_request() {
    let mut server = TestServer::with_early(b"GET / HTTP/1.0\r\n\r\n");
    assert!(server.responses().await.contains(" 200 OK"));
    let mut server = TestServer::with_early(&GET.as_bytes()[..7]);
    server.send(&GET[7..]).await;
    assert!(server.response_until("\r\n\r\n").await.contains(" 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_head_is_rejected_and_nothing_after_it_is_served() {
    let invalid = [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n",
        "GET / HTTP/1.1\r\n: a\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    ];
    for head in invalid {
        let mut server = TestServer::start();
        server.send([GET, GET, head, GET].concat()).await;
        let responses = server.responses().await;
        assert_eq!(statuses(&responses), ["200", "200", "400"], "{head:?}");
        assert_eq!(server.served(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_version_gets_505_and_a_large_head_431() {
    for (head, status) in [
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n".to_owned(), "505"),
        (
            format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(101)),
            "431",
        ),
        (
            format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(33_000)),
            "431",
        ),
    ] {
        let mut server = TestServer::start();
        server.send(head).await;
        assert_eq!(statuses(&server.responses().await), [status]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_sent_after_the_response_to_a_slow_request() {
    let mut server = TestServer::start();
    server.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    sleep(Duration::from_secs(1)).await;
    server.send("GET / HTTP/1.1\n\n").await;
    assert_eq!(statuses(&server.responses().await), ["200", "400"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_with_invalid_chunks_gets_400() {
    for body in [
        "0x5\r\n",
        "5;\n",
        "5\n",
        "5\r\nhello\n",
        "5\r\nhello\rx",
        "0\r\n\n",
        "0\r\na b\r\n\r\n",
        "0\r\n\rx",
        "fffffffffffffffff\r\n",
    ] {
        let mut server = TestServer::start();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        server.send([head, body, GET].concat()).await;
        assert_eq!(statuses(&server.responses().await), ["400"], "{body:?}");
        assert_eq!(server.served(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_reaches_a_client_that_is_still_sending() {
    let mut server = TestServer::start();
    let head = "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
    server.send(head).await;
    server.send(vec![b'x'; 200_000]).await;
    let responses = server.responses().await;
    assert_eq!(statuses(&responses), ["413"]);
    assert!(responses.ends_with("unread"));
    assert_eq!(server.served(), 1);
}

#[tokio::test]
async fn a_rejection_over_tcp_is_not_lost_to_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (gateway, _) = listener.accept().await.unwrap();
    let (connection, _) = start(gateway, b"", TIMEOUTS);
    // The body is larger than one read of the server, so a part of it is unread when the response is sent.
    let head = "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..20 {
        client.write_all(&[b'x'; 10_000]).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert_eq!(statuses(&response), ["413"]);
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_starts_with_the_bytes_after_the_upgrade() {
    let mut server = TestServer::start();
    let upgrade = "GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    server.send([upgrade, "\0\n\0\n!"].concat()).await;
    let responses = server.responses().await;
    assert_eq!(statuses(&responses), ["101"]);
    assert!(responses.ends_with("\r\n\r\n\0\n\0\n!"));
}

#[tokio::test(start_paused = true)]
async fn bytes_after_a_declined_upgrade_are_parsed() {
    let upgrade = "GET /slow HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let mut server = TestServer::start();
    server
        .send([upgrade, GET, "GET / HTTP/1.1\n\n"].concat())
        .await;
    assert_eq!(statuses(&server.responses().await), ["200", "200", "400"]);
    assert_eq!(server.served(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_close_of_a_client_that_waits_for_an_upgrade_is_detected() {
    let upgrade = "GET /slow HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let mut server = TestServer::start();
    let start = Instant::now();
    server.send(upgrade).await;
    drop(server.client);
    assert!(server.connection.await.unwrap().is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
}
