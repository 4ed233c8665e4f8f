//! JSON views of idempotency records.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::seconds;
use crate::idempotency::{RecordCounts, RecordInfo, StoredResponse};

/// Number of hexadecimal digits. Eight suffice to see that two requests differ.
const FINGERPRINT_DIGITS: usize = 8;

/// Number of idempotency records by state, and total size of the records.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::admin) struct RecordStoreView {
    records: RecordCountsView,
    /// Age of the oldest record whose outcome is unknown, in seconds. Null without one, and on Redis.
    oldest_unknown: Option<f64>,
    bytes: u64,
    evictions: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct RecordCountsView {
    in_progress: u64,
    completed: u64,
    unknown: u64,
    tombstone: u64,
}

/// The records of an idempotency key, one per scope.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyView {
    pub(super) key: String,
    pub(super) records: Vec<KeyRecordView>,
    /// Number of records that the response omits because of its size limits. `None` means that it shows all records.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) left_out: Option<usize>,
}

/// The record of an idempotency key in one scope.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyRecordView {
    scope: String,
    state: &'static str,
    age_seconds: f64,
    expires_in_seconds: Option<f64>,
    status: Option<u16>,
    fingerprint: String,
    response_bytes: Option<usize>,
    /// Names and values of the stored header lines. Null without a stored response, absent unless the request has
    /// `?body=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<(String, String)>>)]
    headers: Option<Value>,
    /// The stored body, if it is UTF-8. Null without a stored response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    body: Option<Value>,
    /// The stored body, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

impl From<RecordCounts> for RecordStoreView {
    fn from(counts: RecordCounts) -> Self {
        Self {
            records: RecordCountsView {
                in_progress: counts.in_progress,
                completed: counts.completed,
                unknown: counts.unknown,
                tombstone: counts.tombstones,
            },
            oldest_unknown: counts.oldest_unknown.map(seconds),
            bytes: counts.bytes,
            evictions: counts.evictions,
        }
    }
}

impl KeyRecordView {
    /// Without the stored response.
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
            headers: None,
            body: None,
            body_base64: None,
        }
    }

    /// Adds the headers and the body of the stored response. `None` adds both as null.
    pub(super) fn with(mut self, response: Option<&StoredResponse>) -> Self {
        self.headers = Some(json!(response.map(lines)));
        let body = response.map(StoredResponse::body);
        match body.as_deref().map(str::from_utf8) {
            None => self.body = Some(Value::Null),
            Some(Ok(text)) => self.body = Some(text.into()),
            Some(Err(_)) => self.body_base64 = body.map(|bytes| STANDARD.encode(bytes)),
        }
        self
    }
}

/// Bytes that are not UTF-8 become U+FFFD.
fn lines(response: &StoredResponse) -> Vec<(String, String)> {
    let lines = response.lines();
    lines
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(&value).into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Response;

    use super::*;
    use crate::idempotency::{Fingerprint, KeyHash, RecordId, RecordState, ScopeHash};

    fn info(response: Option<&StoredResponse>) -> RecordInfo {
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
            response: response.map(Into::into),
        }
    }

    fn stored(body: &'static [u8]) -> StoredResponse {
        let (head, ()) = Response::builder()
            .status(201)
            .header("set-cookie", "a=1")
            .header("content-type", "text/plain")
            .header("set-cookie", "b=2")
            .body(())
            .unwrap()
            .into_parts();
        StoredResponse::new(head.status, &head.headers, body)
    }

    fn shown_with(response: &StoredResponse) -> Value {
        let record = KeyRecordView::of(&info(Some(response))).with(Some(response));
        serde_json::to_value(record).unwrap()
    }

    #[test]
    fn a_record_shows_only_status_and_size_of_its_response() {
        let record = KeyRecordView::of(&info(Some(&stored(b"hello"))));
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
    fn a_requested_response_is_shown_with_all_header_lines() {
        let shown = shown_with(&stored(b"hello"));
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
    fn a_body_that_is_not_utf_8_is_shown_in_base64() {
        let shown = shown_with(&stored(b"\xff\x00"));
        assert_eq!(shown["body_base64"], "/wA=");
        assert_eq!(shown.get("body"), None);
    }

    #[test]
    fn without_a_stored_response_its_members_are_null() {
        let mut info = info(None);
        info.state = RecordState::InProgress;
        info.expires_in = None;
        let shown = serde_json::to_value(KeyRecordView::of(&info).with(None)).unwrap();
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
