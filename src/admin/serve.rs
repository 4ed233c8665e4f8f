//! Serves the connections of the admin listener, with a timeout for request heads.
//!
//! `axum::serve` is not used, because it has no such timeout. A connection that never completes a request would stay
//! open forever.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// How long an admin connection waits for the complete head of its next request, including idle time. The timeout is
/// longer than the usual scrape interval, so that Prometheus can reuse its connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Delay before the next accept after a failed one. The usual cause is `RLIMIT_NOFILE`, and without a delay the loop
/// would use a CPU core until a descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves admin connections until `done` is cancelled. Then finishes the requests in flight and returns.
pub(super) async fn serve(listener: TcpListener, router: Router, done: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = done.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(serve_connection(stream, router.clone(), done.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "admin listener cannot accept connection, retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(stream: TcpStream, router: Router, done: CancellationToken) {
    // An error is ignored: without `TCP_NODELAY` the responses are slower but correct.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| router.clone().oneshot(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = done.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection closed because of an error");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn start() -> (TcpStream, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "here" }));
        let done = CancellationToken::new();
        tokio::spawn(serve(listener, router, done.clone()));
        (TcpStream::connect(address).await.unwrap(), done)
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_head_times_out() {
        let (mut stream, _done) = start().await;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: lo")
            .await
            .unwrap();
        let began = tokio::time::Instant::now();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        let waited = began.elapsed();
        let tolerance = Duration::from_secs(1);
        assert!(
            (HEAD_TIMEOUT..HEAD_TIMEOUT + tolerance).contains(&waited),
            "{waited:?}"
        );
        assert_eq!(response.escape_ascii().to_string(), "");
    }

    #[tokio::test]
    async fn a_stopped_listener_closes_idle_connections() {
        let (mut stream, done) = start().await;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut head = [0; 15];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        done.cancel();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.ends_with("here"), "{rest}");
    }
}
