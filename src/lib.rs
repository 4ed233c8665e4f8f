//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! The life of a request, and the module that lives each part of it:
//!
//! ```text
//! accept → identify client → match route → throttle → idempotency → upstream → respond
//! ```
//!
//! A worker of [`gateway`] accepts a connection and speaks HTTP on it: HTTP/1 by [`http1`], which accepts only
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

// Bottom layer: no imports from the crate
pub mod access_log;
pub mod clock;
pub mod failpoint;
pub mod log;
pub mod metrics;
mod net;
pub mod problem;
pub mod request_id;

// Identity, paths, retries, bounds
pub mod buffers;
pub mod client;
pub mod hash_keys;
pub mod path;
pub mod retry;
pub mod settings;

// HTTP towards clients
pub mod http1;
pub mod http2;

// What the stages share
pub mod body;
pub mod context;
pub mod intake;
pub mod respond;
pub mod route;

// The stages
pub mod idempotency;
pub mod throttle;
pub mod upstream;

// Stores, configuration, the chain of stages, the server
pub mod config;
pub mod gateway;
pub mod pipeline;
pub mod store;

// Operators, commands, other applications
pub mod admin;
pub mod cli;
pub mod embed;
