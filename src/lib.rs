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

// An item of `internals` is public only with that feature. `make lint` checks builds with and without it.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]

// Bottom layer: no imports from the crate
mod access_log;
pub mod clock;
mod failpoint;
mod log;
mod metrics;
mod net;
mod problem;
mod request_id;

// Identity, paths, retries, rendering of responses, bounds
pub mod buffers;
pub mod client;
mod hash_keys;
mod intake;
mod path;
pub mod respond;
pub mod retry;
mod settings;

// HTTP towards clients
mod http1;
mod http2;

// What the stages share
pub mod body;
mod context;
mod route;

// The stages
pub mod idempotency;
pub mod throttle;
mod upstream;

// Stores, configuration, the chain of stages, the server
pub mod config;
pub mod gateway;
pub mod pipeline;
mod store;

// Operators, commands, other applications
mod admin;
pub mod cli;
pub mod embed;

// Benches and tests
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;

#[cfg(test)]
mod tests;
