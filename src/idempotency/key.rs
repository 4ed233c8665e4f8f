//! Parses the idempotency key in a request header, with or without quotes.
//!
//! The IETF draft defines a structured-field string, in quotes; most clients send the key without. Both spellings are
//! the same key. A header that servers can interpret in different ways is rejected: several lines, or a space or
//! control character in a key without quotes.

use std::borrow::Cow;

use http::header::GetAll;
use http::{HeaderName, HeaderValue};
use thiserror::Error;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// In characters, without quotes.
pub(crate) const MAX_LENGTH: usize = 255;

/// A quoted key is a copy, because its quotes and escapes are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey<'a>(Cow<'a, [u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    #[error("the idempotency key is sent in more than one header line")]
    Repeated,
    #[error("the idempotency key is empty")]
    Empty,
    #[error("the idempotency key is longer than {MAX_LENGTH} characters")]
    TooLong,
    #[error(
        "the idempotency key starts with a quote but is not a structured-field string (RFC 9651)"
    )]
    NotAString,
    #[error("the idempotency key contains characters other than visible ASCII")]
    NotVisible,
}

impl<'a> IdempotencyKey<'a> {
    /// `None` if there is no line, and an error if there are several.
    pub fn of(lines: &GetAll<'a, HeaderValue>) -> Result<Option<Self>, KeyError> {
        let mut lines = lines.iter();
        let Some(line) = lines.next() else {
            return Ok(None);
        };
        if lines.next().is_some() {
            return Err(KeyError::Repeated);
        }
        Self::parse(line.as_bytes()).map(Some)
    }

    pub fn parse(line: &'a [u8]) -> Result<Self, KeyError> {
        Self::with_length(if line.first() == Some(&b'"') {
            Cow::Owned(quoted(line)?.into_bytes())
        } else {
            Cow::Borrowed(bare(line)?)
        })
    }

    /// Without quotes and escapes. Unlike a key in a header, the text can contain spaces.
    pub fn from_text(text: String) -> Result<Self, KeyError> {
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(KeyError::NotVisible);
        }
        Self::with_length(Cow::Owned(text.into_bytes()))
    }

    fn with_length(key: Cow<'a, [u8]>) -> Result<Self, KeyError> {
        match key.len() {
            0 => Err(KeyError::Empty),
            1..=MAX_LENGTH => Ok(Self(key)),
            _ => Err(KeyError::TooLong),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("an idempotency key contains only ASCII")
    }

    pub fn into_owned(self) -> IdempotencyKey<'static> {
        IdempotencyKey(Cow::Owned(self.0.into_owned()))
    }
}

/// As a structured-field string (RFC 9651, section 3.3.3), without its parameters.
fn quoted(line: &[u8]) -> Result<String, KeyError> {
    let item: sfv::Item = sfv::Parser::new(line)
        .parse()
        .map_err(|_| KeyError::NotAString)?;
    match item.bare_item {
        sfv::BareItem::String(key) => Ok(key.as_str().to_owned()),
        _ => Err(KeyError::NotAString),
    }
}

fn bare(line: &[u8]) -> Result<&[u8], KeyError> {
    if line.iter().all(u8::is_ascii_graphic) {
        Ok(line)
    } else {
        Err(KeyError::NotVisible)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn key(line: &[u8]) -> Result<String, KeyError> {
        IdempotencyKey::parse(line).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn a_key_is_the_same_with_and_without_quotes() {
        assert_eq!(key(b"order-17"), Ok("order-17".into()));
        assert_eq!(key(b"\"order-17\""), Ok("order-17".into()));
        assert_eq!(
            key(br#""with \"quotes\" and \\""#),
            Ok(r#"with "quotes" and \"#.into())
        );
        assert_eq!(key(b"\"order-17\";attempt=2"), Ok("order-17".into()));
    }

    #[test]
    fn an_ambiguous_or_empty_value_is_rejected() {
        for (line, error) in [
            (&b""[..], KeyError::Empty),
            (b"\"\"", KeyError::Empty),
            (b"two words", KeyError::NotVisible),
            (b"tab\there", KeyError::NotVisible),
            (b"caf\xc3\xa9", KeyError::NotVisible),
            (b"\x7f", KeyError::NotVisible),
            (b"\"open", KeyError::NotAString),
            (b"\"a\" \"b\"", KeyError::NotAString),
            (b"\"a\", \"b\"", KeyError::NotAString),
            (b"\"caf\xc3\xa9\"", KeyError::NotAString),
        ] {
            assert_eq!(key(line), Err(error), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_key_has_1_to_255_characters() {
        let long = "k".repeat(MAX_LENGTH);
        assert_eq!(key(long.as_bytes()), Ok(long.clone()));
        assert_eq!(key(format!("\"{long}\"").as_bytes()), Ok(long.clone()));
        assert_eq!(key(format!("{long}k").as_bytes()), Err(KeyError::TooLong));
        assert_eq!(
            key(format!("\"{long}k\"").as_bytes()),
            Err(KeyError::TooLong)
        );
    }

    #[test]
    fn a_key_on_two_header_lines_is_rejected() {
        let mut headers = HeaderMap::new();
        assert_eq!(
            IdempotencyKey::of(&headers.get_all(IDEMPOTENCY_KEY)),
            Ok(None)
        );
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("k"));
        assert!(matches!(
            IdempotencyKey::of(&headers.get_all(IDEMPOTENCY_KEY)),
            Ok(Some(_))
        ));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("k"));
        assert_eq!(
            IdempotencyKey::of(&headers.get_all(IDEMPOTENCY_KEY)),
            Err(KeyError::Repeated)
        );
    }
}
