//! HTTP/1 server codec.
//!
//! A gateway must not be as lenient as most HTTP/1 parsers (see [`head`]), and must know for every byte whether it
//! belongs to a head, to a body or to neither. So this module parses and encodes HTTP/1 itself, with one strict parser
//! and one encoder. The rejected alternative is a strict check in front of hyper's parser: two parsers that must agree
//! on every byte, and that together cost more than one. HTTP/2 is in the module `http2`.
//!
//! ```text
//! socket → detect ─ HTTP/1 → serve: Connection ─ Reader, Decoder → Request<Body> → service
//!             │                        └──────── WriteBuffer ← Encoder ← Response<B> ←──┘
//!             └── HTTP/2 → Rewind → http2::serve
//! ```
//!
//! An exchange ends before the next begins. What a client sends meanwhile waits, up to one read in the gateway and the
//! rest in the kernel. So the bytes after a request for an upgrade are not parsed before it is known whether they are
//! HTTP.

mod body;
mod connection;
mod decoder;
mod detect;
mod encoder;
pub(crate) mod head;
mod linger;
mod reader;
mod serve;
mod timers;
pub(crate) mod upgrade;
mod violation;
mod write;

pub(crate) use self::body::{Body, BodyError, ResponseBody};
pub(crate) use self::detect::{Protocol, Rewind, SocketState, detect};
pub(crate) use self::encoder::FORBIDDEN_TRAILERS;
pub(crate) use self::serve::serve;
pub(crate) use self::timers::date_header;
pub(crate) use self::violation::Violation;
pub(crate) use self::write::FlushBatch;

#[cfg(test)]
mod tests;
