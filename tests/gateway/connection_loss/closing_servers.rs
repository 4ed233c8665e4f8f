//! Two servers that end a connection at a given point and otherwise send the same response to every request.
//!
//! They count the requests that reach them. A request counts as soon as one byte of it is read, even if it is
//! discarded. The servers identify the request before that, by peeking.

use std::io::Read as _;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::raw_http::UpstreamConnection;

/// Point at which a connection ends, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) point: LossPoint,
    pub(super) kind: LossKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossPoint {
    /// When the connection is accepted.
    Accepted,
    /// When this many bytes of the request were read.
    Request(usize),
    /// When this many bytes of the response were sent.
    Response(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossKind {
    Close,
    Reset,
    /// The connection stays open, and the server sends nothing more.
    Stall,
}

/// Kind of connection that a request is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// A new connection.
    Fresh,
    /// A connection that has carried a request before.
    Reused,
}

impl Loss {
    /// Whether the server reads no byte of the request, not even to discard it.
    fn leaves_request_unread(self) -> bool {
        self.point == LossPoint::Request(0) && self.kind == LossKind::Reset
    }
}

impl ConnectionKind {
    /// Head of the response to every request.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Fresh => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n",
            Self::Reused => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
        }
    }

    pub(super) fn response(self) -> String {
        format!("{}done", self.head())
    }

    /// Whether the response has begun at this loss. Its head may already be on the way to the client and cannot be
    /// withdrawn.
    pub(super) fn has_begun_response(self, loss: Loss) -> bool {
        let body = self.head().len()..self.response().len();
        matches!(loss.point, LossPoint::Response(sent) if body.contains(&sent))
    }
}

/// State that the two servers share.
pub(super) struct ServerPair {
    pub(super) connection_kind: ConnectionKind,
    /// Loss that the next connection or request meets, on whichever server it arrives.
    pub(super) loss: Mutex<Option<Loss>>,
    pub(super) arrivals: Mutex<Vec<Arrival>>,
    /// Number of connections of each server that wait for another request.
    pub(super) waiting: [AtomicUsize; 2],
    /// Length in bytes of the last request that was read completely.
    pub(super) request_len: AtomicUsize,
}

/// Identity of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedRequest {
    /// A request that only makes its connection a reused one.
    WarmUp,
    /// The test request with this number.
    Case(usize),
}

/// Request of which at least one byte was read.
pub(super) struct Arrival {
    pub(super) request: ReceivedRequest,
    /// Whether its connection has carried a request before.
    pub(super) reused: bool,
}

impl ServerPair {
    /// Creates the state before the first connection.
    pub(super) fn new(connection_kind: ConnectionKind) -> Self {
        Self {
            connection_kind,
            loss: Mutex::default(),
            arrivals: Mutex::default(),
            waiting: Default::default(),
            request_len: AtomicUsize::new(0),
        }
    }

    /// Serves one connection of a server.
    pub(super) fn serve(&self, server: usize, connection: &mut UpstreamConnection) {
        if let Some(loss) = self.take_if(|loss| loss.point == LossPoint::Accepted) {
            if half_close(connection, loss.kind)
                && let Some(request) = peek_request(connection)
            {
                // The gateway sent the request anyway, and this server reads it.
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
            if !loss.is_some_and(Loss::leaves_request_unread) {
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

    /// Reads a complete request.
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
                result.expect("a complete request");
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

/// Waits for the start of a request without reading any of it.
fn peek_request(connection: &UpstreamConnection) -> Option<ReceivedRequest> {
    let mut line = [0; 64];
    let peeked = connection.stream.peek(&mut line).ok();
    let line = &line[..peeked.filter(|&bytes| bytes > 0)?];
    let line = std::str::from_utf8(line).expect("a request line");
    let target = line.split(' ').nth(1).expect("the head comes in one piece");
    Some(match target.strip_prefix("/case/") {
        Some(case) => ReceivedRequest::Case(case.parse().expect("a number")),
        None => ReceivedRequest::WarmUp,
    })
}

/// Ends the sending side of a connection. Returns whether to continue reading: a close with unread bytes would be a
/// reset.
fn half_close(connection: &UpstreamConnection, kind: LossKind) -> bool {
    match kind {
        LossKind::Reset => connection.reset_on_close(),
        LossKind::Stall => {}
        LossKind::Close => {
            // The gateway may have closed first.
            let _ = connection.stream.shutdown(Shutdown::Write);
        }
    }
    kind != LossKind::Reset
}
