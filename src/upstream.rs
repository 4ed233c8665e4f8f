//! Upstream stage: sends a request to a server of its upstream and returns the response.
//!
//! ```text
//! balance → breaker → attempt → response
//!    ▲                   │
//!    └── backoff ◄── budget
//! ```
//!
//! `balance` chooses a server whose circuit breaker admits requests, `attempt` sends the request to it, and `attempts`
//! decides whether another attempt follows. All workers share the circuit breakers and counters of the servers. Bodies
//! stream in both directions, each no faster than its reader.
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

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upstream {
    pub name: Arc<str>,
    /// Never empty.
    pub servers: Vec<Server>,
    pub host: HostHeader,
    pub timeouts: Timeouts,
    /// `None`: a request that was not sent still fails over to another server.
    pub retry: Option<RetrySettings>,
    pub breaker: BreakerSettings,
    pub health: Option<HealthSettings>,
    /// Idle time of a pooled connection. Zero: connections are not pooled.
    pub keep_alive: Duration,
    /// How long the weight of a recovered server takes to rise to its configured value.
    pub slow_start: Duration,
    pub concurrency: Option<ConcurrencySettings>,
    /// Replace the CA certificates of the system (`ca_file`).
    pub ca: Option<CaCertificates>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub tls: bool,
    /// The default port is 443 if `tls` is true, and 80 otherwise.
    pub authority: Authority,
    pub weight: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    Preserve,
    Server,
    Literal(HeaderValue),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Includes the TLS handshake.
    pub connect: Duration,
    /// From the last byte of the request to the head of the response.
    pub first_byte: Duration,
    /// Between two parts of a request or response body.
    pub idle: Duration,
    /// From the start of the first attempt to the end of the response.
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
