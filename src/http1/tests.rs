//! A server spoken to in raw bytes.

mod deadlines;
mod readers;

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
use crate::settings::{Caps, Deadlines};

const DEADLINES: Deadlines = Deadlines {
    handshake: Duration::from_secs(1),
    head: Duration::from_secs(10),
    body: Duration::from_secs(30),
    idle: Duration::from_secs(75),
    write: Duration::from_secs(20),
};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// How long requests to `/slow` take, longer than any deadline.
const SLOW: Duration = Duration::from_secs(500);

struct Server {
    client: DuplexStream,
    connection: JoinHandle<io::Result<()>>,
    served: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        Self::with_early(b"")
    }

    fn with_early(early: &[u8]) -> Self {
        let (gateway, client) = duplex(64 * 1024);
        let (connection, served) = listen(gateway, early);
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

    /// Everything the gateway sends until it closes.
    async fn answers(&mut self) -> String {
        let mut all = Vec::new();
        let reading = self.client.read_to_end(&mut all);
        timeout(3 * SLOW, reading).await.unwrap().unwrap();
        String::from_utf8(all).unwrap()
    }

    /// What the gateway sends until it has said `end`.
    async fn answer_to(&mut self, end: &str) -> String {
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

/// Speaks HTTP/1 on a connection, counting the requests that are served.
fn listen<IO>(io: IO, early: &[u8]) -> (JoinHandle<io::Result<()>>, Arc<AtomicUsize>)
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    let early = early.into();
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let service = move |request, violation: Option<Violation>| -> Pin<Box<_>> {
        if violation.is_none() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Box::pin(answer(request, violation))
    };
    let connection = async move {
        serve(
            io,
            early,
            &Caps::default(),
            DEADLINES,
            &Turns::default(),
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

fn refusal(violation: Violation) -> Response<Full<Bytes>> {
    response(violation.status(), violation.to_string())
}

/// Answers with the request's body, refusing what is to be refused.
async fn answer(mut request: Request<Body>, violation: Option<Violation>) -> Response<Full<Bytes>> {
    if let Some(violation) = violation {
        return refusal(violation);
    }
    match request.uri().path() {
        "/slow" => sleep(SLOW).await,
        "/unread" => return response(StatusCode::PAYLOAD_TOO_LARGE, "unread"),
        "/large" => return response(StatusCode::OK, vec![b'x'; 1 << 20]),
        "/tunnel" => {
            let upgrade = upgrade::on(&mut request).expect("an upgrade");
            tokio::spawn(async move {
                let mut tunnel = upgrade.await.unwrap();
                let mut said = [0; 5];
                tunnel.read_exact(&mut said).await.unwrap();
                tunnel.write_all(&said).await.unwrap();
                tunnel.shutdown().await.unwrap();
            });
            return response(StatusCode::SWITCHING_PROTOCOLS, "");
        }
        _ => {}
    }
    match request.into_body().collect().await {
        Ok(body) => response(StatusCode::OK, body.to_bytes()),
        Err(BodyError::Violation(violation)) => refusal(violation),
        Err(error @ BodyError::Closed) => response(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

fn statuses(answers: &str) -> Vec<&str> {
    answers
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|answer| &answer[..3])
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_all_answered_in_order() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst";
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   6\r\nsecond\r\n0\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut server = Server::start();
    server.send([post, chunked, GET, last].concat()).await;
    let answers = server.answers().await;
    assert_eq!(statuses(&answers), ["200"; 4]);
    assert!(answers.find("first") < answers.find("second"));
    server.connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_read_early_belongs_to_the_first_request() {
    let mut server = Server::with_early(b"GET / HTTP/1.0\r\n\r\n");
    assert!(server.answers().await.contains(" 200 OK"));
    let mut server = Server::with_early(&GET.as_bytes()[..7]);
    server.send(&GET[7..]).await;
    assert!(server.answer_to("\r\n\r\n").await.contains(" 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn a_bad_head_is_refused_and_what_follows_it_never_served() {
    let bad = [
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
    for bad in bad {
        let mut server = Server::start();
        server.send([GET, GET, bad, GET].concat()).await;
        let answers = server.answers().await;
        assert_eq!(statuses(&answers), ["200", "200", "400"], "{bad:?}");
        assert_eq!(server.served(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_says_what_kind_of_fault_it_was() {
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
        let mut server = Server::start();
        server.send(head).await;
        assert_eq!(statuses(&server.answers().await), [status]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_waits_its_turn_behind_a_slow_answer() {
    let mut server = Server::start();
    server.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    sleep(Duration::from_secs(1)).await;
    server.send("GET / HTTP/1.1\n\n").await;
    assert_eq!(statuses(&server.answers().await), ["200", "400"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_fails_where_its_chunks_break() {
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
        let mut server = Server::start();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        server.send([head, body, GET].concat()).await;
        assert_eq!(statuses(&server.answers().await), ["400"], "{body:?}");
        assert_eq!(server.served(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let mut server = Server::start();
    let head = "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
    server.send(head).await;
    server.send(vec![b'x'; 200_000]).await;
    let answers = server.answers().await;
    assert_eq!(statuses(&answers), ["413"]);
    assert!(answers.ends_with("unread"));
    assert_eq!(server.served(), 1);
}

#[tokio::test]
async fn a_refusal_is_not_destroyed_by_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (gateway, _) = listener.accept().await.unwrap();
    let (connection, _) = listen(gateway, b"");
    // More than is taken at once, so that some of it is unread when the answer is out.
    let head = "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..20 {
        client.write_all(&[b'x'; 10_000]).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(statuses(&answer), ["413"]);
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_begins_with_what_was_sent_behind_the_upgrade() {
    let mut server = Server::start();
    let upgrade = "GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    server.send([upgrade, "\0\n\0\n!"].concat()).await;
    let answers = server.answers().await;
    assert_eq!(statuses(&answers), ["101"]);
    assert!(answers.ends_with("\r\n\r\n\0\n\0\n!"));
}

#[tokio::test(start_paused = true)]
async fn what_follows_an_upgrade_that_was_not_made_is_held_to_the_grammar() {
    let upgrade = "GET /slow HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let mut server = Server::start();
    server
        .send([upgrade, GET, "GET / HTTP/1.1\n\n"].concat())
        .await;
    assert_eq!(statuses(&server.answers().await), ["200", "200", "400"]);
    assert_eq!(server.served(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_is_noticed_while_an_upgrade_is_undecided() {
    let upgrade = "GET /slow HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let mut server = Server::start();
    let start = Instant::now();
    server.send(upgrade).await;
    drop(server.client);
    assert!(server.connection.await.unwrap().is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
}
