//! Which failures are worth another attempt.

use http::StatusCode;

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// It was answered, with this status.
    Status(StatusCode),
    /// Nobody answered in time.
    TimedOut,
    /// The connection was refused.
    Refused,
    /// There is no such host.
    NotFound,
    /// The connection broke off.
    Disconnected,
}

/// Which failures a caller tries again after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// 408, 429, 5xx, timeouts and lost connections.
    TrafficControl,
    /// 429, 5xx, and whatever befalls the network.
    AuthorizationApi,
    /// 429, 500, 502, 503, 504, and whatever befalls the network.
    Sender,
    /// 408, 429, 5xx, and whatever befalls the network.
    Handbook,
}

impl Table {
    /// Whether another attempt is worth while after `failure`.
    pub fn retries(self, failure: Failure) -> bool {
        let _ = failure;
        false
    }
}
