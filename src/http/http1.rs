//! HTTP/1 server: parses requests and encodes responses on client connections.
//!
//! Most HTTP/1 parsers are too lenient for a gateway (see [`head`]), and do not tell for every byte whether it belongs to
//! a head, to a body or to neither. With a strict check in front of hyper's parser, two parsers would have to agree on
//! every byte, and would cost more than one.
//!
//! ```text
//! socket → detect ─ HTTP/1 → serve: Connection ─ Reader, Decoder → Request<Http1Body> → service
//!             │                        └──────── WriteBuffer ← Encoder ← Response<B> ←──┘
//!             └── HTTP/2 → Rewind → http2::serve
//! ```
//!
//! A connection serves one request after the other. The bytes of a pipelined request are not parsed before the response
//! to the current one is complete, because after an upgrade request only the response shows whether they are HTTP.

mod body;
mod body_wait;
mod connection;
mod decoder;
mod detect;
mod encoder;
pub(crate) mod head;
mod linger;
mod reader;
mod serve;
pub(crate) mod target;
mod timers;
pub(crate) mod upgrade;
mod violation;
mod write;

pub(crate) use self::body::{Http1Body, TrackDelivery};
pub(crate) use self::body_wait::BodyWait;
pub(crate) use self::detect::{Protocol, Rewind, SocketState, detect};
pub(crate) use self::encoder::FORBIDDEN_TRAILERS;
pub(crate) use self::serve::serve;
pub(crate) use self::timers::date_header;
pub(crate) use self::violation::Violation;
pub(crate) use self::write::FlushBatch;

#[cfg(test)]
mod tests;
