//! The idempotency key of a request, in either of its two header spellings.
//!
//! The IETF draft writes it as a structured-field string, in quotes. Most clients in use write it bare. Both
//! spellings are the same key. A header that proxies or servers can read in two ways is rejected: two header lines,
//! or a space or a control character in a bare key.

use std::borrow::Cow;

use http::header::GetAll;
use http::{HeaderName, HeaderValue};
use thiserror::Error;

/// The header a key comes in, unless a route says otherwise.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest a key may be, without its quotes.
pub(crate) const MAX_LENGTH: usize = 255;

/// What a client calls one thing it wants done, however often it has to ask. Spelt bare, as nearly every
/// key is, it is the header's own bytes; only quotes and escapes have to be taken out of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey<'a>(Cow<'a, [u8]>);

/// Why a header holds no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// There is more than one.
    #[error("it is sent more than once")]
    Repeated,
    /// It has nothing in it.
    #[error("it is empty")]
    Empty,
    /// It goes on for too long.
    #[error("it is longer than {MAX_LENGTH} characters")]
    TooLong,
    /// It begins with a quote and is not a quoted string.
    #[error("it begins with a quote and is not a structured-field string")]
    NotAString,
    /// It holds something that is not visible.
    #[error("it holds something other than visible ASCII characters")]
    NotVisible,
}

impl<'a> IdempotencyKey<'a> {
    /// The key in `lines`; `None` if there is no line.
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

    /// Parses the value of a header line, in either spelling.
    pub fn parse(line: &'a [u8]) -> Result<Self, KeyError> {
        Self::with_length(if line.first() == Some(&b'"') {
            Cow::Owned(quoted(line)?.into_bytes())
        } else {
            Cow::Borrowed(bare(line)?)
        })
    }

    /// Returns the key that consists of these characters, which are not quoted or escaped.
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

    /// The key, without quotes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same, to be shown.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("visible ASCII and spaces")
    }

    /// The key by itself, whatever becomes of the line it was in.
    pub fn into_owned(self) -> IdempotencyKey<'static> {
        IdempotencyKey(Cow::Owned(self.0.into_owned()))
    }
}

/// A structured-field string (RFC 9651, section 3.3.3). Its parameters mean nothing here.
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
    fn both_spellings_are_one_key() {
        assert_eq!(key(b"order-17"), Ok("order-17".into()));
        assert_eq!(key(b"\"order-17\""), Ok("order-17".into()));
        assert_eq!(
            key(br#""with \"quotes\" and \\""#),
            Ok(r#"with "quotes" and \"#.into())
        );
        assert_eq!(key(b"\"order-17\";attempt=2"), Ok("order-17".into()));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_key() {
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
    fn a_key_is_one_header_line() {
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
