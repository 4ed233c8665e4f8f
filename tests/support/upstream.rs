//! Upstream server that records the requests that it receives. The test determines its responses.

use std::convert::Infallible;
use std::future::Future;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::Certificates;

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;
type ReplyFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Handler = dyn Fn(Received) -> ReplyFuture + Send + Sync;

/// Running upstream server, which stops when it is dropped.
pub(crate) struct Upstream {
    address: SocketAddr,
    scheme: &'static str,
    log: Arc<ReceivedLog>,
    stop: CancellationToken,
}

/// Status of all responses of an upstream. The test can change it at any time.
#[derive(Clone)]
pub(crate) struct StatusSwitch(Arc<AtomicU16>);

/// Request as the upstream received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    /// Path and query, exactly as the upstream received them.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Default)]
struct ReceivedLog {
    requests: Mutex<Vec<Received>>,
    connections: AtomicUsize,
}

impl StatusSwitch {
    pub(crate) fn set_status(&self, status: u16) {
        self.0.store(status, Ordering::SeqCst);
    }

    /// Creates a response with the current status and the body `ok`.
    pub(crate) fn reply(&self) -> Reply {
        reply(self.0.load(Ordering::SeqCst), "ok")
    }
}

impl Received {
    /// Returns the values of all lines of a header field, joined with `, `. Returns an empty string if there are none.
    pub(crate) fn header(&self, name: &str) -> String {
        joined_lines(&self.headers, name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    fn as_json(&self) -> String {
        let headers: serde_json::Map<_, _> = self
            .headers
            .keys()
            .map(|name| (name.to_string(), self.header(name.as_str()).into()))
            .collect();
        serde_json::json!({
            "method": self.method.as_str(),
            "target": self.target,
            "headers": headers,
            "body": String::from_utf8_lossy(&self.body),
        })
        .to_string()
    }
}

impl Upstream {
    /// Creates an upstream that responds to all requests with this status and the body `ok`.
    pub(crate) fn replying(status: u16) -> Self {
        Self::with(move |_| async move { reply(status, "ok") })
    }

    /// Creates an upstream that responds to all requests with the body `ok`. The status is `status` until the test
    /// changes it with the returned switch.
    pub(crate) fn with_status_switch(status: u16) -> (Self, StatusSwitch) {
        let switch = StatusSwitch(Arc::new(AtomicU16::new(status)));
        let handle = switch.clone();
        let upstream = Self::with(move |_| std::future::ready(handle.reply()));
        (upstream, switch)
    }

    /// Creates an upstream that responds with a JSON document that describes the request. Its members are `method`,
    /// `target`, `headers` and `body`.
    pub(crate) fn echo() -> Self {
        Self::with(|received| async move {
            let mut reply = full(received.as_json());
            reply.headers_mut().insert(
                http::header::CONTENT_TYPE,
                http::HeaderValue::from_static("application/json"),
            );
            reply
        })
    }

    /// Creates an upstream that receives requests and never responds.
    pub(crate) fn silent() -> Self {
        Self::with(|_| std::future::pending())
    }

    /// Creates an upstream that sends one response for each permit of the returned semaphore. The test adds the
    /// permits. The body of each response is `late, but whole`.
    pub(crate) fn responding_on_permit() -> (Self, Arc<Semaphore>) {
        Self::on_permit(|_| full("late, but whole"))
    }

    /// Creates an upstream that calls `handler` for each request immediately, and sends one response for each permit of
    /// the returned semaphore. The test adds the permits.
    pub(crate) fn on_permit(
        handler: impl Fn(Received) -> Reply + Send + Sync + 'static,
    ) -> (Self, Arc<Semaphore>) {
        let permits = Arc::new(Semaphore::new(0));
        let waiting = Arc::clone(&permits);
        let upstream = Self::with(move |received| {
            let (reply, waiting) = (handler(received), Arc::clone(&waiting));
            async move {
                let permit = waiting.acquire().await;
                permit.expect("the semaphore is never closed").forget();
                reply
            }
        });
        (upstream, permits)
    }

    /// Creates an upstream that responds to each request with the result of `handler`.
    pub(crate) fn with<F, R>(handler: F) -> Self
    where
        F: Fn(Received) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        Self::start(handler, None)
    }

    /// Creates an upstream that responds over TLS with a JSON document that describes the request.
    pub(crate) fn echo_through_tls(certificates: &Certificates) -> Self {
        let handler = |received: Received| async move { full(received.as_json()) };
        Self::start(handler, Some(certificates.acceptor()))
    }

    /// Creates an upstream that sends `bytes` after every request head. The bytes need not be valid HTTP. The upstream
    /// leaves the connection open and does not record requests.
    pub(crate) fn sending_raw(bytes: &'static str) -> Self {
        Self::spawn("http", move |mut stream, _| async move {
            while read_head(&mut stream).await.is_ok() {
                if stream.write_all(bytes.as_bytes()).await.is_err() {
                    return;
                }
            }
        })
    }

    /// Creates an upstream that resets each connection after it has read a request head. It does not record requests.
    pub(crate) fn resetting() -> Self {
        Self::spawn("http", |mut stream, _| async move {
            if read_head(&mut stream).await.is_ok() {
                // A linger time of zero makes the close a reset.
                let set = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                set.expect("the socket is open");
            }
        })
    }

    /// Creates an upstream that responds over TLS with 413 to each request head, and closes the connection without
    /// reading the body. It does not record requests.
    pub(crate) fn early_413_through_tls(certificates: &Certificates) -> Self {
        let tls = certificates.acceptor();
        Self::spawn("https", move |stream, _| {
            let tls = tls.clone();
            async move {
                let response = b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge";
                let respond = async {
                    let mut stream = tls.accept(stream).await?;
                    read_head(&mut stream).await?;
                    stream.write_all(response).await?;
                    stream.flush().await
                };
                // An error is ignored: the gateway can close the connection early.
                drop(respond.await);
            }
        })
    }

    fn start<F, R>(handler: F, tls: Option<TlsAcceptor>) -> Self
    where
        F: Fn(Received) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let handler: Arc<Handler> =
            Arc::new(move |received| -> ReplyFuture { Box::pin(handler(received)) });
        let scheme = if tls.is_some() { "https" } else { "http" };
        Self::spawn(scheme, move |stream, log| {
            let (handler, tls) = (Arc::clone(&handler), tls.clone());
            async move {
                match tls {
                    None => serve(stream, handler, log).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(stream, handler, log).await;
                        }
                    }
                }
            }
        })
    }

    /// Starts an upstream that calls `serve` for each connection.
    fn spawn<F, R>(scheme: &'static str, serve: F) -> Self
    where
        F: Fn(TcpStream, Arc<ReceivedLog>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        socket
            .set_nonblocking(true)
            .expect("the socket is non-blocking");
        let upstream = Self {
            address: socket.local_addr().expect("the address is valid"),
            scheme,
            log: Arc::default(),
            stop: CancellationToken::new(),
        };
        let (log, stop) = (Arc::clone(&upstream.log), upstream.stop.clone());
        let accept = async move {
            let listener = TcpListener::from_std(socket).expect("the socket listens");
            loop {
                let (stream, _) = listener.accept().await.expect("the connection is open");
                // Without this option, the kernel can delay a response, and a close discards a delayed response.
                stream.set_nodelay(true).expect("the connection is open");
                log.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, Arc::clone(&log)));
            }
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("the runtime starts");
            runtime.block_on(stop.run_until_cancelled(accept));
        });
        upstream
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        match self.scheme {
            "https" => format!("https://localhost:{}", self.address.port()),
            _ => format!("http://{}", self.address),
        }
    }

    /// Returns all requests that the upstream has received, in the order of arrival.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.log.requests.lock().clone()
    }

    /// Returns the number of requests that the upstream has received.
    pub(crate) fn count(&self) -> usize {
        self.log.requests.lock().len()
    }

    /// Returns the last request that the upstream has received. Panics if there is none.
    pub(crate) fn last(&self) -> Received {
        self.requests()
            .pop()
            .expect("the upstream has received a request")
    }

    /// Returns the number of connections that the upstream has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Creates a response with the status 200 and this body.
