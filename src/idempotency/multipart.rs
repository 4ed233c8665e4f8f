//! Hashes multipart request bodies without their boundary, for the fingerprint of a request.
//!
//! A client that retries an upload chooses a new boundary. The parser accepts only the syntax that clients generate:
//! RFC 2046, section 5.1.1, without padding after a delimiter, and at most 1,000 parts. Any other body is hashed byte
//! for byte, so its retry with another boundary is rejected as a mismatch.

use http::header::{CONTENT_TYPE, HeaderMap};
use memchr::memmem;

/// In bytes (RFC 2046, section 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Bounds the time for splitting, because a client can send 100,000 parts in 1 MiB.
const MAX_PARTS: usize = 1_000;

/// `None` if the body is not multipart or does not parse.
pub(super) fn hash(headers: &HeaderMap, body: &[u8]) -> Option<blake3::Hash> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(content_type), None) = (types.next(), types.next()) else {
        return None;
    };
    let mut hasher = blake3::Hasher::new();
    parse(boundary(content_type.as_bytes())?, body, |field| {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    })?;
    Some(hasher.finalize())
}

/// `None` if the boundary is absent, repeated or malformed.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    const MULTIPART: &[u8] = b"multipart/";
    let start = content_type.get(..MULTIPART.len())?;
    if !start.eq_ignore_ascii_case(MULTIPART) {
        return None;
    }
    let mut found = None;
    let mut rest = &content_type[memchr::memchr(b';', content_type)?..];
    while let [b';', after @ ..] = rest {
        let after = after.trim_ascii_start();
        let equals = memchr::memchr2(b'=', b';', after);
        let Some(equals) = equals.filter(|&at| after[at] == b'=') else {
            // Some clients send parameters without a value, which have no meaning.
            rest = &after[memchr::memchr(b';', after).unwrap_or(after.len())..];
            continue;
        };
        let (name, value) = (&after[..equals], &after[equals + 1..]);
        let (value, after) = if let Some(quoted) = value.strip_prefix(b"\"") {
            // No client uses a backslash or a quote in a boundary.
            let end = memchr::memchr2(b'"', b'\\', quoted)?;
            if quoted[end] == b'\\' {
                return None;
            }
            (&quoted[..end], quoted[end + 1..].trim_ascii_start())
        } else {
            let end = memchr::memchr(b';', value).unwrap_or(value.len());
            (value[..end].trim_ascii_end(), &value[end..])
        };
        if name.eq_ignore_ascii_case(b"boundary") && found.replace(value).is_some() {
            return None;
        }
        rest = after;
    }
    let is_valid = |boundary: &&[u8]| {
        (1..=MAX_BOUNDARY).contains(&boundary.len())
            && boundary.iter().all(|octet| (b' '..=b'~').contains(octet))
    };
    found.filter(is_valid)
}

/// Calls `field` with the preamble, then with the header lines and the content of each part, and finally with the
/// epilogue.
fn parse<'a>(boundary: &[u8], body: &'a [u8], mut field: impl FnMut(&'a [u8])) -> Option<()> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first delimiter can be at the start of the body, without the line break before it.
    let (preamble, mut rest) = match body.strip_prefix(&delimiter[2..]) {
        Some(rest) => (&body[..0], rest),
        None => split_at_delimiter(&finder, body)?,
    };
    field(preamble);
    for _ in 0..=MAX_PARTS {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            field(epilogue);
            return (epilogue.is_empty() || epilogue.starts_with(b"\r\n")).then_some(());
        }
        let (part, after) = split_at_delimiter(&finder, rest)?;
        let (headers, content) = split_part(part)?;
        field(headers);
        field(content);
        rest = after;
    }
    None
}

fn split_at_delimiter<'a>(
    finder: &memmem::Finder<'_>,
    bytes: &'a [u8],
) -> Option<(&'a [u8], &'a [u8])> {
    let at = finder.find(bytes)?;
    Some((&bytes[..at], &bytes[at + finder.needle().len()..]))
}

