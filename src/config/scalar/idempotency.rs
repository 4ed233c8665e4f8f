//! Values of `[route.idempotency]`.

use http::{HeaderName, Method};

use super::ValueError;
use super::http_message::{counted_header, method};
use crate::idempotency::rule::ScopePart;

pub(super) fn keyed_method(text: &str) -> Result<Method, ValueError> {
    let method = method(text)?;
    // Repeating a safe request has no effect. A tunnel has no response to store.
    if method.is_safe() || method == Method::CONNECT {
        return Err(ValueError::new(
            format!("{method} requests cannot have idempotency keys"),
            "remove this method: GET, HEAD, OPTIONS, TRACE and CONNECT requests pass through without a check of \
             the key",
        ));
    }
    Ok(method)
}

/// They have another meaning.
const RESERVED: &[&str] = &[
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

pub(super) fn key_header(text: &str) -> Result<HeaderName, ValueError> {
    let header = counted_header(text)?;
    // Some servers read `User_Agent` as `User-Agent`.
    let lower = text.to_ascii_lowercase().replace('_', "-");
    if RESERVED.contains(&lower.as_str()) || lower.starts_with("x-forwarded-") {
        return Err(ValueError::new(
            format!(
                "the header `{text}` has another meaning, so it cannot contain an idempotency key"
            ),
            "write a header that clients use only for the idempotency key, such as \"Idempotency-Key\"",
        ));
    }
    Ok(header)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum ScopeEntry {
    /// All callers share their keys.
    Shared,
    By(ScopePart),
}

pub(super) fn scope(text: &str) -> Result<ScopeEntry, ValueError> {
    let part = match text.split_once(':') {
        None if text == "shared" => return Ok(ScopeEntry::Shared),
        None if text == "client" => ScopePart::Client,
        Some(("header", name)) => ScopePart::Header(counted_header(name)?),
        // A cookie name has the same syntax as a header name, but is case-sensitive.
        Some(("cookie", name)) if HeaderName::from_bytes(name.as_bytes()).is_ok() => {
            ScopePart::Cookie(name.into())
        }
        Some(("cookie", name)) => {
            return Err(ValueError::new(
                format!("`{name}` is not a valid cookie name"),
                "write \"cookie:NAME\", where NAME consists of letters, digits and any of !#$%&'*+-.^_`|~",
            ));
        }
        _ => {
            return Err(ValueError::new(
                format!("`{text}` is not a valid scope"),
                "write \"client\", \"header:NAME\", \"cookie:NAME\" or a list of these, or \"shared\"",
            ));
        }
    };
    Ok(ScopeEntry::By(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_methods_and_connect_cannot_have_keys() {
        for text in ["POST", "PATCH", "PUT", "DELETE", "PURGE"] {
            assert!(keyed_method(text).is_ok(), "{text}");
        }
        for text in ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"] {
            let error = keyed_method(text).expect_err(text);
            assert!(error.help.contains("pass through"), "{text}");
        }
        let error = keyed_method("post").expect_err("lower case");
        assert!(error.help.contains("\"POST\""));
    }

    #[test]
    fn reserved_headers_cannot_contain_a_key() {
        for text in ["Idempotency-Key", "X-Request-Token", "idempotency-key"] {
            assert!(key_header(text).is_ok(), "{text}");
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
            assert!(key_header(text).is_err(), "{text}");
        }
    }

    #[test]
    fn scopes_are_parsed() {
        assert_eq!(scope("shared"), Ok(ScopeEntry::Shared));
        assert_eq!(scope("client"), Ok(ScopeEntry::By(ScopePart::Client)));
        let header = HeaderName::from_static("x-api-key");
        assert_eq!(
            scope("header:X-Api-Key"),
            Ok(ScopeEntry::By(ScopePart::Header(header)))
        );
        let cookie = ScopePart::Cookie("Sid".into());
        assert_eq!(scope("cookie:Sid"), Ok(ScopeEntry::By(cookie)));
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
            assert!(scope(text).is_err(), "{text}");
        }
    }
}
