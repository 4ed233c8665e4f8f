//! HTTP on client connections: the codecs, the sockets below them, and the bounds on open connections.

#[cfg(feature = "gateway")]
pub(crate) mod certificates;
pub(crate) mod connections;
#[cfg(feature = "gateway")]
pub(crate) mod http1;
#[cfg(feature = "gateway")]
pub(crate) mod http2;
#[cfg(feature = "gateway")]
mod incomplete_body;
#[cfg(feature = "gateway")]
pub(crate) mod service;
#[cfg(feature = "gateway")]
pub(crate) mod settings;
#[cfg(feature = "gateway")]
pub(crate) mod socket;

#[cfg(feature = "gateway")]
pub(crate) use incomplete_body::IncompleteBody;
