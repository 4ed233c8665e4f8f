//! Lenient readings of a path: what permissive servers could make of it.
//!
//! A server transforms a path in a few steps, such as decoding it or removing its dot segments. Servers differ in the
//! steps, their number and their order, and a list of known servers would never be complete. So the readings are the
//! closure of the path under all steps. It is finite, because each step shortens the path or replaces its backslashes.
//! Its size is bounded, because the path comes from a client.
//!
//! Some servers do more: they ignore the case of letters, trailing slashes, trailing dots or spaces, or convert
//! full-width characters. The documentation lists this as a limitation.

use thiserror::Error;

use super::decode_escapes;

const MAX_READINGS: usize = 128;

/// Maximum size of all readings of one path, in bytes. The time to find them is proportional to it.
const MAX_BYTES: usize = 128 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("servers can read it in too many different ways")]
pub struct TooManyReadings;

/// Returns `None` if the step does not change the path.
type DecodingStep = fn(&[u8]) -> Option<Vec<u8>>;

const DECODING_STEPS: [DecodingStep; 2] = [decode, decode_except_slashes];

const OTHER_STEPS: [DecodingStep; 10] = [
    decode_overlong,
    remove_invalid_utf8,
    replace_backslashes,
    remove_parameters,
    end_at_semicolon,
    remove_dot_segments,
    merge_slashes,
    remove_authority,
    remove_suffix,
    remove_final_newline,
];

#[derive(PartialEq)]
struct Reading {
    path: Vec<u8>,
    /// A server can apply other steps before it decodes the path. A server that never decodes a path is not considered.
    is_decoded: bool,
}

/// The readings other than `literal`. `forwarded` is the path that servers receive.
pub(super) fn readings(forwarded: &[u8], literal: &[u8]) -> Result<Vec<Vec<u8>>, TooManyReadings> {
    let mut steps = DECODING_STEPS.iter().chain(&OTHER_STEPS);
    if steps.all(|step| step(literal).is_none()) {
        return Ok(Vec::new());
    }
    let reading = |path: &[u8], is_decoded| Reading {
        path: path.to_vec(),
        is_decoded,
    };
    let mut found = vec![reading(literal, true)];
    if forwarded != literal {
        found.push(reading(forwarded, false));
    }
    let mut bytes = 0;
    let mut at = 0;
    while at < found.len() {
        let decoding = DECODING_STEPS.map(|step| (step, true));
        let other = OTHER_STEPS.map(|step| (step, found[at].is_decoded));
        for (step, is_decoded) in decoding.into_iter().chain(other) {
            let Some(path) = step(&found[at].path) else {
                continue;
            };
            let next = Reading { path, is_decoded };
            if found.contains(&next) {
                continue;
            }
            bytes += next.path.len();
            if found.len() == MAX_READINGS || bytes > MAX_BYTES {
                return Err(TooManyReadings);
            }
            found.push(next);
        }
        at += 1;
    }
    let decoded = found
        .into_iter()
        .skip(1)
        .filter(|reading| reading.is_decoded);
    Ok(decoded.map(|reading| reading.path).collect())
}

/// Malformed escapes stay as they are.
pub(super) fn decode(path: &[u8]) -> Option<Vec<u8>> {
    decode_escapes(path, |_| true)
}

pub(super) fn decode_except_slashes(path: &[u8]) -> Option<Vec<u8>> {
    decode_escapes(path, |octet| !matches!(octet, b'/' | b'\\'))
}

