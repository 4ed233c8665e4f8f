//! Tests in which the request and the response overlap, or one of them ends early.

mod dropped_bodies;
mod upgrades;

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::http::IncompleteBody;

type ServiceFuture<B> = Pin<Box<dyn Future<Output = Response<B>> + Send>>;

/// The client side of a connection, and the task that serves the connection.
struct Pair {
    client: DuplexStream,
    serving: JoinHandle<io::Result<()>>,
}

impl Pair {
    fn start<B>(
        service: impl FnMut(Request<Http1Body>) -> ServiceFuture<B> + Send + 'static,
    ) -> Self
    where
        B: TrackDelivery + Send + 'static,
    {
        Self::until(pending(), service)
    }

    /// Starts a server. A message on the returned sender stops the server after the current request.
    fn stoppable<B>(
        service: impl FnMut(Request<Http1Body>) -> ServiceFuture<B> + Send + 'static,
    ) -> (oneshot::Sender<()>, Self)
    where
        B: TrackDelivery + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        (stop, Self::until(stopped, service))
    }

    fn until<B>(
        stop: impl Future<Output = ()> + Send + 'static,
        mut service: impl FnMut(Request<Http1Body>) -> ServiceFuture<B> + Send + 'static,
    ) -> Self
    where
        B: TrackDelivery + Send + 'static,
    {
        let (gateway, client) = duplex(1 << 20);
        let serving = tokio::spawn(async move {
            let (limits, timeouts) = (ServerLimits::default(), ClientTimeouts::default());
            let service = move |received| {
                let Received::Request(request) = received else {
                    panic!("the client sends valid requests");
                };
                let responding = service(request);
                Box::pin(async { Reply::Response(responding.await) })
            };
            serve(
                gateway,
                BytesMut::new(),
                &ConnectionPermit::alone(),
                &limits,
                timeouts,
                &FlushBatch::default(),
                stop,
                service,
            )
            .await
        });
        Self { client, serving }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.client.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads from the server until no bytes arrive for 10 ms. Returns the received text without `date` headers.
    async fn receive(&mut self) -> String {
        let (mut all, mut part) = (Vec::new(), vec![0; 64 * 1024]);
        let silence = Duration::from_millis(10);
        while let Ok(Ok(count @ 1..)) =
            tokio::time::timeout(silence, self.client.read(&mut part)).await
        {
            all.extend_from_slice(&part[..count]);
        }
        let all = String::from_utf8(all).unwrap();
        let lines = all.split_inclusive("\r\n");
        lines.filter(|line| !line.starts_with("date: ")).collect()
    }

    /// Checks that the server closes the connection without further bytes. Returns the result of the server task.
    async fn closes(mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        self.client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
        drop(self.client);
        self.serving.await.unwrap()
    }
}

fn post(target: &str, length: usize) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Service that drops the request body unread and responds immediately.
fn unread(request: Request<Http1Body>) -> ServiceFuture<Full<Bytes>> {
    drop(request);
    Box::pin(async { Response::new(Full::default()) })
}

/// Service that responds with the body of the request.
fn echo(request: Request<Http1Body>) -> ServiceFuture<Full<Bytes>> {
    Box::pin(async {
        let body = request.into_body().collect().await;
        Response::new(Full::new(body.map_or_else(
            |error| error.to_string().into(),
            http_body_util::Collected::to_bytes,
        )))
    })
}

#[tokio::test(start_paused = true)]
async fn continue_is_sent_when_the_service_reads_a_body_that_has_not_started() {
    let head = post("/", 5).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    let echoed = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    let mut pair = Pair::start(echo);
    pair.send(&head).await;
    assert_eq!(pair.receive().await, "HTTP/1.1 100 Continue\r\n\r\n");
    pair.send("hello").await;
    assert_eq!(pair.receive().await, echoed);
    pair.send(format!("{head}hello")).await;
    assert_eq!(pair.receive().await, echoed);
    pair.send(format!("{head}hel")).await;
    assert_eq!(pair.receive().await, "");
    pair.send("lo").await;
    assert_eq!(pair.receive().await, echoed);
}

