//! Request id, which identifies a request in the logs of client, gateway and upstream.
//!
//! The gateway uses the client's `X-Request-Id` if its value is safe to write into headers and logs, and otherwise a
//! random id. The id is formatted only when it is written.

use std::fmt;

use http::header::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length in bytes. A longer id of a client is replaced by a random one.
const MAX_LENGTH: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestId {
    FromClient(HeaderValue),
    Generated(u128),
}

impl RequestId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self::sent(headers).unwrap_or_else(Self::random)
    }

    pub(crate) fn random() -> Self {
        Self::Generated(fastrand::u128(..))
    }

    pub(crate) fn sent(headers: &HeaderMap) -> Option<Self> {
        let sent = headers.get(X_REQUEST_ID);
        let valid = sent.filter(|id| is_valid(id.as_bytes()));
        valid.cloned().map(Self::FromClient)
    }

    pub(crate) fn to_header(&self) -> HeaderValue {
        match self {
            Self::FromClient(id) => id.clone(),
            Self::Generated(number) => HeaderValue::from_bytes(&hexadecimal(*number))
                .expect("hexadecimal digits are visible ASCII"),
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FromClient(id) => f.write_str(id.to_str().unwrap_or_default()),
            Self::Generated(number) => write!(f, "{number:032x}"),
        }
    }
}

fn is_valid(id: &[u8]) -> bool {
    let is_safe = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'+')
    };
    (1..=MAX_LENGTH).contains(&id.len()) && id.iter().all(is_safe)
}

fn hexadecimal(number: u128) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 0xf)];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sent: &str) -> RequestId {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, sent.parse().unwrap());
        RequestId::of(&headers)
    }

    #[test]
    fn a_valid_id_from_the_client_is_used() {
        assert_eq!(id("a-1_b.c").to_header(), "a-1_b.c");
        assert_eq!(id("a-1_b.c").to_string(), "a-1_b.c");
    }

    #[test]
    fn an_invalid_id_from_the_client_is_replaced() {
        for invalid in ["", "two words", "<script>", "\"", &"x".repeat(129)] {
            assert!(matches!(id(invalid), RequestId::Generated(_)), "{invalid}");
        }
    }

    #[test]
    fn a_generated_id_is_the_same_text_in_headers_and_logs() {
        let id = RequestId::Generated(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_header(), "00000000000000000123456789abcdef");
        assert_eq!(id.to_string(), "00000000000000000123456789abcdef");
    }
}
