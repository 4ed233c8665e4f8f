//! Words of a route's `idempotency`: methods, headers and scopes that keys can have.

use std::str::FromStr;

use http::{HeaderName, Method};

use super::{CountedHeader, Fault, HeaderText, MethodName};
use crate::idempotency::rule::ScopePart;

/// A method whose requests can have keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct KeyedMethod(pub(in super::super) Method);

impl FromStr for KeyedMethod {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let MethodName(method) = text.parse()?;
        // What can be sent again without harm needs no key, and a tunnel has no answer to keep.
        if method.is_safe() || method == Method::CONNECT {
            return Err(Fault::new(
                format!("a {method} request cannot be keyed"),
                "remove it: keys of GET, HEAD, OPTIONS, TRACE and CONNECT requests pass through",
            ));
        }
        Ok(Self(method))
    }
}

/// The name of a header a key can come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct KeyHeader(HeaderText);

impl KeyHeader {
    pub(in super::super) fn name(&self) -> HeaderName {
        self.0.name()
    }
}

/// Headers with a meaning of their own, which no client could make up a key for.
const TAKEN: &[&str] = &[
    "accept",
    "accept-encoding",
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "origin",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "referer",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-real-ip",
    "x-request-id",
];

impl FromStr for KeyHeader {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let header: HeaderText = text.parse()?;
        text.parse::<CountedHeader>()?;
        // Servers can read `User_Agent` as `User-Agent`.
        let lower = text.to_ascii_lowercase().replace('_', "-");
        if TAKEN.contains(&lower.as_str()) || lower.starts_with("x-forwarded-") {
            return Err(Fault::new(
                format!("`{text}` has a meaning of its own and cannot hold a key"),
                "write a header that clients send for this alone, such as \"Idempotency-Key\"",
            ));
        }
        Ok(Self(header))
    }
}

/// An entry of `scope`: what separates the key spaces of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum ScopeText {
    /// All callers share one key space.
    Shared,
    /// This property separates them.
    By(ScopePart),
}

impl FromStr for ScopeText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let part = match text.split_once(':') {
            None if text == "shared" => return Ok(Self::Shared),
            None if text == "client" => ScopePart::Client,
            Some(("header", name)) => {
                let CountedHeader(name) = name.parse()?;
                ScopePart::Header(name)
            }
            // The name of a cookie is a token, as that of a header is, but its case matters.
            Some(("cookie", name)) if HeaderName::from_bytes(name.as_bytes()).is_ok() => {
                ScopePart::Cookie(name.into())
            }
            Some(("cookie", name)) => {
                return Err(Fault::new(
                    format!("\"cookie:{name}\" does not name a cookie"),
                    "write \"cookie:NAME\", where NAME consists of letters, digits and any of !#$%&'*+-.^_`|~",
                ));
            }
            _ => {
                return Err(Fault::new(
                    format!("keys cannot be separated by `{text}`"),
                    "write \"client\", \"header:NAME\", \"cookie:NAME\" or a list of these, or \"shared\"",
                ));
            }
        };
        Ok(Self::By(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_changes_nothing_has_no_keys() {
        for text in ["POST", "PATCH", "PUT", "DELETE", "PURGE"] {
            assert!(text.parse::<KeyedMethod>().is_ok(), "{text}");
        }
        for text in ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"] {
            let fault = text.parse::<KeyedMethod>().expect_err(text);
            assert!(fault.help.contains("pass through"), "{text}");
        }
        let fault = "post".parse::<KeyedMethod>().expect_err("lower case");
        assert!(fault.help.contains("\"POST\""));
    }

    #[test]
    fn a_key_comes_in_a_header_of_its_own() {
        for text in ["Idempotency-Key", "X-Request-Token", "idempotency-key"] {
            assert!(text.parse::<KeyHeader>().is_ok(), "{text}");
        }
        for text in [
            "Authorization",
            "HOST",
            "Content-Length",
            "connection",
            "X-Forwarded-For",
            "X_Forwarded_For",
            "X_Request-Id",
            "User_Agent",
            "Idempotency_Key",
            "a b",
        ] {
            assert!(text.parse::<KeyHeader>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_scope_is_made_of_known_things() {
        assert_eq!("shared".parse(), Ok(ScopeText::Shared));
        assert_eq!("client".parse(), Ok(ScopeText::By(ScopePart::Client)));
        let header = HeaderName::from_static("x-api-key");
        assert_eq!(
            "header:X-Api-Key".parse(),
            Ok(ScopeText::By(ScopePart::Header(header)))
        );
        let cookie = ScopePart::Cookie("Sid".into());
        assert_eq!("cookie:Sid".parse(), Ok(ScopeText::By(cookie)));
        for text in [
            "global",
            "header:",
            "header:a b",
            "cookie:",
            "cookie:a;b",
            "cookie:a b",
            "Client",
            "shared:x",
        ] {
            assert!(text.parse::<ScopeText>().is_err(), "{text}");
        }
    }
}
