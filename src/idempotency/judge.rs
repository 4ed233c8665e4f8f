//! What an answer means for its key.
//!
//! Any final answer is kept, a server error too: the request was carried out as far as it ever will be.
//! Some answers say "not done" and are let go, so that the client can try again under the same key. And
//! where there is no answer, it matters whether anybody can have got the request.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use super::rule::{OnServerError, OnUnknown, Rule};

/// What an answer means for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It is the answer, and is kept.
    Keep,
    /// It is the answer, and cannot be kept because it has no end that could be waited for.
    Stream,
    /// It says "not done": the key is free again.
    Release,
    /// Nobody can say whether it was done.
    Unknown,
}

/// Media types of answers that go on for as long as somebody listens.
const STREAMS: [&str; 5] = [
    "text/event-stream",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "multipart/x-mixed-replace",
];

/// Returns what a response with this head means for its key under `rule`.
pub fn judge(rule: &Rule, status: StatusCode, headers: &HeaderMap) -> Course {
    if says_not_done(rule, status, headers) {
        Course::Release
    } else if is_stream(headers) {
        Course::Stream
    } else {
        Course::Keep
    }
}

/// What it means under `rule` that somebody may have got a request and no answer came.
pub fn lost(rule: &Rule) -> Course {
    match rule.terms.on_unknown {
        OnUnknown::Hold => Course::Unknown,
        OnUnknown::Release => Course::Release,
    }
}

/// Whether a response with this head means that the request was not executed.
fn says_not_done(rule: &Rule, status: StatusCode, headers: &HeaderMap) -> bool {
    let named = match &rule.release_on {
        Some(named) => named.contains(&status),
        None => match status.as_u16() {
            // 401 and 403: authorisation precedes execution. A retry can have a new token or permission.
            401 | 403 | 425 | 429 => true,
            408 | 503 => headers.contains_key(RETRY_AFTER),
            _ => false,
        },
    };
    let server_error = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
    named || (server_error && rule.on_server_error == OnServerError::Release)
}

/// Whether the media type of a response is one of [`STREAMS`].
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let media_type = media_type(value.as_bytes());
    STREAMS
        .iter()
        .any(|stream| stream.as_bytes().eq_ignore_ascii_case(media_type))
}

/// Returns the media type in a value of `Content-Type`, without its parameters.
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

    fn course(rule: &Rule, status: u16, lines: &[(http::HeaderName, &'static str)]) -> Course {
        let status = StatusCode::from_u16(status).unwrap();
        judge(rule, status, &head(lines))
    }

    #[test]
    fn final_responses_are_stored_also_server_errors() {
        for status in [
            200, 201, 204, 302, 400, 404, 409, 422, 500, 502, 503, 504, 408,
        ] {
            assert_eq!(
                course(&Rule::default(), status, &[]),
                Course::Keep,
                "{status}"
            );
        }
    }

    #[test]
    fn responses_that_mean_not_executed_release_the_key() {
        let rule = Rule::default();
        for status in [401, 403, 425, 429] {
            assert_eq!(course(&rule, status, &[]), Course::Release, "{status}");
        }
        for status in [408, 503] {
            let later = [(RETRY_AFTER, "3")];
            assert_eq!(course(&rule, status, &later), Course::Release, "{status}");
        }
        assert_eq!(course(&rule, 500, &[(RETRY_AFTER, "3")]), Course::Keep);
    }

    #[test]
    fn release_on_replaces_the_default_list() {
        let rule = Rule {
            release_on: Some(vec![StatusCode::CONFLICT]),
            ..Rule::default()
        };
        assert_eq!(course(&rule, 409, &[]), Course::Release);
        for status in [401, 403, 429] {
            assert_eq!(course(&rule, status, &[]), Course::Keep, "{status}");
        }
        assert_eq!(course(&rule, 503, &[(RETRY_AFTER, "3")]), Course::Keep);
    }

    #[test]
    fn server_errors_are_let_go_where_the_route_says_so() {
        let rule = Rule {
            on_server_error: OnServerError::Release,
            ..Rule::default()
        };
        for status in [500, 502, 503, 504, 408] {
            assert_eq!(course(&rule, status, &[]), Course::Release, "{status}");
        }
        assert_eq!(course(&rule, 400, &[]), Course::Keep);
    }

    #[test]
    fn a_stream_is_known_by_its_type() {
        for kind in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/x-ndjson",
            "multipart/x-mixed-replace;boundary=x",
        ] {
            let kind = [(CONTENT_TYPE, kind)];
            assert_eq!(
                course(&Rule::default(), 200, &kind),
                Course::Stream,
                "{kind:?}"
            );
        }
        assert_eq!(
            course(&Rule::default(), 200, &[(CONTENT_TYPE, "text/plain")]),
            Course::Keep
        );
    }

    #[test]
    fn a_lost_request_is_unknown_unless_upstream_handles_the_key() {
        let mut rule = Rule::default();
        assert_eq!(lost(&rule), Course::Unknown);
        rule.terms.on_unknown = OnUnknown::Release;
        assert_eq!(lost(&rule), Course::Release);
    }
}
