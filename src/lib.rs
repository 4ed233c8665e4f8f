//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! A request passes these stages:
//!
//! ```text
//! accept → identify client → match route → throttle → idempotency → upstream → respond
//! ```
//!
//! A worker of the gateway accepts a connection and serves HTTP on it. The head of a request is checked, its client
//! identified and its route matched. The throttle charges the limits of the route, idempotency executes a keyed request
//! once, and upstream receives it. A stage that rejects a request returns a problem, which is rendered in one place.
//!
//! Where to start:
//!
//! - [`embed`]: limits and idempotency keys as tower layers for an axum application, without the proxy.
//! - [`retry`]: retries for clients of any API: which failures to retry, how long to wait, when to give up.
//! - [`gateway`]: runs the proxy in this process, from a policy that [`config`] reads from a file.
//! - [`throttle`] and [`idempotency`]: the settings of limits and keys, the arithmetic of a quota, and the traits of the
//!   stores.
//!
//! The other public modules contain what these need: [`client`] and [`respond`] have settings, [`mod@body`] and [`buffers`]
//! are about bodies, [`pipeline`] has the state of a gateway, [`clock`] its time, and [`cli`] is the command.
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
