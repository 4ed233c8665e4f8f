//! Upstream stage: sends a request to a server of its upstream and returns the response.
//!
//! ```text
//! balance → breaker → attempt → response
//!    ▲                   │
//!    └── backoff ◄── budget
//! ```
//!
//! `balance` chooses a server whose circuit breaker admits requests. `attempt` sends the request to that server, and
//! `attempts` decides whether another attempt follows. A request is sent again if provably no byte of it was sent.
//! Otherwise a further attempt is a retry: retries must be configured, the request must be safe to repeat, and the
//! retry budget must allow it. All workers share the `state` of the servers.
//!
//! Bodies stream in both directions. The gateway reads no faster than the other side accepts the bytes.
//!
//! Connections use HTTP/1.1 and are kept alive in one pool per worker and server. The pooled client of hyper-util is
//! not used, because it resends a request on its own when a connection fails. The gateway has to decide whether a
//! request may be sent twice.

mod attempt;
mod attempts;
mod balance;
pub(crate) mod body;
pub(crate) mod breaker;
pub(crate) mod budget;
pub(crate) mod concurrency;
pub(crate) mod connect;
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
    RetrySettings,
};
pub(crate) use shared_state::UpstreamState;
pub(crate) use target::Target;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;

/// Index of an upstream in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UpstreamId(pub usize);

/// One `[upstream.NAME]` of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// Index of the upstream in the policy.
    pub id: UpstreamId,
    /// The `NAME` of the section, also used in logs and metrics.
    pub name: Arc<str>,
    /// The servers that share the load. Never empty.
    pub servers: Vec<Server>,
    /// The `Host` header sent to the servers.
    pub host: HostHeader,
    /// Timeouts of each phase of an exchange.
    pub timeouts: Timeouts,
    /// Retry settings. `None` disables retries; failover of an unsent request remains possible.
    pub retry: Option<RetrySettings>,
    /// Circuit breaker settings of each server.
    pub breaker: BreakerSettings,
    /// Settings of active health checks. `None` disables them.
    pub health: Option<HealthSettings>,
    /// Time in which the weight of a recovered server rises to its full value.
    pub slow_start: Duration,
    /// Bounds of the adaptive concurrency limit. `None` disables the limit.
    pub concurrency: Option<ConcurrencySettings>,
    /// PEM file of the root certificates that replace those of the system.
    pub ca_file: Option<PathBuf>,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Whether connections to the server use TLS.
    pub tls: bool,
    /// Host and port. The port can be absent if it is the default of the scheme.
    pub authority: Authority,
    /// Weight of the server in load balancing, relative to the other servers.
    pub weight: NonZeroU32,
}

/// The `Host` header sent to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The host that the client sent.
    Preserve,
    /// The authority of the server.
    Server,
    /// A configured value.
    Literal(HeaderValue),
}

/// Timeouts of each phase of an exchange with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// `connect_timeout`: from the start of a connection attempt to an established connection, including TLS.
    pub connect: Duration,
    /// `first_byte_timeout`: from the last byte of the request to the head of the response.
    pub first_byte: Duration,
    /// `idle_timeout`: between two parts of a body.
    pub idle: Duration,
    /// `timeout`: the complete exchange, including all attempts. `None` means no bound.
    pub total: Option<Duration>,
}

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
