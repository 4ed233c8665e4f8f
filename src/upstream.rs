//! Upstream stage: sends a request to a server of its upstream and returns the response.
//!
//! ```text
//! balance → breaker → attempt → response
//!    ▲                   │
//!    └── backoff ◄── budget
//! ```
//!
//! `balance` chooses a server whose circuit breaker admits requests. `attempt` sends the request to that server, and
//! `attempts` decides whether another attempt follows. If provably no byte of the request was sent, another server gets
//! the request. In all other cases, another attempt is a retry. A retry has three conditions: retries are configured,
//! the request is safe to repeat, and the retry budget allows the retry. All workers share the circuit breakers and
//! counters of the servers.
//!
//! Bodies stream in both directions. The gateway reads from the client no faster than the server accepts the bytes, and
//! vice versa.
//!
//! Connections use HTTP/1.1 and are kept alive in one pool per worker and server. The pooled client of hyper-util is
//! not used, because it resends a request on its own when a connection fails. The gateway itself must decide whether to
//! send a request twice.

pub(crate) mod addresses;
mod attempt;
mod attempts;
mod balance;
pub(crate) mod body;
pub(crate) mod breaker;
pub(crate) mod budget;
pub(crate) mod concurrency;
pub(crate) mod connect;
mod connection_auth;
mod error;
pub(crate) mod forward;
mod happy_eyeballs;
pub(crate) mod headers;
pub(crate) mod health;
pub(crate) mod pool;
pub(crate) mod relay;
mod replay_body;
mod request;
mod response;
pub(crate) mod settings;
pub(crate) mod shared_state;
pub(crate) mod sliding_window;
mod socket;
mod target;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod timeouts;
pub(crate) mod tunnel;

pub(crate) use forward::Forwarder;
use relay::RelayedBody;
pub(crate) use settings::{
    BreakerSettings, BudgetSettings, ConcurrencySettings, FailureStatuses, HealthSettings, OpensOn,
    RetrySettings, TunnelSettings,
};
pub(crate) use shared_state::UpstreamState;
pub(crate) use target::{RouteTarget, Target};

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;

use crate::http::certificates::CaCertificates;

/// Settings of one `[upstream.NAME]` section of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upstream {
    /// The `NAME` of the configuration section. Logs and metrics contain this name.
    pub name: Arc<str>,
    /// The servers that share the load. The list is never empty.
    pub servers: Vec<Server>,
    /// Which `Host` header the gateway sends to the servers.
    pub host: HostHeader,
    /// Timeouts of the phases of a request: connect, response head, body, and total.
    pub timeouts: Timeouts,
    /// Retry settings. `None` disables retries, but a request that was not sent still fails over to another server.
    pub retry: Option<RetrySettings>,
    /// Settings of the circuit breakers. Each server has its own circuit breaker.
    pub breaker: BreakerSettings,
    /// Settings of active health checks. `None` disables health checks.
    pub health: Option<HealthSettings>,
    /// How long a pooled connection may stay idle. Zero: connections are not pooled.
    pub keep_alive: Duration,
    /// How long the load balancing weight of a recovered server takes to rise to its configured value.
    pub slow_start: Duration,
    /// Minimum, maximum and initial value of the adaptive concurrency limit. `None` disables the limit.
    pub concurrency: Option<ConcurrencySettings>,
    /// CA certificates that replace those of the system (`ca_file`).
    pub ca: Option<CaCertificates>,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Whether connections to the server use TLS.
    pub tls: bool,
    /// Host of the server, with an optional port. The default port is 443 if `tls` is true, and 80 otherwise.
    pub authority: Authority,
    /// Share of the requests that the server receives, relative to the weights of the other servers.
    pub weight: NonZeroU32,
}

/// Source of the `Host` header that the gateway sends to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The host in the request of the client.
    Preserve,
    /// The host and port of the server, as configured.
    Server,
    /// A fixed value from the configuration.
    Literal(HeaderValue),
}

/// Timeouts of the phases of a request to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// `connect_timeout`: maximum time to establish a connection, including the TLS handshake.
    pub connect: Duration,
    /// `first_byte_timeout`: maximum time from the last byte of the request to the head of the response.
    pub first_byte: Duration,
    /// `idle_timeout`: maximum time between two parts of a request or response body.
    pub idle: Duration,
    /// `timeout`: maximum time from the start of the first attempt to the end of the response. `None` means no maximum.
    pub total: Option<Duration>,
}

#[cfg(test)]
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_mins(1),
            idle: Duration::from_mins(1),
            total: None,
        }
    }
}
