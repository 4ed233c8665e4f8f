//! Reads the idempotency key from a member of a JSON body, as in the APIs of Square (`idempotency_key`) and Google
//! (`requestId`).
//!
//! Only top-level members are considered; others are skipped without recursion. A body that JSON parsers interpret in
//! different ways, such as one with the member twice, is rejected. Otherwise the gateway and the API could read
//! different keys from it.

use std::fmt;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use thiserror::Error;

use super::disposition::media_type;
use super::key::{IdempotencyKey, KeyError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BodyKeyError {
    #[error("the request body is compressed or not valid JSON")]
    NotJson,
    #[error(
        "the JSON member that contains the idempotency key occurs more than once in the request body"
    )]
    Repeated,
    #[error("the value of the idempotency key is not a JSON string")]
    NotAString,
    #[error("{0}")]
    Invalid(#[from] KeyError),
    #[error("the idempotency key in the body differs from the idempotency key in the header")]
    Differs,
}

impl BodyKeyError {
    /// What the client must change, as a sentence without its full stop.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NotJson => "Send the body as uncompressed JSON in UTF-8",
            Self::Differs => {
                "Send the key either in the header or in the body, or the same key in both"
            }
            Self::Repeated | Self::NotAString | Self::Invalid(_) => {
                "Send the member once, at the top level of the body, as a string of 1 to 255 printable ASCII characters"
            }
        }
    }
}

/// Of several `Content-Type` lines one JSON line suffices, because the API could read any of them.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    types.any(|value| media_type(value.as_bytes()).eq_ignore_ascii_case(b"application/json"))
}

/// `None` if the body is empty, is not an object, or does not contain the member.
pub(crate) fn key_in(
    body: &[u8],
    field: &str,
) -> Result<Option<IdempotencyKey<'static>>, BodyKeyError> {
    // A JSON parser is allowed to ignore a byte order mark (RFC 8259, section 8.1), so the API can accept such a body.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.is_empty() {
        return Ok(None);
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let found = if body.trim_ascii_start().starts_with(b"{") {
        json.deserialize_map(MemberVisitor { field })
    } else {
        let ignored = json.deserialize_ignored_any(IgnoredAny);
        ignored.map(|_| MemberOccurrences::default())
    };
    let found = found.and_then(|found| json.end().map(|()| found));
    let found = found.map_err(|error| {
        if error.is_data() {
            BodyKeyError::NotAString
        } else {
            BodyKeyError::NotJson
        }
    })?;
    if found.is_repeated {
        return Err(BodyKeyError::Repeated);
    }
    let key = found.value.map(IdempotencyKey::from_text).transpose()?;
    Ok(key)
}

#[derive(Default)]
struct MemberOccurrences {
    value: Option<String>,
    is_repeated: bool,
}

struct MemberVisitor<'a> {
    field: &'a str,
}

