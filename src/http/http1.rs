//! HTTP/1 server: parses requests and encodes responses on client connections.
//!
//! Most HTTP/1 parsers are too lenient for a gateway (see [`head`]). A gateway must also know for every byte whether
//! the byte belongs to a head, to a body or to neither. So this module has its own strict parser and encoder. The
//! alternative is a strict check in front of hyper's parser. Then two parsers would have to agree on every byte, and
//! would cost more than one. HTTP/2 is in the module `http2`.
//!
//! ```text
//! socket → detect ─ HTTP/1 → serve: Connection ─ Reader, Decoder → Request<Http1Body> → service
//!             │                        └──────── WriteBuffer ← Encoder ← Response<B> ←──┘
//!             └── HTTP/2 → Rewind → http2::serve
//! ```
//!
//! A connection serves one request after the other. If a client sends the next request before the response to the
//! current one is complete, the bytes of the next request are not parsed yet. The gateway buffers the bytes that it has
//! already read, and the kernel buffers the rest. So the bytes after an upgrade request are not parsed before the
//! response shows whether they are HTTP.

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