/// ASCII characters in overlong UTF-8 (RFC 3629, section 10), such as `C0 AF` for a slash.
fn decode_overlong(path: &[u8]) -> Option<Vec<u8>> {
    if path.is_ascii() {
        return None;
    }
    let mut decoded = Vec::new();
    let mut rest = path;
    while let [first, after @ ..] = rest {
        let (octet, len) = match *rest {
            [lead @ 0xC0..=0xC1, last @ 0x80..=0xBF, ..] => ((lead & 1) << 6 | last & 0x3F, 2),
            [0xE0, lead @ 0x80..=0x81, last @ 0x80..=0xBF, ..]
            | [0xF0, 0x80, lead @ 0x80..=0x81, last @ 0x80..=0xBF, ..] => (
                (lead & 1) << 6 | last & 0x3F,
                if *first == 0xE0 { 3 } else { 4 },
            ),
            _ => {
                decoded.push(*first);
                rest = after;
                continue;
            }
        };
        decoded.push(octet);
        rest = &rest[len..];
    }
    (decoded.len() < path.len()).then_some(decoded)
}

/// As Bottle does.
fn remove_invalid_utf8(path: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(path).is_err().then(|| {
        let chunks = path.utf8_chunks().map(|chunk| chunk.valid());
        chunks.collect::<String>().into_bytes()
    })
}

fn replace_backslashes(path: &[u8]) -> Option<Vec<u8>> {
    let replaced = |&byte: &u8| if byte == b'\\' { b'/' } else { byte };
    path.contains(&b'\\')
        .then(|| path.iter().map(replaced).collect())
}

/// Everything from a semicolon to the next slash.
fn remove_parameters(path: &[u8]) -> Option<Vec<u8>> {
    let is_end = |byte: &u8| *byte == b';';
    let name = |segment| <[u8]>::split(segment, is_end).next().unwrap_or_default();
    path.contains(&b';')
        .then(|| segments(path).map(name).collect::<Vec<_>>().join(&b'/'))
}

/// As Fastify 4 does.
fn end_at_semicolon(path: &[u8]) -> Option<Vec<u8>> {
    let end = path.iter().position(|&byte| byte == b';')?;
    Some(path[..end].to_vec())
}

/// RFC 3986, section 5.2.4. Empty segments count as segments, so `/a//../b` becomes `/a/b`.
fn remove_dot_segments(path: &[u8]) -> Option<Vec<u8>> {
    let is_dots = |segment: &[u8]| matches!(segment, b"." | b"..");
    if !segments(path).any(is_dots) {
        return None;
    }
    let mut remaining = Vec::new();
    for segment in segments(path) {
        match segment {
            b"." => {}
            // The empty segment before the leading slash stays.
            b".." => remaining.truncate((remaining.len() - 1).max(1)),
            _ => remaining.push(segment),
        }
    }
    // After a final dot segment, the path ends in a slash.
    if segments(path).next_back().is_some_and(is_dots) {
        remaining.push(b"");
    }
    Some(remaining.join(&b'/'))
}

fn merge_slashes(path: &[u8]) -> Option<Vec<u8>> {
    if !path.windows(2).any(|pair| pair == b"//") {
        return None;
    }
    let mut merged = path.to_vec();
    merged.dedup_by(|next, previous| *next == b'/' && *previous == b'/');
    Some(merged)
}

/// Some servers parse the target as a URL reference, in which `//host/path` is the path `/path` (RFC 3986, section
/// 4.2). The URL Standard of the WHATWG skips further slashes before the host, so `////host/path` has the same path.
fn remove_authority(path: &[u8]) -> Option<Vec<u8>> {
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let after = (slashes >= 2).then(|| &path[slashes..])?;
    let end = after.iter().position(|&byte| byte == b'/');
    Some(end.map_or(b"/".to_vec(), |end| after[end..].to_vec()))
}

/// Everything from a decoded `?`, `#` or NUL on. Some servers parse a path again after they have decoded it, or end it
/// at a NUL, which overlong UTF-8 can contain.
fn remove_suffix(path: &[u8]) -> Option<Vec<u8>> {
    let end = path
        .iter()
        .position(|byte| matches!(byte, b'?' | b'#' | 0))?;
    Some(path[..end].to_vec())
}

/// In most regular expression engines, `$` also matches before one final newline.
fn remove_final_newline(path: &[u8]) -> Option<Vec<u8>> {
    path.strip_suffix(b"\n").map(<[u8]>::to_vec)
}

fn segments(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
}