impl<'de> Visitor<'de> for MemberVisitor<'_> {
    type Value = MemberOccurrences;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<MemberOccurrences, A::Error> {
        let mut found = MemberOccurrences::default();
        // serde_json has already replaced escapes: `"\u006bey"` is read as `key`.
        while let Some(name) = members.next_key::<String>()? {
            if name != self.field || found.value.is_some() {
                found.is_repeated |= name == self.field;
                members.next_value::<IgnoredAny>()?;
            } else {
                found.value = Some(members.next_value()?);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn key(body: impl AsRef<[u8]>) -> Result<Option<String>, BodyKeyError> {
        let key = key_in(body.as_ref(), "key")?;
        Ok(key.map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn a_top_level_string_member_is_the_key() {
        for (body, expected) in [
            (r#"{"key":"k1"}"#, "k1"),
            (" \r\n\t{ \"key\" : \"k1\" } \n", "k1"),
            (
                r#"{"amount":{"key":"other"},"key":"k1","tags":["key"]}"#,
                "k1",
            ),
            (r#"{"\u006bey":"k\u0031"}"#, "k1"),
            ("\u{feff}{\"key\":\"k1\"}", "k1"),
            (r#"{"key":"two words"}"#, "two words"),
            (r#"{"key":"\"quoted\" \\"}"#, r#""quoted" \"#),
            // Values of other members are not checked, even if a JSON parser could reject them.
            (r#"{"n":1e999,"s":"\ud800","key":"k1"}"#, "k1"),
        ] {
            assert_eq!(key(body), Ok(Some(expected.into())), "{body}");
        }
    }

    #[test]
    fn a_body_without_the_member_has_no_key() {
        for body in [
            "",
            "{}",
            r#"{"Key":"k1"}"#,
            r#"{"data":{"key":"k1"}}"#,
            r#"["key","k1"]"#,
            r#"[{"key":"k1"}]"#,
            r#""key""#,
            "null",
            "17",
            " true ",
        ] {
            assert_eq!(key(body), Ok(None), "{body}");
        }
    }

    #[test]
    fn a_member_that_occurs_twice_is_rejected_in_every_spelling() {
        for body in [
            r#"{"key":"k1","key":"k1"}"#,
            r#"{"key":"k1","a":1,"key":"k2"}"#,
            r#"{"key":"k1","\u006b\u0065\u0079":"k1"}"#,
            r#"{"key":"k1","key":null}"#,
        ] {
            assert_eq!(key(body), Err(BodyKeyError::Repeated), "{body}");
        }
    }

    #[test]
    fn a_member_that_is_not_a_string_is_rejected() {
        for value in ["null", "17", "-1.5", "true", "[\"k1\"]", "{\"k1\":1}", "[]"] {
            let body = format!("{{\"a\":1,\"key\":{value}}}");
            assert_eq!(key(&body), Err(BodyKeyError::NotAString), "{body}");
        }
    }

    #[test]
    fn a_string_has_1_to_255_printable_ascii_characters() {
        let long = "k".repeat(255);
        assert_eq!(
            key(format!("{{\"key\":\"{long}\"}}")),
            Ok(Some(long.clone()))
        );
        for (text, error) in [
            (String::new(), KeyError::Empty),
            (format!("{long}k"), KeyError::TooLong),
            ("caf\u{e9}".into(), KeyError::NotVisible),
            ("a\\u0000b".into(), KeyError::NotVisible),
            ("a\\tb".into(), KeyError::NotVisible),
            ("\\u007f".into(), KeyError::NotVisible),
        ] {
            let body = format!("{{\"key\":\"{text}\"}}");
            assert_eq!(key(&body), Err(BodyKeyError::Invalid(error)), "{body}");
        }
    }

    #[test]
    fn a_body_that_is_not_json_is_rejected() {
        for body in [
            &b" "[..],
            b"{",
            b"key=k1",
            br#"{"key":"k1""#,
            br#"{"key":"k1"}x"#,
            br#"{"key":"k1"}{"key":"k2"}"#,
            br#"{"key":"k1",}"#,
            br"{'key':'k1'}",
            br#"{"key":"\ud800"}"#,
            b"{\"key\":\"caf\xe9\"}",
            b"{\"key\":\"a\nb\"}",
            b"\xef\xbb\xbf\xef\xbb\xbf{\"key\":\"k1\"}",
            b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
            b"[1,",
            b"nul",
        ] {
            assert_eq!(
                key(body),
                Err(BodyKeyError::NotJson),
                "{}",
                body.escape_ascii()
            );
        }
    }

    /// Checks that nested members are skipped without recursion: recursion of 100,000 levels would overflow the 2 MiB
    /// stack of the test thread.
    #[test]
    fn other_members_can_be_nested_100_000_levels_deep() {
        let depth = 100_000;
        let arrays = "[".repeat(depth) + &"]".repeat(depth);
        let objects = "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
        for deep in [arrays, objects] {
            let before = format!("{{\"deep\":{deep},\"key\":\"k1\"}}");
            assert_eq!(key(before), Ok(Some("k1".into())));
            let after = format!("{{\"key\":\"k1\",\"deep\":{deep}}}");
            assert_eq!(key(after), Ok(Some("k1".into())));
            let value = format!("{{\"key\":{deep}}}");
            assert_eq!(key(value), Err(BodyKeyError::NotAString));
            let unclosed = format!("{{\"key\":\"k1\",\"deep\":{}", &deep[..depth]);
            assert_eq!(key(unclosed), Err(BodyKeyError::NotJson));
        }
        let outer = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(key(outer), Ok(None));
    }

    #[test]
    fn json_is_recognised_by_its_media_type() {
        for (value, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/json;charset=utf-8", true),
            ("application/json ; x=y", true),
            ("application/jsonl", false),
            ("application/problem+json", false),
            ("text/plain; application/json", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(is_json(&headers), expected, "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
        let mut headers = HeaderMap::new();
        headers.append(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.append(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        assert!(is_json(&headers));
    }
}
