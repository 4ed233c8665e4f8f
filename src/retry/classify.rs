//! Classification of failed attempts: which failures are retried.
//!
//! Existing clients differ, so there is one [`RetryTable`] for each. For example, one client retries 408 like any
//! timeout; another does not, because a client that sent its request too slowly will probably do so again. A table does
//! not decide whether it is safe to send a request twice. The caller must.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use http::StatusCode;

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The server responded with this status.
    Status(StatusCode),
    /// The attempt exceeded a timeout.
    TimedOut,
    /// The connection was refused, or the host or network is unreachable.
    Refused,
    /// The host name cannot be resolved.
    NotFound,
    /// The connection was lost after it had been established.
    Disconnected,
}

/// Table of the failures that a client retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTable {
    /// 408, 429, 5xx, timeouts, and lost or refused connections. Not an unknown host, because the name is probably
    /// wrong.
    TrafficControl,
    /// 429 and 5xx, and all network failures.
    AuthorizationApi,
    /// 429, 500, 502, 503 and 504, and all network failures.
    Sender,
    /// 408, 429 and 5xx, and all network failures.
    Handbook,
}

impl RetryTable {
    /// Whether a request that failed with `failure` is retried.
    pub fn retries(self, failure: Failure) -> bool {
        match failure {
            Failure::Status(status) => self.retries_status(status),
            Failure::TimedOut | Failure::Refused | Failure::Disconnected => true,
            Failure::NotFound => self != Self::TrafficControl,
        }
    }

    fn retries_status(self, status: StatusCode) -> bool {
        match self {
            Self::TrafficControl | Self::Handbook => {
                matches!(status.as_u16(), 408 | 429 | 500..=599)
            }
            Self::AuthorizationApi => matches!(status.as_u16(), 429 | 500..=599),
            Self::Sender => matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504),
        }
    }
}

impl Failure {
    /// Classifies an error of a socket or of the name resolution. Other errors are not retried.
    pub fn of_io(error: &io::Error) -> Option<Self> {
        use io::ErrorKind as Kind;

        match error.kind() {
            // A blocking socket reports `WouldBlock` when its timeout expires.
            Kind::TimedOut | Kind::WouldBlock => Some(Self::TimedOut),
            Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable => {
                Some(Self::Refused)
            }
            Kind::NotFound => Some(Self::NotFound),
            Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::UnexpectedEof
            | Kind::NetworkDown => Some(Self::Disconnected),
            // The standard library has no stable error kind for a failed name resolution.
            _ if error.to_string().starts_with("failed to lookup address") => Some(Self::NotFound),
            _ => error.get_ref().and_then(|inner| Self::of_error(inner)),
        }
    }

    /// Returns the first network failure in `error` and its sources, because HTTP clients wrap the errors of sockets.
    pub fn of_error(error: &(dyn Error + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |&error| error.source())
            .filter_map(|error| error.downcast_ref())
            .find_map(Self::of_io)
    }

    /// Whether the failure is a response with status 429.
    pub fn is_rate_limit(self) -> bool {
        self == Self::Status(StatusCode::TOO_MANY_REQUESTS)
    }

    /// Returns the status of the response, if there was one.
    pub fn status(self) -> Option<StatusCode> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Returns the error name for logs: `RateLimitError`, `HttpError`, `TimeoutError` or `NetworkError`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status(_) if self.is_rate_limit() => "RateLimitError",
            Self::Status(_) => "HttpError",
            Self::TimedOut => "TimeoutError",
            Self::Refused | Self::NotFound | Self::Disconnected => "NetworkError",
        }
    }

    /// Returns the error code for logs and programs: `ERR_HTTP_429`, `ETIMEDOUT`, `ECONNREFUSED`, `ENOTFOUND`,
    /// `ECONNRESET`.
    pub fn code(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Status(status) => {
                return Cow::Owned(format!("ERR_HTTP_{}", status.as_u16()));
            }
            Self::TimedOut => "ETIMEDOUT",
            Self::Refused => "ECONNREFUSED",
            Self::NotFound => "ENOTFOUND",
            Self::Disconnected => "ECONNRESET",
        })
    }
}

impl From<StatusCode> for Failure {
    fn from(status: StatusCode) -> Self {
        Self::Status(status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => match status.canonical_reason() {
                Some(reason) => write!(f, "{} {reason}", status.as_str()),
                None => write!(f, "status {}", status.as_str()),
            },
            Self::TimedOut => f.write_str("timed out"),
            Self::Refused => f.write_str("connection refused"),
            Self::NotFound => f.write_str("host not found"),
            Self::Disconnected => f.write_str("connection lost"),
        }
    }
}

