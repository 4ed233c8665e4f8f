//! The API behind the gateway: records what reaches it, and answers as it is told.

use std::convert::Infallible;
use std::future::Future;
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
type Replying = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Handler = dyn Fn(Received) -> Replying + Send + Sync;

/// An API that listens until dropped.
pub(crate) struct Upstream {
    address: SocketAddr,
    scheme: &'static str,
    seen: Arc<Seen>,
    stop: CancellationToken,
}

/// The status that an upstream answers with, to be changed while it does.
#[derive(Clone)]
pub(crate) struct Mood(Arc<AtomicU16>);

/// A request as it arrived behind the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    /// Path and query, as they were on the wire.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Received>>,
    connections: AtomicUsize,
}

impl Mood {
    pub(crate) fn becomes(&self, status: u16) {
        self.0.store(status, Ordering::SeqCst);
    }

    /// What is answered in this mood.
    pub(crate) fn reply(&self) -> Reply {
        let mut reply = full("ok");
        let status = self.0.load(Ordering::SeqCst);
        *reply.status_mut() = status.try_into().expect("a status");
        reply
    }
}

impl Received {
    /// The lines of a header, joined by a comma and a blank; empty where there is none.
    pub(crate) fn header(&self, name: &str) -> String {
        joined(&self.headers, name)
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
    /// Answers everything with this status and the body `ok`.
    pub(crate) fn replying(status: u16) -> Self {
        Self::with(move |_| async move {
            let mut reply = full("ok");
            *reply.status_mut() = status.try_into().expect("a status");
            reply
        })
    }

    /// Answers everything with the status that is its mood, at first this one, and the body `ok`.
    pub(crate) fn moody(status: u16) -> (Self, Mood) {
        let mood = Mood(Arc::new(AtomicU16::new(status)));
        let its = mood.clone();
        let upstream = Self::with(move |_| std::future::ready(its.reply()));
        (upstream, mood)
    }

    /// Answers with JSON of what it received: `method`, `target`, `headers`, `body`.
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

    /// Takes requests and never answers them.
    pub(crate) fn silent() -> Self {
        Self::with(|_| std::future::pending())
    }

    /// Answers each request with `late, but whole` when a permit is added, and what adds them.
    pub(crate) fn held() -> (Self, Arc<Semaphore>) {
        let permits = Arc::new(Semaphore::new(0));
        let waiting = Arc::clone(&permits);
        let upstream = Self::with(move |_| {
            let waiting = Arc::clone(&waiting);
            async move {
                waiting.acquire().await.expect("never closed").forget();
                full("late, but whole")
            }
        });
        (upstream, permits)
    }

    /// Answers as `handler` says.
    pub(crate) fn with<F, R>(handler: F) -> Self
    where
        F: Fn(Received) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        Self::start(handler, None)
    }

    /// Answers through TLS with JSON of what it received.
    pub(crate) fn echo_through_tls(certificates: &Certificates) -> Self {
        let handler = |received: Received| async move { full(received.as_json()) };
        Self::start(handler, Some(certificates.acceptor()))
    }

