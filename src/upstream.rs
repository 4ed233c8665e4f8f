//! Attempts a request to the API behind, and its answer back.
//!
//! Bodies stream both ways and are never gathered here: what the other side does not take is not read.
//! Connections are plain HTTP/1.1 ones, kept alive and pooled per worker. hyper-util's pooled client is
//! left aside on purpose: it sends a request again on its own when a connection fails under it, and
//! whether a request may be sent twice is for the gateway to say.
//!
//! ```text
//! balance → breaker → attempt → answer
//!    ▲                   │
//!    └── backoff ◄── budget
//! ```
//!
//! `balance` chooses a server that its [`breaker`] does not leave alone, an `attempt` sends the request
//! there, and `carry` says what comes next. A request is sent again only if provably not one byte of it was
//! taken, or if the configuration has retries, the request is safe to repeat, and the [`budget`] has room.
//! What is learnt of servers is shared by all workers and kept in their [`state`].

mod attempt;
mod attempts;
mod balance;
pub(crate) mod body;
pub(crate) mod breaker;
pub(crate) mod budget;
pub(crate) mod concurrency;
pub(crate) mod connect;
mod dial;
mod error;
pub(crate) mod forward;
pub(crate) mod headers;
pub(crate) mod health;
pub(crate) mod pool;
pub(crate) mod relay;
mod replay;
mod request;
mod response;
pub(crate) mod settings;
pub(crate) mod sliding_window;
mod socket;
pub(crate) mod state;
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
pub(crate) use state::UpstreamState;
pub(crate) use target::Target;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;

/// An upstream's place in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UpstreamId(pub usize);

/// One `[upstream.NAME]` of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// Its place in the policy.
    pub id: UpstreamId,
    /// The name a person gave it; also its name in metrics.
    pub name: Arc<str>,
    /// The servers that share its load; never empty.
    pub servers: Vec<Server>,
    /// The `Host` sent to them.
    pub host: HostHeader,
    /// How long each part of an exchange may take.
    pub timeouts: Timeouts,
    /// When a request is sent once more; `None` for never, unless it was provably not sent.
    pub retry: Option<RetrySettings>,
    /// What opens the circuit of a server, and for how long.
    pub breaker: BreakerSettings,
    /// How its servers are asked whether they are well, if they are.
    pub health: Option<HealthSettings>,
    /// How long a server that came back takes to get its full share.
    pub slow_start: Duration,
    /// How many requests it is sent at once, where that is bounded.
    pub concurrency: Option<ConcurrencySettings>,
    /// Certificates to trust instead of the system's, PEM.
    pub ca_file: Option<PathBuf>,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Whether it is spoken to through TLS.
    pub tls: bool,
    /// Its host, and its port where it is not the scheme's.
    pub authority: Authority,
    /// Its share of the load, beside those of the others.
    pub weight: NonZeroU32,
}

/// The `Host` sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The client's.
    Preserve,
    /// The server's own.
    Server,
    /// A fixed one.
    Literal(HeaderValue),
}

/// How long each part of an exchange with an upstream may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Until the connection stands, TLS included.
    pub connect: Duration,
    /// From the request's last byte to the response's head.
    pub first_byte: Duration,
    /// Between two parts of a body.
    pub idle: Duration,
    /// For the whole exchange; `None` for no bound.
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
