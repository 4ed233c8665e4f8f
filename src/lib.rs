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
//! - [`embed`] provides rate limits and idempotency keys as tower layers for an axum application, without the proxy. It
//!   needs only the feature `embed`, and `disk` or `redis` for these stores.
//! - [`retry`] provides retries for clients of any API: which failures to retry, the backoff, and when to give up. It
//!   needs no feature.
//! - [`gateway`] runs the proxy in this process, with a policy that [`config`] reads from a file. It needs the feature
//!   `gateway`, which is enabled by default.
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
// Without the feature `gateway`, no code uses those items of the shared modules that only the gateway needs. `make lint`
// checks the complete crate for unused items.
#![cfg_attr(
    not(feature = "gateway"),
    allow(dead_code, unused_imports, unused_macros)
)]
// The links above to modules that a build lacks cannot be resolved. The build with all features checks them.
#![cfg_attr(not(feature = "gateway"), allow(rustdoc::broken_intra_doc_links))]

// The bottom layer imports nothing from the crate.
#[cfg(feature = "embed")]
pub mod clock;
#[cfg(feature = "embed")]
mod failpoint;
#[cfg(feature = "gateway")]
mod log;
#[cfg(feature = "embed")]
mod metrics;

// The next layers contain client identity, paths, retries, the rendering of problems, and bounds on memory.
#[cfg(feature = "embed")]
pub mod respond;
pub mod retry;

// These modules parse and write HTTP on client connections.
#[cfg(feature = "embed")]
mod http;
#[cfg(feature = "embed")]
pub mod request;

// These modules define types that the stages share.

// Each of these modules is a stage.
#[cfg(feature = "embed")]
pub mod idempotency;
#[cfg(feature = "gateway")]
mod scenario;
#[cfg(feature = "embed")]
pub mod throttle;
#[cfg(feature = "gateway")]
mod upstream;

// These modules contain the stores, the metrics of the stages, the configuration, the chain of stages, and the
// gateway's listeners and workers.
#[cfg(feature = "gateway")]
pub mod config;
#[cfg(feature = "gateway")]
pub mod gateway;
#[cfg(feature = "gateway")]
pub mod pipeline;
#[cfg(feature = "embed")]
mod stage_metrics;
#[cfg(feature = "embed")]
mod store;

// This module judges how clients retry.
#[cfg(feature = "gateway")]
mod lab;

// These modules contain the admin endpoints, the commands, and the layers for other applications.
#[cfg(feature = "gateway")]
mod admin;
#[cfg(feature = "gateway")]
pub mod cli;
#[cfg(feature = "embed")]
pub mod embed;

// This module exports internals to benches and tests.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;

#[cfg(test)]
mod tests;
