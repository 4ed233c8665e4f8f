//! What a server passes to its service, and what it gets back.

use http::{Request, Response};

use super::http1::Violation;

#[derive(Debug)]
pub(crate) enum Received<B> {
    Request(Request<B>),
    /// A violation of HTTP, of a size limit or of a timeout. `head` is `None` if the head is not valid.
    Invalid {
        violation: Violation,
        head: Option<Box<Request<()>>>,
    },
}

#[derive(Debug)]
pub(crate) enum Reply<B> {
    Response(Response<B>),
    Abort(Abort),
}

/// Without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Resets the HTTP/2 stream. On HTTP/1, all variants reset the TCP connection.
    Reset,
    /// Resets the HTTP/2 stream with `REFUSED_STREAM`.
    RefuseStream,
    /// Resets the HTTP/2 stream with `HTTP_1_1_REQUIRED`.
    RequireHttp1,
    /// Ends the HTTP/2 connection with GOAWAY.
    GoAway,
}
