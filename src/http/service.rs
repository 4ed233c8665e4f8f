//! What a server passes to its service, and what it gets back.

use http::{Request, Response};

use super::http1::Violation;

/// What a client sent as a request.
#[derive(Debug)]
pub(crate) enum Received<B> {
    Request(Request<B>),
    /// A request that violates HTTP, a size limit or a timeout. `head` is `None` if the head is not valid.
    Invalid {
        violation: Violation,
        head: Option<Box<Request<()>>>,
    },
}

/// How a server ends an exchange.
#[derive(Debug)]
pub(crate) enum Reply<B> {
    Response(Response<B>),
    Abort(Abort),
}

/// How a server ends an exchange without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Resets the TCP connection of HTTP/1, or the stream of HTTP/2.
    Reset,
    /// Resets the HTTP/2 stream with `REFUSED_STREAM`. On HTTP/1, this is [`Reset`](Self::Reset).
    RefuseStream,
    /// Resets the HTTP/2 stream with `HTTP_1_1_REQUIRED`. On HTTP/1, this is [`Reset`](Self::Reset).
    RequireHttp1,
    /// Ends the HTTP/2 connection with GOAWAY. On HTTP/1, this is [`Reset`](Self::Reset).
    GoAway,
}
