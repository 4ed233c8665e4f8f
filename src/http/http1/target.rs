//! Parser of request targets.
//!
//! The type `Uri` rejects some characters that clients send, such as `"` in a query, and removes a fragment. The
//! gateway instead forwards such characters in percent-encoded form, and rejects a fragment. HTTP/2 requests do not
//! pass this parser, because their library creates the `Uri`.

use std::ops::Range;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, Uri};

use super::violation::Violation;

/// `range` is the position of the target in `bytes`, which the URI references without a copy.
pub(crate) fn parse(method: &Method, bytes: &Bytes, range: Range<usize>) -> Result<Uri, Violation> {
    let target = &bytes[range.clone()];
    if let Some(at) = target.iter().position(|&octet| octet == b'#') {
        return Err(Violation::TargetCharacter { octet: b'#', at });
    }
    let uri = match Uri::from_maybe_shared(bytes.slice(range)) {
        Ok(uri) => uri,
        Err(_) => encoded(target).ok_or(Violation::Target)?,
    };
    if uri.scheme().is_none() {
        return Ok(uri);
    }
    let path = match uri.path_and_query().map(PathAndQuery::as_str) {
        // RFC 9112, section 3.2.4: without a path, as in `http://a`, the target of OPTIONS is `*`.
        Some("/") if method == Method::OPTIONS && !target.ends_with(b"/") => {
            PathAndQuery::from_static("*")
        }
        // A target without a path can have a query, as in `http://a?x`.
        Some(query) if query.starts_with('?') => {
            PathAndQuery::try_from(format!("/{query}")).map_err(|_| Violation::Target)?
        }
        _ => return Ok(uri),
    };
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| Violation::Target)
}

fn encoded(target: &[u8]) -> Option<Uri> {
    let encoded = encode_invalid(str::from_utf8(target).ok()?)?;
    Uri::try_from(encoded).ok()
}

fn encode_invalid(target: &str) -> Option<String> {
    if !target.bytes().any(is_encoded) {
        return None;
    }
    let mut encoded = String::with_capacity(target.len() + 16);
    for character in target.chars() {
        match u8::try_from(character) {
            Ok(octet) if is_encoded(octet) => push_escape(&mut encoded, octet),
            _ => encoded.push(character),
        }
    }
    Some(encoded)
}

/// Characters that URIs do not allow but clients send. Not a backslash: some servers read it as a slash only if it is
/// not encoded.
pub(crate) const fn is_encoded(octet: u8) -> bool {
    matches!(octet, b'"' | b'<' | b'>' | b'{' | b'}' | b'|' | b'^' | b'`')
}

pub(crate) fn push_escape(text: &mut String, octet: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(octet >> 4)]));
    text.push(char::from(DIGITS[usize::from(octet & 0xF)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, target: &'static str) -> Result<Uri, Violation> {
        let bytes = Bytes::from_static(target.as_bytes());
        super::parse(method, &bytes, 0..bytes.len())
    }

    #[track_caller]
    fn parses(method: &Method, target: &'static str, expected: &str) {
        let uri = parse(method, target);
        assert_eq!(uri.map(|uri| uri.to_string()).as_deref(), Ok(expected));
    }

    #[track_caller]
    fn is_rejected(target: &'static str, expected: Violation) {
        let uri = parse(&Method::GET, target);
        assert_eq!(uri, Err(expected), "{target}");
    }

    #[test]
    fn characters_that_the_uri_type_rejects_are_percent_encoded() {
        parses(
            &Method::GET,
            r#"/q?query=up{job="x"}"#,
            "/q?query=up%7Bjob=%22x%22%7D",
        );
        parses(&Method::GET, "/<a>`b`?c=<d>", "/%3Ca%3E%60b%60?c=%3Cd%3E");
        parses(&Method::GET, r#"http://a/é?c="d""#, "http://a/é?c=%22d%22");
    }

    #[test]
    fn valid_targets_are_unchanged() {
        for target in ["/", "/a/../b//c\\d?e=%2f", "http://a/", "http://a/b?c", "*"] {
            parses(&Method::GET, target, target);
            parses(&Method::OPTIONS, target, target);
        }
    }

    #[test]
    fn an_absolute_target_without_a_path_has_the_path_slash() {
        parses(&Method::GET, "http://a", "http://a/");
        parses(&Method::GET, "http://a?x=/", "http://a/?x=/");
        parses(&Method::GET, "http://a?x", "http://a/?x");
        parses(&Method::OPTIONS, "http://a?x", "http://a/?x");
    }

    #[test]
    fn options_with_an_absolute_target_without_a_path_has_the_target_asterisk() {
        let uri = parse(&Method::OPTIONS, "http://a").unwrap();
        assert_eq!(uri.path(), "*");
        assert_eq!(uri.host(), Some("a"));
    }

    #[test]
    fn a_fragment_is_rejected_with_its_position() {
        for (target, at) in [("/#", 1), ("/a?b#c", 4), ("http://a#x", 8), ("#x", 0)] {
            is_rejected(target, Violation::TargetCharacter { octet: b'#', at });
        }
    }

    #[test]
    fn an_invalid_uri_is_rejected() {
        for target in ["api", "?x", "http:///a", "\\a", "a:b:c"] {
            let uri = parse(&Method::GET, target);
            let is_rejected = uri
                .as_ref()
                .map_or(true, |uri| !uri.path().starts_with('/'));
            assert!(is_rejected, "{target}: {uri:?}");
        }
    }

    #[test]
    fn characters_that_uris_do_not_allow_are_percent_encoded() {
        assert_eq!(encode_invalid("/a b?c"), None);
        assert_eq!(encode_invalid("/é<").as_deref(), Some("/é%3C"));
    }
}
