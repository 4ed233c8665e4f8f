//! HTTP/1, held to the letter of its grammar.
//!
//! A gateway may not be as generous as a web server's parser mostly is (see [`head`]), and has to know
//! of every byte whether it belongs to a head, to a body or to nobody. So HTTP/1 is read and written here,
//! by one reader that is strict and one writer that says what it means. A strict reader before hyper's
//! was the alternative: two that have to agree on every byte, and that together cost more than one. HTTP/2
//! is in the module `http2`.
//!
//! ```text
//! socket → sniff ─ HTTP/1 → serve: Connection ─ Inbound → Request<Body> → service
//!             │                        └──────── Outbound ← Response<B> ←────┘
//!             └── HTTP/2 → Rewound → http2::serve
//! ```
//!
//! An exchange is over before the next begins: what a client sends meanwhile waits, a head's worth in the
//! gateway and the rest in the kernel. So what follows a request for an upgrade is not looked at before it
//! is known whether it is HTTP at all.

mod alarm;
mod body;
pub mod chunked;
mod coming;
mod connection;
pub(crate) mod date;
mod delivery;
mod encode;
mod gather;
pub mod head;
mod inbound;
mod linger;
mod octets;
mod outbound;
mod request;
mod rewound;
mod sending;
mod serve;
mod sniff;
mod socket;
mod turns;
pub mod upgrade;
mod violation;

pub use self::body::{Body, BodyError};
pub use self::delivery::ResponseBody;
pub use self::encode::NEVER_TRAILERS;
pub use self::gather::Gathered;
pub use self::rewound::{Rewound, SocketState};
pub use self::serve::serve;
pub use self::sniff::{Protocol, Unsniffed, sniff};
pub use self::socket::ClientSocket;
pub use self::turns::Turns;
pub use self::violation::Violation;

#[cfg(test)]
mod tests;