#[tokio::test(start_paused = true)]
async fn a_response_without_continue_closes_the_connection() {
    let mut pair = Pair::start(unread);
    pair.send(post("/", 5).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n"))
        .await;
    let response = pair.receive().await;
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_response_may_start_before_its_request_is_complete() {
    let mut pair = Pair::start(|request: Request<Http1Body>| -> ServiceFuture<_> {
        Box::pin(async { Response::new(request.into_body()) })
    });
    pair.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .await;
    assert_eq!(
        pair.receive().await,
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    );
    pair.send("3\r\ntwo\r\n").await;
    assert_eq!(pair.receive().await, "3\r\ntwo\r\n");
    pair.send(format!("0\r\n\r\n{GET}")).await;
    let rest = pair.receive().await;
    assert!(rest.starts_with("0\r\n\r\nHTTP/1.1 200 OK"), "{rest}");
}

#[tokio::test(start_paused = true)]
async fn a_truncated_response_is_sent_up_to_its_failure() {
    for (version, expected) in [
        (
            "1.1",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        ),
        ("1.0", "HTTP/1.0 200 OK\r\n\r\nhalf"),
    ] {
        let mut pair = Pair::start(|_| -> ServiceFuture<_> {
            let half = Ok(Frame::data(Bytes::from_static(b"half")));
            let body = StreamBody::new(stream::iter([half, Err("failed")]));
            Box::pin(async { Response::new(body) })
        });
        pair.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"))
            .await;
        assert_eq!(pair.receive().await, expected);
        pair.closes().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopping_connection_finishes_a_request_that_has_started() {
    let (stop, mut pair) = Pair::stoppable(echo);
    pair.send(&GET[..10]).await;
    assert_eq!(pair.receive().await, "");
    stop.send(()).unwrap();
    pair.send(&GET[10..]).await;
    let response = pair.receive().await;
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stopping_idle_connection_is_closed_after_one_second() {
    for requests in [0, 1] {
        let (stop, mut pair) = Pair::stoppable(echo);
        for _ in 0..requests {
            pair.send(GET).await;
            assert_eq!(pair.receive().await, EMPTY);
        }
        let start = Instant::now();
        stop.send(()).unwrap();
        pair.closes().await.unwrap();
        assert_eq!(start.elapsed(), ClientTimeouts::default().drain);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopping_idle_connection_serves_one_more_request() {
    let (stop, mut pair) = Pair::stoppable(echo);
    pair.send(GET).await;
    assert_eq!(pair.receive().await, EMPTY);
    stop.send(()).unwrap();
    sleep(ClientTimeouts::default().drain.mul_f64(0.9)).await;
    pair.send(GET).await;
    let response = pair.receive().await;
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_stops_during_a_response_serves_one_more_request() {
    let (end, ended) = oneshot::channel::<()>();
    let mut ended = Some(ended);
    let (stop, mut pair) = Pair::stoppable(move |_| -> ServiceFuture<_> {
        let ended = ended.take();
        let body = stream::once(async move {
            if let Some(ended) = ended {
                let _ = ended.await;
            }
            Ok::<_, IncompleteBody>(Frame::data(Bytes::from_static(b"end")))
        });
        Box::pin(async { Response::new(BoxBody::new(StreamBody::new(Box::pin(body)))) })
    });
    pair.send(GET).await;
    let head = pair.receive().await;
    assert!(!head.contains("close"), "{head}");
    stop.send(()).unwrap();
    sleep(Duration::from_secs(5)).await;
    end.send(()).unwrap();
    assert_eq!(pair.receive().await, "3\r\nend\r\n0\r\n\r\n");
    pair.send(GET).await;
    let response = pair.receive().await;
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stopping_connection_serves_pipelined_requests_for_one_second() {
    let slow_echo = |request| -> ServiceFuture<_> {
        Box::pin(async {
            sleep(Duration::from_millis(400)).await;
            echo(request).await
        })
    };
    let (stop, mut pair) = Pair::stoppable(slow_echo);
    pair.send(GET.repeat(2)).await;
    stop.send(()).unwrap();
    sleep(Duration::from_millis(801)).await;
    let last = EMPTY.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    assert_eq!(pair.receive().await, format!("{EMPTY}{last}"));
    pair.closes().await.unwrap();

    // The time of 1 s starts at the first response, after 400 ms. So the response after 1,600 ms is the last.
    let (stop, mut pair) = Pair::stoppable(slow_echo);
    pair.send(GET.repeat(10)).await;
    stop.send(()).unwrap();
    let mut received = String::new();
    pair.client.read_to_string(&mut received).await.unwrap();
    assert_eq!(received.matches("HTTP/1.1 200 OK").count(), 4);
    assert_eq!(received.matches("connection: close").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_connection_waits_one_second_for_the_rest_of_a_dropped_body() {
    let (stop, mut pair) = Pair::stoppable(unread);
    pair.send(post("/", 5)).await;
    assert_eq!(pair.receive().await, EMPTY);
    let start = Instant::now();
    stop.send(()).unwrap();
    pair.client.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(start.elapsed(), ClientTimeouts::default().drain);
}

#[tokio::test(start_paused = true)]
async fn an_http_1_0_client_can_keep_the_connection_alive() {
    let mut pair = Pair::start(echo);
    let request = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    for _ in 0..2 {
        pair.send(request).await;
        let response = pair.receive().await;
        assert!(
            response.contains("\r\nconnection: keep-alive\r\n"),
            "{response}"
        );
    }
    pair.send("GET / HTTP/1.0\r\n\r\n").await;
    assert!(!pair.receive().await.contains("connection"));
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_service_is_dropped_when_the_client_closes() {
    let (gone, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let pair = Pair::start(move |_| -> ServiceFuture<Full<Bytes>> {
        let gone = gone.clone();
        Box::pin(async move {
            /// Guard that sends a message when it is dropped. The test thereby detects that the service's future is
            /// dropped.
            struct OnDrop(tokio::sync::mpsc::UnboundedSender<()>);
            impl Drop for OnDrop {
                fn drop(&mut self) {
                    let _ = self.0.send(());
                }
            }
            let _on_drop = OnDrop(gone);
            pending().await
        })
    });
    let Pair {
        mut client,
        serving,
    } = pair;
    client.write_all(GET.as_bytes()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(seen.try_recv().is_err());
    drop(client);
    let error = serving.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(seen.try_recv().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_truncated_request_body_is_an_error_and_gets_a_response() {
    let mut pair = Pair::start(echo);
    pair.send(post("/", 5) + "he").await;
    pair.client.shutdown().await.unwrap();
    let response = pair.receive().await;
    assert!(
        response.ends_with("before the request body was complete"),
        "{response}"
    );
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn continue_is_not_sent_after_the_response_has_started() {
    let mut pair = Pair::start(|request: Request<Http1Body>| -> ServiceFuture<_> {
        Box::pin(async { Response::new(request.into_body()) })
    });
    pair.send(post("/", 5).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n"))
        .await;
    assert_eq!(
        pair.receive().await,
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n"
    );
    let start = Instant::now();
    pair.send("hello").await;
    assert_eq!(pair.receive().await, "hello");
    pair.closes().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
}
