//! Which failures are worth another attempt.
//!
//! Callers disagree, and each has its reasons, so there is a table for each: one takes a 408 for a client
//! that was slow and will be again, another takes it for a timeout like any other. What all of them agree
//! on: an answer that says "your request is wrong" is final, because sending it again changes nothing.
//!
//! A table says nothing about whether a request *may* be sent twice. That depends on its method and on what
//! became of it, and the caller has to know.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use http::StatusCode;

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// It was answered, with this status.
    Status(StatusCode),
    /// Nobody answered in time.
    TimedOut,
    /// The connection was refused, or there is no way to where it leads.
    Refused,
    /// There is no such host.
    NotFound,
    /// The connection broke off.
    Disconnected,
}

/// Which failures a caller tries again after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// 408, 429, 5xx, timeouts, and connections that were lost or refused; a host that does not exist is a
    /// mistake in what was asked for.
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
    /// What an error of a socket or a lookup amounts to; `None` where it is not about the network.
    pub fn of_io(error: &io::Error) -> Option<Self> {
        use io::ErrorKind as Kind;

        match error.kind() {
            // A blocking socket with a timeout says `WouldBlock`.
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
            // A lookup that failed has no kind that could be named here, only these words.
            _ if error.to_string().starts_with("failed to lookup address") => Some(Self::NotFound),
            _ => error.get_ref().and_then(|inner| Self::of_error(inner)),
        }
    }

    /// The first error of the network in `error` or below it.
    ///
    /// HTTP clients wrap what the socket said in errors of their own; this looks for it.
    pub fn of_error(error: &(dyn Error + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |&error| error.source())
            .filter_map(|error| error.downcast_ref())
            .find_map(Self::of_io)
    }

    /// Whether the caller was told that it calls too often.
    pub fn is_rate_limit(self) -> bool {
        self == Self::Status(StatusCode::TOO_MANY_REQUESTS)
    }

    /// The status it was answered with, if it was answered.
    pub fn status(self) -> Option<StatusCode> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }

    /// What kind of error it is, for logs: `RateLimitError`, `HttpError`, `TimeoutError` or `NetworkError`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status(_) if self.is_rate_limit() => "RateLimitError",
            Self::Status(_) => "HttpError",
            Self::TimedOut => "TimeoutError",
            Self::Refused | Self::NotFound | Self::Disconnected => "NetworkError",
        }
    }

    /// Its code, for logs and for programs: `ERR_HTTP_429`, `ETIMEDOUT`, `ECONNREFUSED`, `ENOTFOUND`,
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
            Self::TimedOut => f.write_str("nobody answered in time"),
            Self::Refused => f.write_str("the connection was refused"),
            Self::NotFound => f.write_str("there is no such host"),
            Self::Disconnected => f.write_str("the connection broke off"),
        }
    }
}

impl Error for Failure {}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs as _;

    use super::*;

    const TABLES: [Table; 4] = [
        Table::TrafficControl,
        Table::AuthorizationApi,
        Table::Sender,
        Table::Handbook,
    ];

    const NETWORK: [Failure; 4] = [
        Failure::TimedOut,
        Failure::Refused,
        Failure::NotFound,
        Failure::Disconnected,
    ];

    /// Every status from 100 to 999 after which `table` has another attempt.
    fn retried(table: Table) -> Vec<u16> {
        let every = (100..1_000).map(|code| StatusCode::from_u16(code).unwrap());
        every
            .filter(|status| table.retries(Failure::Status(*status)))
            .map(|status| status.as_u16())
            .collect()
    }

    #[test]
    fn each_table_retries_the_statuses_its_document_names_and_no_others() {
        let with_all_of_5xx = |others: &[u16]| [others, &(500..600).collect::<Vec<_>>()].concat();
        assert_eq!(retried(Table::TrafficControl), with_all_of_5xx(&[408, 429]));
        assert_eq!(retried(Table::Handbook), with_all_of_5xx(&[408, 429]));
        assert_eq!(retried(Table::AuthorizationApi), with_all_of_5xx(&[429]));
        assert_eq!(retried(Table::Sender), [429, 500, 502, 503, 504]);
    }

    #[test]
    fn every_table_retries_a_network_that_fails_and_only_traffic_control_gives_up_on_a_missing_host()
     {
        for table in TABLES {
            for failure in NETWORK {
                let expected = (table, failure) != (Table::TrafficControl, Failure::NotFound);
                assert_eq!(table.retries(failure), expected, "{table:?}, {failure}");
            }
        }
    }

    #[test]
    fn errors_of_sockets_are_told_apart() {
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

    /// The standard library gives such an error no kind; should its words ever change, this fails.
    #[test]
    fn a_name_that_cannot_be_looked_up_is_a_host_not_found() {
        // Longer than a label may be, so nobody on the network is asked.
        let name = "a".repeat(64);
        let error = (name.as_str(), 80).to_socket_addrs().unwrap_err();
        assert_eq!(Failure::of_io(&error), Some(Failure::NotFound), "{error}");
    }

    #[test]
    fn an_error_of_the_network_is_found_below_others() {
        #[derive(Debug, thiserror::Error)]
        #[error("the client failed")]
        struct Client(#[source] io::Error);

        let error = Client(io::ErrorKind::ConnectionReset.into());
        assert_eq!(Failure::of_error(&error), Some(Failure::Disconnected));
        let error = Client(io::Error::other(Client(io::ErrorKind::TimedOut.into())));
        assert_eq!(Failure::of_error(&error), Some(Failure::TimedOut));
        let error = Client(io::Error::other(io::Error::from(io::ErrorKind::TimedOut)));
        assert_eq!(Failure::of_error(&error), Some(Failure::TimedOut));
        assert_eq!(Failure::of_error(&fmt::Error), None);
    }

    #[test]
    fn a_failure_has_a_name_a_code_and_words() {
        let told = |failure: Failure| {
            let (name, code) = (failure.name(), failure.code());
            format!("{name} {code}: {failure}")
        };
        let status = |code| Failure::from(StatusCode::from_u16(code).unwrap());
        assert_eq!(
            told(status(429)),
            "RateLimitError ERR_HTTP_429: 429 Too Many Requests"
        );
        assert_eq!(told(status(502)), "HttpError ERR_HTTP_502: 502 Bad Gateway");
        assert_eq!(told(status(599)), "HttpError ERR_HTTP_599: status 599");
        assert_eq!(
            told(Failure::TimedOut),
            "TimeoutError ETIMEDOUT: nobody answered in time"
        );
        assert_eq!(
            told(Failure::NotFound),
            "NetworkError ENOTFOUND: there is no such host"
        );
    }
}