/// Into header lines and content.
fn split_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let bytes = bytes.strip_prefix(b"\r\n")?;
    if let Some(content) = bytes.strip_prefix(b"\r\n") {
        return Some((&bytes[..0], content));
    }
    let end = memmem::find(bytes, b"\r\n\r\n")?;
    Some((&bytes[..end], &bytes[end + 4..]))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn of(content_type: &str, body: &[u8]) -> Option<blake3::Hash> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        hash(&headers, body)
    }

    /// Returns a multipart body as clients generate it. An empty header text stands for a part without header lines.
    fn form(boundary: &str, parts: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (headers, content) in parts {
            body.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
            if !headers.is_empty() {
                body.extend_from_slice(format!("{headers}\r\n").as_bytes());
            }
            body.extend_from_slice(b"\r\n");
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        body
    }

    const FILE: &str =
        "Content-Disposition: form-data; name=\"f\"; filename=\"a\"\r\nContent-Type: text/plain";

    #[test]
    fn a_hash_depends_on_everything_except_the_boundary() {
        let parts = [
            ("Content-Disposition: form-data; name=\"a\"", &b"1"[..]),
            (FILE, b"two\r\n"),
        ];
        let plain = of("multipart/form-data; boundary=one", &form("one", &parts));
        assert!(plain.is_some());
        for content_type in [
            "multipart/form-data; boundary=other",
            "multipart/form-data;boundary=\"other\"",
            "Multipart/Form-Data; charset=utf-8; Boundary=other",
            "multipart/form-data; boundary=other; charset=\"a;b\"",
            "multipart/form-data; strange; boundary=other",
        ] {
            assert_eq!(
                of(content_type, &form("other", &parts)),
                plain,
                "{content_type}"
            );
        }
        let changed: [&[(&str, &[u8])]; 5] = [
            &[parts[1], parts[0]],
            &[parts[0]],
            &[parts[0], (FILE, b"two\r\n.")],
            &[
                parts[0],
                ("Content-Disposition: form-data; name=\"g\"", b"two\r\n"),
            ],
            &[parts[0], (FILE, b"two\r\n"), parts[0]],
        ];
        for parts in changed {
            let other = of("multipart/form-data; boundary=one", &form("one", parts));
            assert!(other.is_some() && other != plain);
        }
    }

    #[test]
    fn a_malformed_body_or_boundary_has_no_multipart_hash() {
        let form_data = "multipart/form-data; boundary=b";
        for body in [
            &b""[..],
            b"--b",
            b"--b\r\n",
            b"--b\r\n\r\n1\r\n--b",
            b"--b\r\nname: no end of headers\r\n--b--\r\n",
            b"--b \r\n\r\n1\r\n--b--\r\n",
            b"--b\r\n\r\n1\r\n--b--x",
            b"--b\n\n1\n--b--\n",
            b"--bb\r\n\r\n1\r\n--bb--\r\n",
        ] {
            assert_eq!(of(form_data, body), None, "{}", body.escape_ascii());
        }
        let body = form("b", &[("", b"1")]);
        assert!(of(form_data, &body).is_some());
        for content_type in [
            "text/plain; boundary=b",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=b; boundary=b",
            "multipart/form-data; boundary=\"b\\\"\"",
            "multipart/form-data; boundary=\"b",
        ] {
            assert_eq!(of(content_type, &body), None, "{content_type}");
        }
    }

    #[test]
    fn a_body_with_more_than_1_000_parts_has_no_multipart_hash() {
        let of = |count| {
            let parts = vec![("", &b"1"[..]); count];
            of("multipart/form-data; boundary=b", &form("b", &parts))
        };
        assert!(of(0).is_some() && of(MAX_PARTS).is_some());
        assert_eq!(of(MAX_PARTS + 1), None);
    }

    proptest! {
        #[test]
        fn parse_returns_the_written_parts_and_does_not_panic(
            contents in prop::collection::vec("[ -~\r\n]{0,40}", 1..5),
            noise in "[-b\r\n]{0,60}",
        ) {
            // The letter `b` is removed, because content without it cannot contain the delimiter of the boundary `b`.
            let contents: Vec<_> = contents.iter().map(|text| text.replace('b', "")).collect();
            let parts: Vec<_> = contents.iter().map(|text| ("name: x", text.as_bytes())).collect();
            let body = form("b", &parts);
            let mut found = Vec::new();
            parse(b"b", &body, |field| found.push(field)).unwrap();
            let mut written = vec![&b""[..]];
            written.extend(parts.iter().flat_map(|&(headers, content)| [headers.as_bytes(), content]));
            written.push(b"\r\n");
            prop_assert_eq!(found, written);
            let _ = parse(b"b", noise.as_bytes(), |_| {});
        }
    }
}
