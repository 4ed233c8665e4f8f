//! In-memory servers for tests of the complete request path without sockets.
//!
//! The gateway connects to these servers with HTTP/1.1 over a duplex stream instead of TCP. Only the TCP and TLS code
//! of the gateway is not used.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// Number of bytes that each direction of a connection can buffer.
const CAPACITY: usize = 64 * 1024;

static SERVERS: LazyLock<Mutex<HashMap<String, mpsc::UnboundedSender<DuplexStream>>>> =
    LazyLock::new(Mutex::default);

/// Starts a server that responds with `respond`. Returns its host name, which is unique in the test process.
pub(crate) fn serve<F, Fut>(respond: F) -> String
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let host = format!("server-{}.memory", NUMBER.fetch_add(1, Ordering::Relaxed));
    let (connections, mut accepted) = mpsc::unbounded_channel();
    SERVERS.lock().insert(host.clone(), connections);
    tokio::spawn(async move {
        while let Some(stream) = accepted.recv().await {
            let respond = respond.clone();
            let service = service_fn(move |request| {
                let responding = respond(request);
                async move { Ok::<_, Infallible>(responding.await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    host
}

/// Connects to an in-memory server. Returns `None` if no server has this host name.
pub(crate) fn connect(host: &str) -> Option<DuplexStream> {
    let (client, server) = tokio::io::duplex(CAPACITY);
    SERVERS.lock().get(host)?.send(server).ok()?;
    Some(client)
}
