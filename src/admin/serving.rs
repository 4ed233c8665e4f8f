//! The connections of the admin listener, each held to a deadline.
//!
//! axum's own `serve` has no timer, so a connection that sends half a request, or none, would be kept for
//! ever.

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

/// How long a client may take until the head of its next request is there, idling included: longer than
/// scrapes are usually apart.
const HEAD: Duration = Duration::from_secs(75);

/// How long to wait before accepting again where that failed: out of file descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `done`, and then to the end of the requests that are being answered.
pub(super) async fn serve(listener: TcpListener, router: Router, done: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = done.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(attend(stream, router.clone(), done.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn attend(stream: TcpStream, router: Router, done: CancellationToken) {
    // Only slower where it cannot be had.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request| router.clone().oneshot(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = done.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection broke off");
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
    async fn half_a_head_is_not_waited_for_without_end() {
        let (mut stream, _done) = start().await;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: lo")
            .await
            .unwrap();
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // Whether it is told why or only cut off does not matter.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(began.elapsed() >= HEAD);
        assert!(!String::from_utf8_lossy(&answer).contains("200"));
    }

    #[tokio::test]
    async fn a_listener_that_is_done_lets_go_of_idle_connections() {
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
