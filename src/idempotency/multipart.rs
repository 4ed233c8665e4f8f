//! Multipart bodies, hashed without their boundary.
//!
//! A client that repeats an upload chooses a new boundary, so the bytes of the body differ while its parts do not.
//! The parser accepts only the form that clients generate (RFC 2046, section 5.1.1, without padding after a
//! delimiter). Any other body is hashed as it is: then a repetition with another boundary is a mismatch, never a
//! wrong replay.

use http::header::{CONTENT_TYPE, HeaderMap};
use memchr::memmem;

/// The longest boundary (RFC 2046, section 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Hashes everything in a multipart body except its boundary. Returns `None` if the body is not multipart.
pub(super) fn hash(headers: &HeaderMap, body: &[u8]) -> Option<blake3::Hash> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(content_type), None) = (types.next(), types.next()) else {
        return None;
    };
    let multipart = parse(boundary(content_type.as_bytes())?, body)?;
    let mut hasher = blake3::Hasher::new();
    let mut add = |field: &[u8]| {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    };
    add(multipart.preamble);
    add(multipart.epilogue);
    for part in &multipart.parts {
        add(part.headers);
        add(part.content);
    }
    Some(hasher.finalize())
}

/// A multipart body.
#[derive(Debug, PartialEq, Eq)]
struct Multipart<'a> {
    preamble: &'a [u8],
    parts: Vec<Part<'a>>,
    epilogue: &'a [u8],
}

#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    headers: &'a [u8],
    content: &'a [u8],
}

/// Returns the boundary that a multipart `Content-Type` names. A parameter that is repeated or malformed names none.
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
            // Parameters without a value occur in practice and have no effect.
            rest = &after[memchr::memchr(b';', after).unwrap_or(after.len())..];
            continue;
        };
        let (name, value) = (&after[..equals], &after[equals + 1..]);
        let (value, after) = if let Some(quoted) = value.strip_prefix(b"\"") {
            // No client puts a backslash or a quote into a boundary, which would have to be unescaped.
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

/// Splits `body` at `boundary`. Returns `None` if it is not complete and well-formed.
fn parse<'a>(boundary: &[u8], body: &'a [u8]) -> Option<Multipart<'a>> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first delimiter needs no line break before it.
    let (preamble, mut rest) = match body.strip_prefix(&delimiter[2..]) {
        Some(rest) => (&body[..0], rest),
        None => split_at_delimiter(&finder, body)?,
    };
    let mut parts = Vec::new();
    loop {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            let is_complete = epilogue.is_empty() || epilogue.starts_with(b"\r\n");
            return is_complete.then_some(Multipart {
                preamble,
                parts,
                epilogue,
            });
        }
        let (part, after) = split_at_delimiter(&finder, rest)?;
        parts.push(part_of(part)?);
        rest = after;
    }
}

fn split_at_delimiter<'a>(
    finder: &memmem::Finder<'_>,
    bytes: &'a [u8],
) -> Option<(&'a [u8], &'a [u8])> {
    let at = finder.find(bytes)?;
    Some((&bytes[..at], &bytes[at + finder.needle().len()..]))
}

/// Splits what follows a delimiter into the header lines and the content of a part.
fn part_of(bytes: &[u8]) -> Option<Part<'_>> {
    let bytes = bytes.strip_prefix(b"\r\n")?;
    if let Some(content) = bytes.strip_prefix(b"\r\n") {
        let headers = &bytes[..0];
        return Some(Part { headers, content });
    }
    let end = memmem::find(bytes, b"\r\n\r\n")?;
    Some(Part {
        headers: &bytes[..end],
        content: &bytes[end + 4..],
    })
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

    /// A form as clients write it.
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
    fn only_the_boundary_makes_no_difference() {
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
    fn a_body_that_does_not_parse_is_not_multipart() {
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
    fn text_around_the_parts_counts() {
        let hash = |text: &str| of("multipart/mixed; boundary=b", text.as_bytes());
        let plain = hash("--b\r\n\r\n1\r\n--b--");
        assert!(plain.is_some());
        let preamble = hash("text\r\n--b\r\n\r\n1\r\n--b--");
        let epilogue = hash("--b\r\n\r\n1\r\n--b--\r\ntext");
        assert!(preamble.is_some() && epilogue.is_some());
        assert!(preamble != plain && epilogue != plain && preamble != epilogue);
    }

    proptest! {
        #[test]
        fn parsing_never_fails_and_finds_what_was_written(
            contents in prop::collection::vec("[ -~\r\n]{0,40}", 1..5),
            noise in "[-b\r\n]{0,60}",
        ) {
            // A content cannot contain the delimiter, whose letter it does not have.
            let contents: Vec<_> = contents.iter().map(|text| text.replace('b', "")).collect();
            let parts: Vec<_> = contents.iter().map(|text| ("name: x", text.as_bytes())).collect();
            let body = form("b", &parts);
            let parsed = parse(b"b", &body).unwrap();
            let found: Vec<_> = parsed.parts.iter().map(|part| part.content).collect();
            let written: Vec<_> = parts.iter().map(|&(_, content)| content).collect();
            prop_assert_eq!(found, written);
            let _ = parse(b"b", noise.as_bytes());
        }
    }
}