impl Error for Failure {}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs as _;

    use super::*;

    const TABLES: [RetryTable; 4] = [
        RetryTable::TrafficControl,
        RetryTable::AuthorizationApi,
        RetryTable::Sender,
        RetryTable::Handbook,
    ];

    const NETWORK: [Failure; 4] = [
        Failure::TimedOut,
        Failure::Refused,
        Failure::NotFound,
        Failure::Disconnected,
    ];

    /// Returns every status from 100 to 999 that `table` retries.
    fn retried(table: RetryTable) -> Vec<u16> {
        let every = (100..1_000).map(|code| StatusCode::from_u16(code).unwrap());
        every
            .filter(|status| table.retries(Failure::Status(*status)))
            .map(|status| status.as_u16())
            .collect()
    }

    #[test]
    fn each_table_retries_exactly_the_statuses_of_its_document() {
        let with_all_of_5xx = |others: &[u16]| [others, &(500..600).collect::<Vec<_>>()].concat();
        assert_eq!(
            retried(RetryTable::TrafficControl),
            with_all_of_5xx(&[408, 429])
        );
        assert_eq!(retried(RetryTable::Handbook), with_all_of_5xx(&[408, 429]));
        assert_eq!(
            retried(RetryTable::AuthorizationApi),
            with_all_of_5xx(&[429])
        );
        assert_eq!(retried(RetryTable::Sender), [429, 500, 502, 503, 504]);
    }

    #[test]
    fn all_tables_retry_network_failures_except_traffic_control_with_an_unknown_host() {
        for table in TABLES {
            for failure in NETWORK {
                let expected = (table, failure) != (RetryTable::TrafficControl, Failure::NotFound);
                assert_eq!(table.retries(failure), expected, "{table:?}, {failure}");
            }
        }
    }

    #[test]
    fn io_errors_map_to_failures_by_kind() {
        use io::ErrorKind as Kind;

        let cases = [
            (Kind::ConnectionRefused, Some("ECONNREFUSED")),
            (Kind::HostUnreachable, Some("ECONNREFUSED")),
            (Kind::TimedOut, Some("ETIMEDOUT")),
            (Kind::WouldBlock, Some("ETIMEDOUT")),
            (Kind::NotFound, Some("ENOTFOUND")),
            (Kind::ConnectionReset, Some("ECONNRESET")),
            (Kind::BrokenPipe, Some("ECONNRESET")),
            (Kind::UnexpectedEof, Some("ECONNRESET")),
            (Kind::InvalidData, None),
            (Kind::PermissionDenied, None),
            (Kind::Other, None),
        ];
        for (kind, code) in cases {
            let failure = Failure::of_io(&kind.into());
            assert_eq!(failure.map(Failure::code).as_deref(), code, "{kind:?}");
        }
    }

    /// [`Failure::of_io`] recognises this error by its text. This test fails if the standard library changes the text.
    #[test]
    fn an_unresolvable_name_is_host_not_found() {
        // The resolver rejects this name without a DNS query, because a label has at most 63 bytes.
        let name = "a".repeat(64);
        let error = (name.as_str(), 80).to_socket_addrs().unwrap_err();
        assert_eq!(Failure::of_io(&error), Some(Failure::NotFound), "{error}");
    }

    #[test]
    fn a_network_failure_is_found_in_the_sources_of_an_error() {
        #[derive(Debug, thiserror::Error)]
        #[error("wrapped")]
        struct WrappedError(#[source] io::Error);

        let error = WrappedError(io::ErrorKind::ConnectionReset.into());
        assert_eq!(Failure::of_error(&error), Some(Failure::Disconnected));
        let error = WrappedError(io::Error::other(WrappedError(
            io::ErrorKind::TimedOut.into(),
        )));
        assert_eq!(Failure::of_error(&error), Some(Failure::TimedOut));
        let error = WrappedError(io::Error::other(io::Error::from(io::ErrorKind::TimedOut)));
        assert_eq!(Failure::of_error(&error), Some(Failure::TimedOut));
        assert_eq!(Failure::of_error(&fmt::Error), None);
    }

    #[test]
    fn a_failure_has_a_name_a_code_and_a_message() {
        let text = |failure: Failure| {
            let (name, code) = (failure.name(), failure.code());
            format!("{name} {code}: {failure}")
        };
        let status = |code| Failure::from(StatusCode::from_u16(code).unwrap());
        assert_eq!(
            text(status(429)),
            "RateLimitError ERR_HTTP_429: 429 Too Many Requests"
        );
        assert_eq!(text(status(502)), "HttpError ERR_HTTP_502: 502 Bad Gateway");
        assert_eq!(text(status(599)), "HttpError ERR_HTTP_599: status 599");
        assert_eq!(text(Failure::TimedOut), "TimeoutError ETIMEDOUT: timed out");
        assert_eq!(
            text(Failure::NotFound),
            "NetworkError ENOTFOUND: host not found"
        );
    }
}