    /// Answers every request with these bytes, whatever they are, and keeps the connection open. Requests
    /// are not recorded.
    pub(crate) fn saying(bytes: &'static str) -> Self {
        Self::listening("http", move |socket, seen| async move {
            let listener = TcpListener::from_std(socket).expect("a listener");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                seen.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(say(stream, bytes));
            }
        })
    }

    /// Reads each request's head and resets the connection. Requests are not recorded.
    pub(crate) fn resetting() -> Self {
        Self::listening("http", move |socket, seen| async move {
            let listener = TcpListener::from_std(socket).expect("a listener");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                seen.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(reset(stream));
            }
        })
    }

    /// Responds through TLS with 413 to the head of each request, and closes with the body unread. Requests
    /// are not recorded.
    pub(crate) fn early_through_tls(certificates: &Certificates) -> Self {
        let tls = certificates.acceptor();
        Self::listening("https", move |socket, seen| async move {
            let listener = TcpListener::from_std(socket).expect("a listener");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                seen.connections.fetch_add(1, Ordering::SeqCst);
                // With Nagle's algorithm the response waits for an acknowledgement, and the close discards it.
                stream.set_nodelay(true).expect("a connection");
                let tls = tls.clone();
                tokio::spawn(async move {
                    let mut stream = tls.accept(stream).await?;
                    let mut head = Vec::new();
                    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                        stream.read_buf(&mut head).await?;
                    }
                    let response = b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge";
                    stream.write_all(response).await?;
                    stream.flush().await
                });
            }
        })
    }

    /// The URL of a server that is not there any more.
    pub(crate) fn gone() -> String {
        Self::replying(200).closed()
    }

    /// Stops listening, and says where it did.
    fn closed(self) -> String {
        let url = self.url();
        let address = self.address;
        drop(self);
        while std::net::TcpStream::connect(address).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        url
    }

    fn start<F, R>(handler: F, tls: Option<TlsAcceptor>) -> Self
    where
        F: Fn(Received) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let handler: Arc<Handler> =
            Arc::new(move |received| -> Replying { Box::pin(handler(received)) });
        let scheme = if tls.is_some() { "https" } else { "http" };
        Self::listening(scheme, move |socket, seen| {
            accept(socket, handler, tls, seen)
        })
    }

    fn listening<F, R>(scheme: &'static str, serve: F) -> Self
    where
        F: FnOnce(std::net::TcpListener, Arc<Seen>) -> R + Send + 'static,
        R: Future<Output = ()>,
    {
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        socket
            .set_nonblocking(true)
            .expect("a socket that waits not");
        let upstream = Self {
            address: socket.local_addr().expect("an address"),
            scheme,
            seen: Arc::default(),
            stop: CancellationToken::new(),
        };
        let (seen, stop) = (Arc::clone(&upstream.seen), upstream.stop.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(stop.run_until_cancelled(serve(socket, seen)));
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

    /// All that has arrived, in order.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.seen.requests.lock().clone()
    }

    /// How much has arrived.
    pub(crate) fn count(&self) -> usize {
        self.seen.requests.lock().len()
    }

    /// What arrived last.
    pub(crate) fn last(&self) -> Received {
        self.requests().pop().expect("a request that arrived")
    }

    /// Connections ever accepted.
    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// 200 with a body.
pub(crate) fn full(body: impl Into<Bytes>) -> Reply {
    Response::new(Full::new(body.into()).boxed_unsync())
}

/// This status without a body.
pub(crate) fn empty(status: u16) -> Reply {
    let mut reply = Response::new(Empty::new().boxed_unsync());
    *reply.status_mut() = status.try_into().expect("a status");
    reply
}

pub(super) fn joined(headers: &HeaderMap, name: &str) -> String {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    lines.join(", ")
}

async fn accept(
    socket: std::net::TcpListener,
    handler: Arc<Handler>,
    tls: Option<TlsAcceptor>,
    seen: Arc<Seen>,
) {
    let listener = TcpListener::from_std(socket).expect("a listener");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a connection");
        seen.connections.fetch_add(1, Ordering::SeqCst);
        let (handler, seen, tls) = (Arc::clone(&handler), Arc::clone(&seen), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, handler, seen).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, handler, seen).await;
                    }
                }
            }
        });
    }
}

async fn serve<IO>(stream: IO, handler: Arc<Handler>, seen: Arc<Seen>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, seen) = (Arc::clone(&handler), Arc::clone(&seen));
        async move {
            let (parts, body) = request.into_parts();
            let received = Received {
                method: parts.method,
                target: parts.uri.to_string(),
                headers: parts.headers,
                body: body.collect().await?.to_bytes(),
            };
            seen.requests.lock().push(received.clone());
            Ok::<_, hyper::Error>(handler(received).await)
        }
    });
    // A gateway that breaks off is a test's business, not ours.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Says `bytes` at the end of each head that comes.
async fn say(mut stream: TcpStream, bytes: &'static str) {
    let mut head = Vec::new();
    while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            if stream.write_all(bytes.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Reads a head, and has the connection end with a reset.
async fn reset(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if !stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
            return;
        }
    }
    let lingers = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    lingers.expect("an open socket");
}
