//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! A request passes these stages:
//!
//! ```text
//! accept → identify client → match route → throttle → idempotency → upstream → respond
//! ```
//!
//! A worker of [`gateway`] accepts a connection and serves HTTP on it: [`http1`] with a strict parser, or [`mod@http2`].
//! [`pipeline`] is the chain of stages as plain functions: [`intake`] checks the head of a request, [`client`] identifies
//! the client, [`path`] and [`route`] find the route, [`throttle`] charges its limits, [`idempotency`] executes a keyed
//! request once, and [`upstream`] forwards it. [`retry`] has the policies for further attempts; clients can use it, too.
//! A stage rejects a request with a [`problem`], which [`respond`] renders.
//!
//! [`config`] validates a file and compiles it to a policy. [`store`] implements the stores of buckets and records.
//! [`admin`] is the admin API, and [`embed`] provides the stages as tower layers for axum applications.
//!
//! A module imports only from layers below it; `src/tests/layers.rs` lists the layers and enforces them.

// Bottom layer: no imports from the crate
pub mod access_log;
pub mod clock;
pub mod failpoint;
pub mod log;
pub mod metrics;
mod net;
pub mod problem;
pub mod request_id;

// Identity, paths, retries, rendering of responses, bounds
pub mod buffers;
pub mod client;
pub mod hash_keys;
pub mod intake;
pub mod path;
pub mod respond;
pub mod retry;
pub mod settings;

// HTTP towards clients
pub mod http1;
pub mod http2;

// What the stages share
pub mod body;
pub mod context;
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

#[cfg(test)]
mod tests;
