//! Decides from the head of a response whether the response is stored or the key is released.
//!
//! Final responses are stored, including server errors, because the request may have had an effect. A status that means
//! "not executed" releases the key.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use super::rule::{KeyRule, OnServerError};

const STREAMS: [&str; 5] = [
    "text/event-stream",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "multipart/x-mixed-replace",
];

pub(super) fn means_not_executed(rule: &KeyRule, status: StatusCode, headers: &HeaderMap) -> bool {
    let named = match &rule.release_on {
        Some(named) => named.contains(&status),
        None => match status.as_u16() {
            // A server checks authorisation before it executes a request, and the retry can have a new token.
            401 | 403 | 425 | 429 => true,
            408 | 503 => headers.contains_key(RETRY_AFTER),
            _ => false,
        },
    };
    let server_error = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
    named || (server_error && rule.on_server_error == OnServerError::Release)
}

pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let media_type = media_type(value.as_bytes());
    STREAMS
        .iter()
        .any(|stream| stream.as_bytes().eq_ignore_ascii_case(media_type))
}

/// Without parameters.
pub(super) fn media_type(value: &[u8]) -> &[u8] {
    let mut parts = value.split(|&byte| byte == b';');
    parts.next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn head(lines: &[(http::HeaderName, &'static str)]) -> HeaderMap {
        let lines = lines.iter();
        lines
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect()
    }

    fn releases(rule: &KeyRule, status: u16, lines: &[(http::HeaderName, &'static str)]) -> bool {
        let status = StatusCode::from_u16(status).unwrap();
        means_not_executed(rule, status, &head(lines))
    }

    #[test]
    fn final_responses_including_server_errors_are_stored() {
        for status in [
            200, 201, 204, 302, 400, 404, 409, 422, 500, 502, 503, 504, 408,
        ] {
            assert!(!releases(&KeyRule::default(), status, &[]), "{status}");
        }
    }

    #[test]
    fn responses_that_mean_not_executed_release_the_key() {
        let rule = KeyRule::default();
        for status in [401, 403, 425, 429] {
            assert!(releases(&rule, status, &[]), "{status}");
        }
        for status in [408, 503] {
            assert!(releases(&rule, status, &[(RETRY_AFTER, "3")]), "{status}");
        }
        assert!(!releases(&rule, 500, &[(RETRY_AFTER, "3")]));
    }

    #[test]
    fn release_on_replaces_the_default_list() {
        let rule = KeyRule {
            release_on: Some(vec![StatusCode::CONFLICT]),
            ..KeyRule::default()
        };
        assert!(releases(&rule, 409, &[]));
        for status in [401, 403, 429] {
            assert!(!releases(&rule, status, &[]), "{status}");
        }
        assert!(!releases(&rule, 503, &[(RETRY_AFTER, "3")]));
    }

    #[test]
    fn on_server_error_release_releases_the_key() {
        let rule = KeyRule {
            on_server_error: OnServerError::Release,
            ..KeyRule::default()
        };
        for status in [500, 502, 503, 504, 408] {
            assert!(releases(&rule, status, &[]), "{status}");
        }
        assert!(!releases(&rule, 400, &[]));
    }

    #[test]
    fn a_stream_is_recognised_by_its_media_type() {
        for kind in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/x-ndjson",
            "multipart/x-mixed-replace;boundary=x",
        ] {
            assert!(is_stream(&head(&[(CONTENT_TYPE, kind)])), "{kind:?}");
        }
        assert!(!is_stream(&head(&[(CONTENT_TYPE, "text/plain")])));
    }
}
