//! Records as an operator sees them, in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;

use crate::admin::seconds;
use crate::idempotency::{RecordCounts, RecordInfo, StoredResponse};

/// Hexadecimal digits of a fingerprint that are shown: enough to tell two requests apart.
const FINGERPRINT_DIGITS: usize = 8;

/// How much there is.
#[derive(Debug, Serialize)]
pub(super) struct Overview {
    records: Counts,
    bytes: u64,
    evictions: u64,
}

#[derive(Debug, Serialize)]
struct Counts {
    in_progress: u64,
    completed: u64,
    unknown: u64,
    tombstone: u64,
}

/// What there is of a key.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub(super) key: String,
    pub(super) records: Vec<Record>,
    /// How many more there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<usize>,
}

/// What there is of a key in one scope.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    scope: String,
    state: &'static str,
    age_seconds: f64,
    expires_in_seconds: Option<f64>,
    status: Option<u16>,
    fingerprint: String,
    response_bytes: Option<usize>,
    #[serde(flatten)]
    content: Option<Content>,
}

/// The answer itself; nothing of it where there is none.
#[derive(Debug, Serialize)]
struct Content {
    headers: Option<Vec<(String, String)>>,
    #[serde(flatten)]
    body: Body,
}

#[derive(Debug, Serialize)]
enum Body {
    #[serde(rename = "body")]
    Text(Option<String>),
    #[serde(rename = "body_base64")]
    Base64(String),
}

impl From<RecordCounts> for Overview {
    fn from(counts: RecordCounts) -> Self {
        Self {
            records: Counts {
                in_progress: counts.in_progress,
                completed: counts.completed,
                unknown: counts.unknown,
                tombstone: counts.tombstones,
            },
            bytes: counts.bytes,
            evictions: counts.evictions,
        }
    }
}

impl Record {
    /// Shows a record without its response.
    pub(super) fn of(info: &RecordInfo) -> Self {
        let mut fingerprint = info.fingerprint.to_string();
        fingerprint.truncate(FINGERPRINT_DIGITS);
        Self {
            scope: info.id.scope.to_string(),
            state: info.state.name(),
            age_seconds: seconds(info.age),
            expires_in_seconds: info.expires_in.map(seconds),
            status: info.response.map(|response| response.status.as_u16()),
            fingerprint,
            response_bytes: info.response.map(|response| response.body_bytes),
            content: None,
        }
    }

    /// Adds headers and body of the response; null if there is none.
    pub(super) fn with(mut self, response: Option<&StoredResponse>) -> Self {
        self.content = Some(Content::of(response));
        self
    }
}

impl Content {
    fn of(answer: Option<&StoredResponse>) -> Self {
        Self {
            headers: answer.map(lines),
            body: answer.map_or(Body::Text(None), |answer| Body::of(&answer.body())),
        }
    }
}

impl Body {
    fn of(bytes: &Bytes) -> Self {
        match str::from_utf8(bytes) {
            Ok(text) => Self::Text(Some(text.to_owned())),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }
}

/// Header lines in their order; a value's bytes that are not UTF-8 show as U+FFFD.
fn lines(answer: &StoredResponse) -> Vec<(String, String)> {
    answer
        .lines()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(&value);
            (name.to_string(), value.into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Response;
    use serde_json::{Value, json};

    use super::*;
    use crate::idempotency::{Fingerprint, KeyHash, RecordId, RecordState, ScopeHash};

    fn info(answer: Option<&StoredResponse>) -> RecordInfo {
        RecordInfo {
            id: RecordId {
                key: KeyHash([1; 16]),
                scope: ScopeHash([0xab; 16]),
            },
            state: RecordState::Completed,
            age: Duration::from_micros(1_500_900),
            expires_in: Some(Duration::from_mins(1)),
            fingerprint: Fingerprint {
                request: [0x5f; 16],
                credentials: [0x5f; 16],
            },
            response: answer.map(Into::into),
        }
    }

    fn answer(body: &'static [u8]) -> StoredResponse {
        let (head, ()) = Response::builder()
            .status(201)
            .header("set-cookie", "a=1")
            .header("content-type", "text/plain")
            .header("set-cookie", "b=2")
            .body(())
            .unwrap()
            .into_parts();
        StoredResponse::of(&head, body, &[])
    }

    fn shown_with(answer: &StoredResponse) -> Value {
        let record = Record::of(&info(Some(answer))).with(Some(answer));
        serde_json::to_value(record).unwrap()
    }

    #[test]
    fn a_record_shows_nothing_of_its_answer_but_status_and_size() {
        let record = Record::of(&info(Some(&answer(b"hello"))));
        let shown = serde_json::to_value(record).unwrap();
        assert_eq!(
            shown,
            json!({
                "scope": "ab".repeat(16),
                "state": "completed",
                "age_seconds": 1.5,
                "expires_in_seconds": 60.0,
                "status": 201,
                "fingerprint": "5f5f5f5f",
                "response_bytes": 5,
            })
        );
    }

    #[test]
    fn an_answer_that_is_asked_for_is_shown_with_every_header_line() {
        let shown = shown_with(&answer(b"hello"));
        assert_eq!(shown["body"], "hello");
        assert_eq!(shown.get("body_base64"), None);
        assert_eq!(
            shown["headers"],
            json!([
                ["set-cookie", "a=1"],
                ["set-cookie", "b=2"],
                ["content-type", "text/plain"]
            ])
        );
    }

    #[test]
    fn a_body_that_is_not_text_is_shown_in_base64() {
        let shown = shown_with(&answer(b"\xff\x00"));
        assert_eq!(shown["body_base64"], "/wA=");
        assert_eq!(shown.get("body"), None);
    }

    #[test]
    fn where_there_is_no_answer_its_parts_are_null() {
        let mut info = info(None);
        info.state = RecordState::InProgress;
        info.expires_in = None;
        let shown = serde_json::to_value(Record::of(&info).with(None)).unwrap();
        for name in [
            "status",
            "response_bytes",
            "expires_in_seconds",
            "headers",
            "body",
        ] {
            assert_eq!(shown.get(name), Some(&Value::Null), "{name}");
        }
    }
}
