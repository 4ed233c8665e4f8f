//! Who is let in to what is not for everybody.
//!
//! A token where one is set. Where none is, only a listener on a loopback address lets anybody in, and then
//! only requests made for a loopback host and by no web page, so that none can have a browser read what is
//! here, or change it. With a token neither is looked at: a page cannot know it.

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};

use crate::config::AdminSettings;

/// Who is let in.
pub(super) struct Auth {
    token: Option<String>,
    loopback: bool,
}

impl Auth {
    pub(super) fn new(settings: &AdminSettings) -> Self {
        Self {
            token: settings.token.clone(),
            loopback: settings.listen.ip().is_loopback(),
        }
    }

    /// Why a request is not let in, if it is not.
    pub(super) fn refusal(&self, headers: &HeaderMap) -> Option<&'static str> {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = &self.token {
            let presented = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
            let right = presented.is_some_and(|presented| same(presented, token));
            return (!right).then_some("Present the admin token: `Authorization: Bearer TOKEN`.");
        }
        if !self.loopback {
            return Some("Set `[admin] token` to use this on an address others can reach.");
        }
        let host = header(HOST).unwrap_or_default();
        if headers.contains_key(ORIGIN) || !is_loopback_host(host) {
            return Some("This is not served to web pages, nor under another name than localhost.");
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

/// Compares without telling by its duration where two secrets differ.
fn same(presented: &str, expected: &str) -> bool {
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
    fn a_loopback_listener_serves_only_requests_made_for_a_loopback_host() {
        let auth = auth(None, true);
        for host in [
            "127.0.0.1:9090",
            "localhost:9090",
            "[::1]:9090",
            "localhost",
            "127.8.8.8",
        ] {
            assert_eq!(auth.refusal(&headers(&[("host", host)])), None, "{host}");
        }
        for host in [
            "rebound.example:9090",
            "10.0.0.1",
            "",
            "localhost.evil.example",
        ] {
            assert!(
                auth.refusal(&headers(&[("host", host)])).is_some(),
                "{host}"
            );
        }
    }

    #[test]
    fn a_web_page_of_another_origin_is_refused() {
        let auth = auth(None, true);
        for origin in [
            "https://evil.example",
            "null",
            "",
            "https://\u{e9}vil.example",
        ] {
            let page = headers(&[("host", "localhost:9090"), ("origin", origin)]);
            assert!(auth.refusal(&page).is_some(), "{origin}");
        }
    }

    #[test]
    fn without_a_token_nothing_is_given_to_the_outside() {
        assert!(
            auth(None, false)
                .refusal(&headers(&[("host", "localhost")]))
                .is_some()
        );
    }

    #[test]
    fn where_a_token_is_set_it_must_be_presented_whole() {
        let auth = auth(Some("secret"), false);
        let with = |value| headers(&[("authorization", value)]);
        assert_eq!(auth.refusal(&with("Bearer secret")), None);
        for wrong in [
            "Bearer secre",
            "Bearer secrets",
            "Bearer ",
            "secret",
            "Basic secret",
        ] {
            assert!(auth.refusal(&with(wrong)).is_some(), "{wrong}");
        }
        assert!(auth.refusal(&headers(&[])).is_some());
    }
}
