//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! The life of a request, and the module that lives each part of it:
//!
//! ```text
//! accept → identify client → match route → throttle → idempotency → upstream → respond
//! ```
//!
//! A worker of [`gateway`] accepts a connection and speaks HTTP on it: HTTP/1 by [`wire`], which accepts only
//! what the grammar permits, and HTTP/2 by [`mod@http2`]. [`pipeline`] takes each request through the
//! stages: [`intake`] says whether it can be taken for what it seems, [`client`] who is calling, [`path`]
//! and [`route`] which rule it falls under, [`throttle`] whether it may pass now, [`idempotency`] whether it
//! was carried out before, and [`upstream`] carries it to the API behind, past servers that fail; what comes
//! after a failure is worked out by [`retry`], which is a library of its own. Whatever the gateway has to say
//! for itself, a refusal above all, is said by [`respond`].
//!
//! [`config`] turns the file a person writes into the policy all of these run on, [`store`] keeps buckets
//! and records, [`admin`] tells an operator how things stand, [`clock`] is the only source of time, and [`buffers`] bounds
//! the memory that held bodies take.

// What the gateway runs on
pub mod buffers;
pub mod clock;
pub mod config;

// The life of a request, in order: received,
pub mod gateway;
pub mod http2;
pub mod wire;

// taken through its stages,
pub mod access_log;
pub mod pipeline;

// looked at,
pub mod intake;
pub mod request_id;

pub mod client;
pub mod path;
pub mod route;

// admitted and carried on,
pub mod throttle;

pub mod idempotency;

pub mod retry;
pub mod upstream;

// and answered
pub mod respond;

// What stands beside it
pub mod admin;
pub mod cli;
pub mod log;
pub mod store;

// For other applications, and for tests
pub mod embed;
pub mod failpoint;
mod net;