pub(crate) fn full(body: impl Into<Bytes>) -> Reply {
    Response::new(Full::new(body.into()).boxed_unsync())
}

/// Creates a response with this status and body.
pub(crate) fn reply(status: u16, body: impl Into<Bytes>) -> Reply {
    let mut reply = full(body);
    *reply.status_mut() = status.try_into().expect("the status is valid");
    reply
}

/// Creates a response with this status and no body.
pub(crate) fn empty(status: u16) -> Reply {
    let mut reply = Response::new(Empty::new().boxed_unsync());
    *reply.status_mut() = status.try_into().expect("the status is valid");
    reply
}

pub(super) fn joined_lines(headers: &HeaderMap, name: &str) -> String {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    lines.join(", ")
}

async fn serve<IO>(stream: IO, handler: Arc<Handler>, log: Arc<ReceivedLog>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
        async move {
            let (parts, body) = request.into_parts();
            let received = Received {
                method: parts.method,
                target: parts.uri.to_string(),
                headers: parts.headers,
                body: body.collect().await?.to_bytes(),
            };
            log.requests.lock().push(received.clone());
            Ok::<_, hyper::Error>(handler(received).await)
        }
    });
    // An error is ignored: in some tests the gateway closes the connection early.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Reads a request head. Returns an error if the gateway closes the connection before the end of the head.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
