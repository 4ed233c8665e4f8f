//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! A request passes these stages:
//!
//! ```text
//! accept → identify client → match route → throttle → (scenario) → idempotency → upstream → respond
//! ```
//!
//! A worker of the gateway accepts a connection and serves HTTP on it. For each request, the worker checks the head,
//! identifies the client and matches the route. The throttle stage charges the rate limits of the route. The
//! idempotency stage executes a request with an idempotency key once. The upstream stage forwards the request to a
//! server. A stage that rejects a request returns a problem, and one function renders all problems as responses.
//!
//! Where to start:
//!
//! - [`embed`] provides rate limits and idempotency keys as tower layers for an axum application, without the proxy.
//! - [`retry`] provides retries for clients of any API: which failures to retry, the backoff, and when to give up.
//! - [`gateway`] runs the proxy in this process, with a policy that [`config`] reads from a file.
//! - [`throttle`] and [`idempotency`] define the settings of limits and keys, the arithmetic of a quota, and the traits
//!   that stores implement.
//!
//! The other public modules define types that these interfaces use. [`client`] and [`respond`] define settings.
//! [`mod@body`] and [`buffers`] define bodies and bounds on their memory. [`pipeline`] contains the state of a gateway,
//! [`clock`] is its source of time, and [`cli`] is the command line.
//!
//! A module imports only from layers below its own. The test in `src/tests/module_layers.rs` lists and enforces the
//! layers.

// If the feature `internals` is disabled, items that only benches and tests use are not reachable from outside the
// crate. So the lint is allowed in such builds. `make lint` checks builds with and without the feature.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]

// The bottom layer imports nothing from the crate.
mod access_notes;
pub mod clock;
mod failpoint;
mod log;
mod metrics;
mod net;
mod problem;
mod request_id;

// The next layers contain client identity, paths, retries, the rendering of problems, and bounds on memory.
pub mod buffers;
pub mod client;
mod hash_keys;
mod intake;
mod path;
pub mod respond;
pub mod retry;
mod server_settings;

// These modules parse and write HTTP on client connections.
mod http1;
mod http2;

// These modules define types that the stages share.
pub mod body;
mod context;
mod route;

// Each of these modules is a stage.
pub mod idempotency;
mod scenario;
pub mod throttle;
mod upstream;

// These modules contain the stores, the configuration, the chain of stages, and the gateway's listeners and workers.
pub mod config;
pub mod gateway;
pub mod pipeline;
mod store;

// This module judges how clients retry.
mod lab;

// These modules contain the admin endpoints, the commands, and the layers for other applications.
mod admin;
pub mod cli;
pub mod embed;

// This module exports internals to benches and tests.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;

#[cfg(test)]
mod tests;
