//! The name of one request, for whoever follows it through several logs.
//!
//! A client that names its requests has its names kept, if they are fit to be repeated in headers and
//! logs; any other request gets a fresh one. It becomes text where it is written and not before.

use std::fmt;

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Carries the id, to upstream and back to the client.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest name a client may give.
const MAX_GIVEN: usize = 128;

/// The name of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestId {
    /// The client's own.
    Given(HeaderValue),
    /// Ours, a random number.
    Fresh(u128),
}

impl RequestId {
    /// The id that came with a request, or a fresh one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers
            .get(X_REQUEST_ID)
            .filter(|id| is_fit(id.as_bytes()))
            .cloned();
        given.map_or_else(|| Self::Fresh(fastrand::u128(..)), Self::Given)
    }

    /// The id as a header's value.
    pub(crate) fn to_header(&self) -> HeaderValue {
        match self {
            Self::Given(id) => id.clone(),
            Self::Fresh(number) => HeaderValue::from_bytes(&hexadecimal(*number))
                .expect("hexadecimal digits are visible ASCII"),
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(id) => f.write_str(id.to_str().unwrap_or_default()),
            Self::Fresh(number) => write!(f, "{number:032x}"),
        }
    }
}

fn is_fit(id: &[u8]) -> bool {
    let fit = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'+')
    };
    (1..=MAX_GIVEN).contains(&id.len()) && id.iter().all(fit)
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

    fn id(given: &str) -> RequestId {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, given.parse().unwrap());
        RequestId::of(&headers)
    }

    #[test]
    fn a_name_that_is_fit_to_be_repeated_is_kept() {
        assert_eq!(id("a-1_b.c").to_header(), "a-1_b.c");
        assert_eq!(id("a-1_b.c").to_string(), "a-1_b.c");
    }

    #[test]
    fn any_other_name_is_replaced() {
        for unfit in ["", "two words", "<script>", "\"", &"x".repeat(129)] {
            assert!(matches!(id(unfit), RequestId::Fresh(_)), "{unfit}");
        }
    }

    #[test]
    fn a_fresh_id_reads_the_same_in_headers_and_logs() {
        let id = RequestId::Fresh(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_header(), "00000000000000000123456789abcdef");
        assert_eq!(id.to_string(), "00000000000000000123456789abcdef");
    }
}
