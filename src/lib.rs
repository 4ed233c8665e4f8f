//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! A request passes these stages:
//!
//! ```text
//! accept → identify client → match route → throttle → idempotency → upstream → respond
//! ```
//!
//! A worker of the gateway accepts a connection and serves HTTP on it. For each request it checks the head, identifies
//! the client and matches the route. The throttle stage charges the limits of the route. The idempotency stage executes
//! a request with an idempotency key once. The upstream stage forwards the request to a server. A stage that rejects a
//! request returns a problem, and one function renders all problems as responses.
//!
//! Where to start:
//!
//! - [`embed`] provides limits and idempotency keys as tower layers for an axum application, without the proxy.
//! - [`retry`] provides retries for clients of any API: which failures to retry, the backoff, and when to give up.
//! - [`gateway`] runs the proxy in this process, with a policy that [`config`] reads from a file.
//! - [`throttle`] and [`idempotency`] define the settings of limits and keys, the arithmetic of a quota, and the traits
//!   that stores implement.
//!
//! The other public modules define types that these interfaces use. [`client`] and [`respond`] define settings,
//! [`mod@body`] and [`buffers`] define bodies and bounds on their memory. [`pipeline`] holds the state of a gateway,
//! [`clock`] is its source of time, and [`cli`] is the command line.
//!
//! A module imports only from layers below its own. The test in `src/tests/module_layers.rs` lists and enforces the layers.

// Without the feature `internals`, items that only benches and tests use are not reachable from outside the crate.
// `make lint` checks builds with and without the feature.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]

// Bottom layer: no imports from the crate.
mod access_notes;
pub mod clock;
mod failpoint;
mod log;
mod metrics;
mod net;
mod problem;
mod request_id;

// Client identity, paths, retries, rendering of problems, bounds on memory.
pub mod buffers;
pub mod client;
mod hash_keys;
mod intake;
mod path;
pub mod respond;
pub mod retry;
mod server_settings;

// HTTP codecs for client connections.
mod http1;
mod http2;

// Types that the stages share.
pub mod body;
mod context;
mod route;

// Stages.
pub mod idempotency;
pub mod throttle;
mod upstream;

// Stores, configuration, the chain of stages, the server.
pub mod config;
pub mod gateway;
pub mod pipeline;
mod store;

// Admin endpoints, commands, layers for other applications.
mod admin;
pub mod cli;
pub mod embed;

// Exports for benches and tests.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;

#[cfg(test)]
mod tests;
