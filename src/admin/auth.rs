//! Access control for all admin endpoints except the probes.
//!
//! A page of another origin cannot use the operator's browser: browsers name the relation in `Sec-Fetch-Site`. With
//! `[admin] token`, `Host` and `Origin` are not checked, because a web page does not know the token. Without it, only a
//! listener on a loopback address accepts requests; they must have a loopback `Host`, which prevents DNS rebinding, and
//! an `Origin` must name the same host, as in requests of the dashboard.

use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::AdminSettings;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Returns the reason to reject a request. A page of another origin can link to the target if `is_linkable`.
pub(super) fn origin_rejection(
    settings: &AdminSettings,
    host: Option<&HeaderValue>,
    headers: &HeaderMap,
    is_linkable: bool,
) -> Option<&'static str> {
    // `none` means that the user entered the address or opened a bookmark.
    let is_allowed_site = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    if !is_linkable && !headers.get_all(SEC_FETCH_SITE).iter().all(is_allowed_site) {
        return Some(
            "A web page of another origin caused this request. Open the address directly in the browser.",
        );
    }
    if settings.token.is_some() {
        return None;
    }
    if !settings.listen.ip().is_loopback() {
        return Some(
            "The admin listener is not on a loopback address, so it requires a token. Set `[admin] token`.",
        );
    }
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_loopback_host(host) {
        return Some("Without `[admin] token`, requests must use a loopback host.");
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    if !origins.all(|origin| is_same_origin(origin, host)) {
        return Some(
            "A web page of another origin caused this request: its Origin header does not name this host.",
        );
    }
    None
}

fn is_same_origin(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.to_str().ok().and_then(|it| it.split_once("://"));
    origin.is_some_and(|(scheme, origin)| {
        matches!(scheme, "http" | "https") && origin.eq_ignore_ascii_case(host)
    })
}

/// Returns the reason to reject a request.
pub(super) fn token_rejection(
    settings: &AdminSettings,
    headers: &HeaderMap,
) -> Option<&'static str> {
    let token = settings.token.as_ref()?;
    let presented = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    // The scheme is not case-sensitive, and one or more spaces follow it (RFC 9110, section 11.4).
    let presented = presented.and_then(|value| value.split_once(' '));
    let is_valid = presented.is_some_and(|(scheme, presented)| {
        scheme.eq_ignore_ascii_case("Bearer")
            && constant_time_eq(presented.trim_start_matches(' '), token.reveal())
    });
    (!is_valid)
        .then_some("The admin token is missing or wrong. Send it as `Authorization: Bearer TOKEN`.")
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

/// The duration does not depend on the position of the first difference, so a secret cannot be guessed byte by byte.
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
    use super::*;

    fn settings(token: Option<&str>, loopback: bool) -> AdminSettings {
        let address = if loopback { "127.0.0.1:0" } else { "0.0.0.0:0" };
        AdminSettings {
            listen: address.parse().unwrap(),
            token: token.map(Into::into),
        }
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let lines = lines.iter();
        lines
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn rejection(
        settings: &AdminSettings,
        host: &str,
        lines: &[(&'static str, &str)],
    ) -> Option<&'static str> {
        origin_rejection(
            settings,
            Some(&host.parse().unwrap()),
            &headers(lines),
            false,
        )
    }

    #[test]
    fn a_request_that_a_page_of_another_origin_caused_is_rejected_with_and_without_a_token() {
        for settings in [settings(None, true), settings(Some("secret"), true)] {
            for site in ["same-origin", "none"] {
                let reason = rejection(&settings, "localhost", &[("sec-fetch-site", site)]);
                assert_eq!(reason, None, "{site}");
            }
            for site in ["cross-site", "same-site", "", "other"] {
                let reason = rejection(&settings, "localhost", &[("sec-fetch-site", site)]);
                assert!(
                    reason.is_some_and(|reason| reason.contains("another origin")),
                    "{site}: {reason:?}"
                );
            }
            let twice = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
            assert!(rejection(&settings, "localhost", &twice).is_some());
        }
    }

    #[test]
    fn a_loopback_listener_without_a_token_requires_a_loopback_host() {
        let settings = settings(None, true);
        for host in [
            "127.0.0.1:9090",
            "localhost:9090",
            "[::1]:9090",
            "localhost",
            "127.8.8.8",
        ] {
            assert_eq!(rejection(&settings, host, &[]), None, "{host}");
        }
        for host in [
            "rebound.example:9090",
            "10.0.0.1",
            "",
            "localhost.evil.example",
        ] {
            let reason = rejection(&settings, host, &[]);
            assert!(
                reason.is_some_and(|reason| reason.contains("loopback host")),
                "{host}: {reason:?}"
            );
        }
    }

    #[test]
    fn a_request_with_the_origin_of_another_host_is_rejected_without_a_token() {
        let settings = settings(None, true);
        for origin in ["http://localhost:9090", "https://LOCALHOST:9090"] {
            let reason = rejection(&settings, "localhost:9090", &[("origin", origin)]);
            assert_eq!(reason, None, "{origin}");
        }
        for origin in [
            "https://evil.example",
            "http://localhost",
            "http://localhost:9091",
            "http://127.0.0.1:9090",
            "file://localhost:9090",
            "localhost:9090",
            "null",
            "",
            "https://\u{e9}vil.example",
        ] {
            let reason = rejection(&settings, "localhost:9090", &[("origin", origin)]);
            assert!(
                reason.is_some_and(|reason| reason.contains("another origin")),
                "{origin}: {reason:?}"
            );
        }
        let twice = ["http://localhost:9090", "https://evil.example"].map(|it| ("origin", it));
        assert!(rejection(&settings, "localhost:9090", &twice).is_some());
    }

    #[test]
    fn a_listener_that_is_not_on_loopback_rejects_all_requests_without_a_token() {
        let reason = rejection(&settings(None, false), "localhost", &[]);
        assert!(
            reason.is_some_and(|reason| reason.contains("requires a token")),
            "{reason:?}"
        );
    }

    #[test]
    fn a_configured_token_must_match_exactly() {
        let settings = settings(Some("secret"), false);
        let with = |value| headers(&[("authorization", value)]);
        for right in ["Bearer secret", "bearer secret", "BEARER  secret"] {
            assert_eq!(token_rejection(&settings, &with(right)), None, "{right}");
        }
        for wrong in [
            "Bearer secre",
            "Bearer secrets",
            "Bearer ",
            "Bearer",
            "Bearersecret",
            "Bearer Secret",
            "secret",
            "Basic secret",
        ] {
            assert!(
                token_rejection(&settings, &with(wrong)).is_some(),
                "{wrong}"
            );
        }
        assert!(token_rejection(&settings, &headers(&[])).is_some());
    }
}
