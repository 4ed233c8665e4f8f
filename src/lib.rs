//! A throttling and idempotency gateway: the library behind the `tidegate` command.
//!
//! A request passes these modules, which this file lists in the same order:
//!
//! ```text
//! server → http → pipeline → request → throttle → (scenario) → idempotency → upstream → respond
//! ```
//!
//! A worker of the server accepts a connection and serves HTTP on it. The pipeline passes each request through the
//! stages. `request` checks its head, identifies the client and matches the route. The throttle stage charges the rate
//! limits of the route. The idempotency stage executes a request with an idempotency key once. The upstream stage
//! forwards the request to a server. A stage that rejects a request returns a problem, and one function of `respond`
//! renders all problems as responses.
//!
//! Where to start:
//!
//! - [`embed`] provides rate limits and idempotency keys as tower layers for an axum application, without the proxy. It
//!   needs only the feature `embed`, and `disk` or `redis` for these stores.
//! - [`retry`] provides retries for clients of any API: which failures to retry, the backoff, and when to give up. It
//!   needs no feature.
//! - [`server`] runs the proxy in this process, with a policy that [`config`] reads from a file. It needs the feature
//!   `gateway`, which is enabled by default.
//! - [`throttle`] and [`idempotency`] define the settings of limits and keys, the arithmetic of a quota, and the traits
//!   that stores implement.
//!
//! The other public modules define types that these interfaces use. A module imports only from layers below its own,
//! which a test enforces (`src/tests/module_layers.rs`). From top to bottom:
//!
//! ```text
//! cli, embed                                  commands; tower layers for axum applications
//! admin                                       admin API, metrics for Prometheus
//! lab, server                                 verdicts and reports; accept, workers, drain
//! pipeline                                    the chain of stages, compiled rules, access log
//! config                                      file → validated policy
//! store                                       memory, disk, Redis: implementations of the stages' store traits
//! throttle, scenario, idempotency, upstream   the stages; each owns its errors, settings and store trait
//! request                                     what a request is before any stage
//! http                                        HTTP/1 and HTTP/2 codecs
//! respond, retry                              problems and their rendering; retry policies
//! clock, failpoint, metrics                   no imports from the crate
//! ```

// If the feature `internals` is disabled, items that only benches and tests use are not reachable from outside the
// crate. So the lint is allowed in such builds. `make lint` checks builds with and without the feature.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
// Without the features `gateway` and `lab`, no code uses those items of the shared modules that only they need. `make
// lint` checks the complete crate for unused items.
#![cfg_attr(not(feature = "lab"), allow(dead_code, unused_imports, unused_macros))]
// The links above to modules that a build lacks cannot be resolved. The build with all features checks them.
#![cfg_attr(not(feature = "gateway"), allow(rustdoc::broken_intra_doc_links))]

// Commands, and the configuration that they read.
#[cfg(feature = "gateway")]
pub mod cli;
#[cfg(feature = "gateway")]
pub mod config;

// Listeners and workers.
#[cfg(feature = "gateway")]
pub mod server;

// Codecs.
#[cfg(feature = "embed")]
mod http;

// The chain: the entry of a request, then the stages in this order, then the response.
#[cfg(feature = "gateway")]
pub mod pipeline;
#[cfg(feature = "embed")]
pub mod request;

#[cfg(feature = "embed")]
pub mod throttle;

#[cfg(feature = "gateway")]
mod scenario;

#[cfg(feature = "embed")]
pub mod idempotency;

#[cfg(feature = "gateway")]
mod upstream;

#[cfg(feature = "embed")]
pub mod respond;

// Buckets and records in memory, on disk and in Redis.
#[cfg(feature = "embed")]
mod store;

// What operators and authors of clients see.
#[cfg(feature = "embed")]
mod admin;
#[cfg(feature = "lab")]
mod lab;

// For other programs.
#[cfg(feature = "embed")]
pub mod embed;
pub mod retry;

// The lowest layer.
#[cfg(feature = "embed")]
pub mod clock;
#[cfg(feature = "embed")]
mod failpoint;
#[cfg(feature = "embed")]
mod metrics;

// For benches and tests.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
#[cfg(test)]
mod tests;

// The examples in the documentation of the library are compiled and run as doctests.
#[cfg(all(doctest, feature = "gateway"))]
#[doc = include_str!("../docs/library.md")]
struct LibraryExamples;
