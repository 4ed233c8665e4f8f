//! Two servers that end a connection at a given point and otherwise send the same response to every request.
//!
//! The servers record each request that they receive. A request is recorded if the server reads at least one byte of
//! it, even if the server then discards the byte. Each server identifies a request by peeking, before it reads a byte.

use std::io::Read as _;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::support::raw_http::UpstreamConnection;

/// Point at which a server ends a connection, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) point: LossPoint,
    pub(super) kind: LossKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossPoint {
    /// The server ends the connection immediately after it has accepted the connection.
    Accepted,
    /// The server ends the connection after it has read this many bytes of the request.
    Request(usize),
    /// The server ends the connection after it has sent this many bytes of the response.
    Response(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossKind {
    Close,
    Reset,
    /// The server leaves the connection open, but sends nothing more.
    Stall,
}

/// Kind of connection on which the gateway sends a request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// The request is the first one on its connection.
    Fresh,
    /// The connection has carried another request before.
    Reused,
}

impl Loss {
    /// Whether the server reads no byte of the request. Only a reset before the first byte has this effect: otherwise
    /// the server reads the rest of the request and discards it.
    fn leaves_request_unread(self) -> bool {
        self.point == LossPoint::Request(0) && self.kind == LossKind::Reset
    }
}

impl ConnectionKind {
    /// Returns the head of the response to every request. On a fresh connection it has `Connection: close`.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Fresh => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n",
            Self::Reused => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
        }
    }

    pub(super) fn response(self) -> String {
        format!("{}done", self.head())
    }

    /// Whether this loss truncates the body of a response. The gateway can already have forwarded the head in this
    /// case, so the client can get an incomplete response.
    pub(super) fn has_begun_response(self, loss: Loss) -> bool {
        let body = self.head().len()..self.response().len();
        matches!(loss.point, LossPoint::Response(sent) if body.contains(&sent))
    }
}

/// State that the two servers share.
pub(super) struct ServerPair {
    pub(super) connection_kind: ConnectionKind,
    /// The server that gets the next connection or request ends the connection in this way. `None` means that the
    /// server responds normally.
    pub(super) loss: Mutex<Option<Loss>>,
    pub(super) arrivals: Mutex<Vec<Arrival>>,
    /// Number of idle connections of each server. They have carried a request and wait for another one.
    pub(super) waiting: [AtomicUsize; 2],
    /// When each server last sent a response. The gateway sends a POST only on a connection that was idle for less than
    /// a second.
    pub(super) last_used: [Mutex<Option<Instant>>; 2],
    /// Requests of which the server that ended their connection read nothing.
    pub(super) unread: Mutex<Vec<ReceivedRequest>>,
    /// Length in bytes of the last request that a server has read completely.
    pub(super) request_len: AtomicUsize,
}

/// Identity of a request, taken from its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedRequest {
    /// A request that only turns a fresh connection into a reused one.
    WarmUp,
    /// A request that a test checks, `/case/N` with this number.
    Case(usize),
}

/// Request of which a server has read at least one byte.
pub(super) struct Arrival {
    pub(super) request: ReceivedRequest,
    /// Whether the connection of this request has carried another request before.
    pub(super) reused: bool,
}

impl ServerPair {
    /// Creates the state of two servers that have no connection yet.
    pub(super) fn new(connection_kind: ConnectionKind) -> Self {
        Self {
            connection_kind,
            loss: Mutex::default(),
            arrivals: Mutex::default(),
            waiting: Default::default(),
            last_used: [const { Mutex::new(None) }; 2],
            unread: Mutex::default(),
            request_len: AtomicUsize::new(0),
        }
    }

    /// Serves one connection of the server with this index, 0 or 1.
    pub(super) fn serve(&self, server: usize, connection: &mut UpstreamConnection) {
        if let Some(loss) = self.take_if(|loss| loss.point == LossPoint::Accepted) {
            if half_close(connection, loss.kind)
                && let Some(request) = peek_request(connection)
            {
                // The gateway sent the request although the server had already closed its side. The server reads the
                // request, so it is recorded.
                self.record_arrival(request, false);
                connection.read_to_close();
            }
            return;
        }
        let mut reused = false;
        while let Some(request) = peek_request(connection) {
            if reused {
                self.waiting[server].fetch_sub(1, Ordering::SeqCst);
            }
            let loss = self.take_if(|_| true);
            if loss.is_some_and(Loss::leaves_request_unread) {
                self.unread.lock().push(request);
            } else {
                self.record_arrival(request, reused);
            }
            if let Some(loss) = loss {
                self.perform(loss, connection);
                return;
            }
            if self.read(connection).is_none() {
                return;
            }
            reused = true;
            self.waiting[server].fetch_add(1, Ordering::SeqCst);
            *self.last_used[server].lock() = Some(Instant::now());
            connection.send(self.connection_kind.response());
            if self.connection_kind == ConnectionKind::Fresh {
                self.waiting[server].fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
        if reused {
            self.waiting[server].fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn record_arrival(&self, request: ReceivedRequest, reused: bool) {
        self.arrivals.lock().push(Arrival { request, reused });
    }

    fn take_if(&self, wanted: impl FnOnce(&Loss) -> bool) -> Option<Loss> {
        self.loss.lock().take_if(|loss| wanted(loss))
    }

    /// Reads a complete request and stores its length. Returns `None` if the gateway closed the connection instead.
    fn read(&self, connection: &mut UpstreamConnection) -> Option<()> {
        let request = connection.request()?;
        let len = request.head.len() + request.body.len();
        self.request_len.store(len, Ordering::SeqCst);
        Some(())
    }

    fn perform(&self, loss: Loss, connection: &mut UpstreamConnection) {
        match loss.point {
            LossPoint::Accepted => {}
            LossPoint::Request(bytes) => {
                let mut read = vec![0; bytes];
                let result = connection.stream.read_exact(&mut read);
                result.expect("the request is complete");
            }
            LossPoint::Response(bytes) => {
                self.read(connection);
                connection.send(&self.connection_kind.response()[..bytes]);
            }
        }
        if half_close(connection, loss.kind) {
            connection.read_to_close();
        }
    }
}

/// Waits for the start of a request and identifies the request without reading a byte. Returns `None` if the gateway
/// closed the connection instead.
fn peek_request(connection: &UpstreamConnection) -> Option<ReceivedRequest> {
    let mut line = [0; 64];
    let peeked = connection.stream.peek(&mut line).ok();
    let line = &line[..peeked.filter(|&bytes| bytes > 0)?];
    let line = std::str::from_utf8(line).expect("the request line is UTF-8");
    let target = line
        .split(' ')
        .nth(1)
        .expect("the request line arrives in one piece");
    Some(match target.strip_prefix("/case/") {
        Some(case) => ReceivedRequest::Case(case.parse().expect("the value is a number")),
        None => ReceivedRequest::WarmUp,
    })
}

/// Ends the sending side of a connection in the way that `kind` states. Returns false for a reset and true otherwise.
/// If the result is true, the caller must read until the gateway closes the connection. If the caller closed the socket
/// with unread bytes instead, the kernel would send RST.
fn half_close(connection: &UpstreamConnection, kind: LossKind) -> bool {
    match kind {
        LossKind::Reset => connection.reset_on_close(),
        LossKind::Stall => {}
        LossKind::Close => {
            // A shutdown error is ignored: it means that the gateway has already closed the connection.
            let _ = connection.stream.shutdown(Shutdown::Write);
        }
    }
    kind != LossKind::Reset
}
