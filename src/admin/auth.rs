//! Access control for all admin endpoints except the probes `/livez` and `/readyz`.
//!
//! If `[admin] token` is set, a request must contain the token in `Authorization`. `Host` and `Origin` are then not
//! checked, because these checks protect against web pages, and a web page does not know the token.
//!
//! If no token is set, only a listener on a loopback address accepts requests, and a request must have a loopback
//! `Host` and no `Origin`. So a web page cannot use the operator's browser to read or change admin data, either
//! directly or by DNS rebinding.

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};

use crate::config::AdminSettings;
use crate::store::redis::settings::Password;

/// Rules that decide which requests the admin listener accepts.
pub(super) struct Auth {
    token: Option<Password>,
    /// Whether the admin listener is bound to a loopback address.
    loopback: bool,
}

impl Auth {
    pub(super) fn new(settings: &AdminSettings) -> Self {
        Self {
            token: settings.token.clone(),
            loopback: settings.listen.ip().is_loopback(),
        }
    }

    /// Returns the reason to reject a request with these headers, or `None` if the request is allowed.
    pub(super) fn rejection(&self, headers: &HeaderMap) -> Option<&'static str> {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = &self.token {
            let presented = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
            let is_valid =
                presented.is_some_and(|presented| constant_time_eq(presented, token.reveal()));
            return (!is_valid).then_some(
                "The admin token is missing or wrong. Send it as `Authorization: Bearer TOKEN`.",
            );
        }
        if !self.loopback {
            return Some(
                "The admin listener is not on a loopback address, so it requires a token. Set `[admin] token`.",
            );
        }
        let host = header(HOST).unwrap_or_default();
        if headers.contains_key(ORIGIN) || !is_loopback_host(host) {
            return Some(
                "Without `[admin] token`, requests must use a loopback host and have no Origin header.",
            );
        }
        None
    }
}

fn is_loopback_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Compares two secrets. The duration of the comparison does not depend on the position of the first difference, so an
/// attacker cannot guess the secret byte by byte.
fn constant_time_eq(presented: &str, expected: &str) -> bool {
    let (presented, expected) = (presented.as_bytes(), expected.as_bytes());
    let differing = presented
        .iter()
        .zip(expected)
        .fold(0, |bits, (a, b)| bits | (a ^ b));
    differing == 0 && presented.len() == expected.len()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn auth(token: Option<&str>, loopback: bool) -> Auth {
        let address = if loopback { "127.0.0.1:0" } else { "0.0.0.0:0" };
        Auth::new(&AdminSettings {
            listen: address.parse().unwrap(),
            token: token.map(Into::into),
        })
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let lines = lines.iter();
        lines
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_loopback_listener_without_a_token_requires_a_loopback_host() {
        let auth = auth(None, true);
        for host in [
            "127.0.0.1:9090",
            "localhost:9090",
            "[::1]:9090",
            "localhost",
            "127.8.8.8",
        ] {
            assert_eq!(auth.rejection(&headers(&[("host", host)])), None, "{host}");
        }
        for host in [
            "rebound.example:9090",
            "10.0.0.1",
            "",
            "localhost.evil.example",
        ] {
            let reason = auth.rejection(&headers(&[("host", host)]));
            assert!(
                reason.is_some_and(|reason| reason.contains("loopback host")),
                "{host}: {reason:?}"
            );
        }
    }

    #[test]
    fn a_request_with_an_origin_header_is_rejected_without_a_token() {
        let auth = auth(None, true);
        for origin in [
            "https://evil.example",
            "null",
            "",
            "https://\u{e9}vil.example",
        ] {
            let page = headers(&[("host", "localhost:9090"), ("origin", origin)]);
            let reason = auth.rejection(&page);
            assert!(
                reason.is_some_and(|reason| reason.contains("no Origin")),
                "{origin}: {reason:?}"
            );
        }
    }

    #[test]
    fn a_listener_that_is_not_on_loopback_rejects_all_requests_without_a_token() {
        let reason = auth(None, false).rejection(&headers(&[("host", "localhost")]));
        assert!(
            reason.is_some_and(|reason| reason.contains("requires a token")),
            "{reason:?}"
        );
    }

    #[test]
    fn a_configured_token_must_match_exactly() {
        let auth = auth(Some("secret"), false);
        let with = |value| headers(&[("authorization", value)]);
        assert_eq!(auth.rejection(&with("Bearer secret")), None);
        for wrong in [
            "Bearer secre",
            "Bearer secrets",
            "Bearer ",
            "secret",
            "Basic secret",
        ] {
            assert!(auth.rejection(&with(wrong)).is_some(), "{wrong}");
        }
        assert!(auth.rejection(&headers(&[])).is_some());
    }
}
