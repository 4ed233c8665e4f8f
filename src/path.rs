//! Normalises request paths, so that all equivalent spellings of a path match the same route.
//!
//! A path has many equivalent spellings. If a route did not match one of these spellings, a client could bypass the
//! limits of the route with this spelling. So the path of a request is normalised once. Routes match the normalised
//! path, and the upstream receives it. Normalisation has three steps:
//!
//! 1. Escapes of unreserved characters are decoded (`%41` → `A`).
//! 2. Dot segments are removed (RFC 3986, section 5.2.4).
//! 3. Consecutive slashes are merged.
//!
//! Other escapes are forwarded unchanged. To find the route, they are decoded once: `/users/%40me` is matched as
//! `/users/@me`, and `%252e` never becomes a dot.
//!
//! Encoded slashes, backslashes, NUL and malformed escapes are rejected, because servers differ in how they interpret
//! them.
//!
//! An upstream that applies further rules can still interpret a path differently from the gateway. The gateway treats
//! path parameters (`/a;x`) as ordinary characters, does not change the case of letters, and decodes nothing twice.

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;

/// Why the path of a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// The path does not start with `/`.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    /// The path contains `%2F`.
    #[error("the path contains an encoded slash (`%2F`), which the gateway does not allow")]
    EncodedSlash,
    /// The path contains `\` or `%5C`.
    #[error("the path contains a backslash (`\\` or `%5C`), which the gateway does not allow")]
    Backslash,
    /// The path contains a NUL byte or `%00`.
    #[error("the path contains a NUL character (`%00`), which the gateway does not allow")]
    Nul,
    /// The path contains a `%` that is not followed by two hexadecimal digits.
    #[error(
        "the path contains a `%` that is not followed by two hexadecimal digits. Write `%25` for a percent sign"
    )]
    MalformedEscape,
}

/// A normalised path, in the form for the upstream and in the form for matching routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalised<'a> {
    forward: Cow<'a, str>,
    /// The path for matching routes. `None` if it equals `forward`.
    matching: Option<Vec<u8>>,
}

impl Normalised<'_> {
    /// Returns the path that is sent to the upstream.
    pub fn forward(&self) -> &str {
        &self.forward
    }

    /// Returns the path that routes match. It is [`forward`](Self::forward) with all escapes decoded once.
    pub fn matching(&self) -> &[u8] {
        self.matching.as_deref().unwrap_or(self.forward.as_bytes())
    }
}

/// Normalises the path of a request target. `raw` must not contain the query.
///
/// A path that is already normalised and has no escapes is returned without a copy.
pub fn normalise(raw: &str) -> Result<Normalised<'_>, PathError> {
    if !raw.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    if is_plain(raw) {
        return Ok(Normalised {
            forward: Cow::Borrowed(raw),
            matching: None,
        });
    }
    let decoded = decode_unreserved(raw)?;
    let forward = match normalise_segments(&decoded) {
        Some(normalised) => Cow::Owned(normalised),
        None => decoded,
    };
    let matching = forward.contains('%').then(|| decode_all(&forward));
    Ok(Normalised { forward, matching })
}

/// Whether the path certainly needs no normalisation. False means that the path must be parsed to find out.
fn is_plain(path: &str) -> bool {
    let mut previous = 0;
    for byte in path.bytes() {
        let suspect = match byte {
            b'%' | b'\\' | 0 => true,
            b'/' | b'.' => previous == b'/',
            _ => false,
        };
        if suspect {
            return false;
        }
        previous = byte;
    }
    true
}

fn decode_unreserved(path: &str) -> Result<Cow<'_, str>, PathError> {
    let mut decoded = String::new();
    let mut copied = 0;
    let mut rest = path.bytes().enumerate();
    while let Some((at, byte)) = rest.next() {
        match byte {
            b'\\' => return Err(PathError::Backslash),
            0 => return Err(PathError::Nul),
            b'%' => {}
            _ => continue,
        }
        let octet = escaped_octet(path.as_bytes(), at).ok_or(PathError::MalformedEscape)?;
        match octet {
            b'/' => return Err(PathError::EncodedSlash),
            b'\\' => return Err(PathError::Backslash),
            0 => return Err(PathError::Nul),
            _ if is_unreserved(octet) => {
                decoded.push_str(&path[copied..at]);
                decoded.push(char::from(octet));
                copied = at + ESCAPE_LEN;
            }
            _ => {}
        }
        rest.nth(ESCAPE_LEN - 2);
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(path));
    }
    decoded.push_str(&path[copied..]);
    Ok(Cow::Owned(decoded))
}

/// Removes dot segments and merges consecutive slashes. Returns `None` if the path needs neither. The path must start
/// with a slash.
fn normalise_segments(path: &str) -> Option<String> {
    let mut segments = path[1..].split('/');
    if !path.contains("//") && !segments.clone().any(is_dots) {
        return None;
    }

    // Dot segments are removed before empty segments, as RFC 3986 requires. So `/a//../b` becomes `/a/b` and not `/b`.
    let mut remaining: SmallVec<[&str; 16]> = SmallVec::new();
    for segment in segments.clone() {
        match segment {
            "." => {}
            ".." => _ = remaining.pop(),
            _ => remaining.push(segment),
        }
    }
    let mut normalised = String::with_capacity(path.len());
    for segment in remaining.into_iter().filter(|segment| !segment.is_empty()) {
        normalised.push('/');
        normalised.push_str(segment);
    }
    let last = segments.next_back().unwrap_or_default();
    if last.is_empty() || is_dots(last) {
        normalised.push('/');
    }
    Some(normalised)
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

/// Decodes every percent escape. All escapes in `path` must be well-formed.
fn decode_all(path: &str) -> Vec<u8> {
    let path = path.as_bytes();
    let mut decoded = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        if let Some(octet) = escaped_octet(path, at) {
            decoded.push(octet);
            at += ESCAPE_LEN;
        } else {
            decoded.push(byte);
            at += 1;
        }
    }
    decoded
}

const ESCAPE_LEN: usize = "%XX".len();

/// Returns the octet that the escape at position `at` encodes, or `None` if no well-formed escape is there.
fn escaped_octet(path: &[u8], at: usize) -> Option<u8> {
    let &[b'%', high, low] = path.get(at..at + ESCAPE_LEN)? else {
        return None;
    };
    let digit = |byte| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Whether the octet is an unreserved character (RFC 3986, section 2.3).
fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn forwards(raw: &str, expected: &str) {
        let normalised = normalise(raw).unwrap_or_else(|error| panic!("{raw}: {error}"));
        assert_eq!(normalised.forward(), expected, "{raw}");
    }

    #[track_caller]
    fn matches_as(raw: &str, expected: impl AsRef<[u8]>) {
        let normalised = normalise(raw).unwrap_or_else(|error| panic!("{raw}: {error}"));
        assert_eq!(
            normalised.matching().escape_ascii().to_string(),
            expected.as_ref().escape_ascii().to_string(),
            "{raw}"
        );
    }

    #[track_caller]
    fn is_rejected(raw: &str, expected: PathError) {
        assert_eq!(normalise(raw), Err(expected), "{raw}");
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        for path in [
            "/",
            "/a",
            "/a/",
            "/a/b.c/..d/...",
            "/o/client/register",
            "/.well-known/x",
            "/a/%40b",
            "/é",
        ] {
            let normalised = normalise(path).unwrap();
            assert!(matches!(normalised.forward, Cow::Borrowed(_)), "{path}");
            assert_eq!(normalised.forward(), path);
        }
        assert!(normalise("/a/b").unwrap().matching.is_none());
    }

    #[test]
    fn unreserved_octets_are_decoded() {
        forwards("/%6f/%43lient/%7E%2d%5F%2E%39", "/o/Client/~-_.9");
    }

    #[test]
    fn other_escapes_are_forwarded_unchanged_and_decoded_once_for_matching() {
        forwards("/users/%40me", "/users/%40me");
        matches_as("/users/%40me", "/users/@me");
        forwards("/a%3a%3A%3f%c3%A9", "/a%3a%3A%3f%c3%A9");
        matches_as("/a%3a%3A%3f%c3%A9", "/a::?é");
        matches_as("/a%ff", b"/a\xff");
    }

    #[test]
    fn a_double_encoding_is_decoded_once() {
        forwards("/%252e%252e/a", "/%252e%252e/a");
        matches_as("/%252e%252e/a", "/%2e%2e/a");
        matches_as("/a%252Fb", "/a%2Fb");
        matches_as("/%2500", "/%00");
    }

    #[test]
    fn dot_segments_are_removed_and_never_lead_above_the_root() {
        for (raw, expected) in [
            ("/./a", "/a"),
            ("/a/../b", "/b"),
            ("/a/b/../../c", "/c"),
            ("/..", "/"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/b", "/b"),
            ("/a/%2e/b", "/a/b"),
            ("/.../a", "/.../a"),
            ("/a/..b", "/a/..b"),
            ("/a/b;x/../c", "/a/c"),
            ("/a/..;/c", "/a/..;/c"),
        ] {
            forwards(raw, expected);
        }
    }

    #[test]
    fn slashes_are_merged_after_dots_are_removed() {
        for (raw, expected) in [
            ("//", "/"),
            ("///a//b///", "/a/b/"),
            ("/a//../b", "/a/b"),
            ("/a/.//./b", "/a/b"),
            ("//./..//a", "/a"),
        ] {
            forwards(raw, expected);
        }
    }

    #[test]
    fn a_trailing_slash_and_path_parameters_are_unchanged() {
        forwards("/a/", "/a/");
        forwards("/a;x=1/b;y", "/a;x=1/b;y");
    }

    #[test]
    fn encoded_slashes_backslashes_and_nul_are_rejected() {
        is_rejected("/a%2Fb", PathError::EncodedSlash);
        is_rejected("/a%2fb", PathError::EncodedSlash);
        is_rejected("/a\\b", PathError::Backslash);
        is_rejected("/a%5Cb", PathError::Backslash);
        is_rejected("/a%5cb", PathError::Backslash);
        is_rejected("/a%00", PathError::Nul);
        is_rejected("/a\0", PathError::Nul);
    }

    #[test]
    fn malformed_escapes_are_rejected() {
        for raw in ["/%", "/%4", "/%4g", "/%g4", "/a%%41", "/%+1", "/% 1", "/%é"] {
            is_rejected(raw, PathError::MalformedEscape);
        }
    }

    #[test]
    fn a_path_without_a_leading_slash_is_rejected() {
        for raw in ["", "*", "a/b", "%2Fa", "../a"] {
            is_rejected(raw, PathError::NotAbsolute);
        }
    }

    #[test]
    fn an_encoded_newline_has_no_special_meaning() {
        forwards("/o/client%0A/register", "/o/client%0A/register");
        matches_as("/o/client%0d%0A/register", "/o/client\r\n/register");
    }

    #[test]
    fn an_encoded_question_mark_is_part_of_the_path() {
        matches_as("/other%3F/o/client/register", "/other?/o/client/register");
    }

    /// Returns the path as a lenient upstream could interpret it. Such an upstream decodes all escapes, treats a
    /// backslash as a slash, and removes empty and dot segments. This function uses none of the code under test.
    fn lenient_upstream(path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = path.as_bytes();
        while let [first, after @ ..] = rest {
            rest = after;
            let hex = after.get(..2).and_then(|hex| str::from_utf8(hex).ok());
            let octet = match hex.map(|hex| u8::from_str_radix(hex, 16)) {
                Some(Ok(octet)) if *first == b'%' => {
                    rest = &after[2..];
                    octet
                }
                _ => *first,
            };
            bytes.push(if octet == b'\\' { b'/' } else { octet });
        }
        let mut segments: Vec<&[u8]> = Vec::new();
        for segment in bytes.split(|&byte| byte == b'/') {
            match segment {
                b"" | b"." => {}
                b".." => _ = segments.pop(),
                other => segments.push(other),
            }
        }
        let mut clean = Vec::new();
        for segment in segments {
            clean.push(b'/');
            clean.extend_from_slice(segment);
        }
        clean
    }

    const THROTTLED: &str = "/o/client/register";

    /// Returns many variants of the path `THROTTLED`. In each variant, one character is encoded or one slash is
    /// replaced by another sequence, and an ending is appended to the path.
    fn variants() -> Vec<String> {
        let characters = THROTTLED.char_indices().flat_map(|(at, character)| {
            let code = u32::from(character);
            let (before, after) = (&THROTTLED[..at], &THROTTLED[at + 1..]);
            [
                format!("%{code:02x}"),
                format!("%{code:02X}"),
                format!("%25{code:02x}"),
                format!("%2525{code:02x}"),
                format!("%u00{code:02x}"),
                format!("%{code:x}%00"),
            ]
            .map(|spelling| format!("{before}{spelling}{after}"))
        });
        let slashes = [
            "//",
            "///",
            "/./",
            "/%2e/",
            "/x/../",
            "/x/%2e%2e/",
            "/x/.%2E/",
            "/x//../",
            "/x/y/../../",
            "/%2e%2e/",
            "%2f",
            "%2F",
            "/%2f",
            "\\",
            "%5c",
            "%5C",
            "/%5c..%5c",
            "%252f",
            "/;/",
            "/;x/",
            "/..;/",
            "/.;/",
            "/%09/",
            "/%20/",
            "/%0a/",
            "/%00/",
            "/x/%252e%252e/",
            "/.%00/",
            "/.../",
            "%c0%af",
            "%ef%bc%8f",
            "/%c0%ae%c0%ae/",
        ];
        let at_slashes = slashes.into_iter().flat_map(|slash| {
            THROTTLED
                .match_indices('/')
                .map(move |(at, _)| format!("{}{slash}{}", &THROTTLED[..at], &THROTTLED[at + 1..]))
        });
        let endings = [
            "",
            "/",
            "/.",
            "/..",
            "//",
            "/%2e",
            "/x/..",
            "/%2e%2e/register",
            "%3f",
            "%23",
            ";x",
            "%20",
            "%00",
        ];
        let single: Vec<String> = characters.chain(at_slashes).collect();
        let doubled = single
            .iter()
            .flat_map(|variant| endings.map(|ending| format!("{variant}{ending}")));
        doubled.collect()
    }

    #[test]
    fn a_spelling_matches_the_throttled_route_exactly_if_upstream_serves_the_throttled_path() {
        let variants = variants();
        assert!(variants.len() >= 500, "only {} variants", variants.len());
        let (mut rejected, mut throttled, mut elsewhere) = (0, 0, 0);
        for raw in &variants {
            let Ok(path) = normalise(raw) else {
                rejected += 1;
                continue;
            };
            let matched = path.matching().starts_with(THROTTLED.as_bytes());
            let reached = lenient_upstream(path.forward()).starts_with(THROTTLED.as_bytes());
            assert_eq!(
                matched,
                reached,
                "{raw} is forwarded as {} and matched as {}",
                path.forward(),
                path.matching().escape_ascii()
            );
            *(if matched {
                &mut throttled
            } else {
                &mut elsewhere
            }) += 1;
        }
        assert!(
            rejected > 50 && throttled > 50 && elsewhere > 50,
            "one-sided: {rejected} rejected, {throttled} throttled, {elsewhere} elsewhere"
        );
    }

    /// Generates paths from characters and sequences that have a special meaning in URIs.
    fn some_path() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/", "//", ".", "..", "a", "b", "%2e", "%2E", "%2f", "%5c", "\\", "%00", "%", "%4",
            "%41", "%40", "%25", "2e", "%0a", "%ff", ";", "~", "é", ":",
        ]);
        prop::collection::vec(piece, 0..24).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #[test]
        fn normalising_twice_changes_nothing(raw in prop_oneof![some_path(), "/\\PC*"]) {
            if let Ok(once) = normalise(&raw) {
                let twice = normalise(once.forward()).unwrap();
                prop_assert_eq!(twice.forward(), once.forward());
                prop_assert_eq!(twice.matching(), once.matching());
            }
        }

        #[test]
        fn a_lenient_upstream_interprets_the_forwarded_path_as_it_was_matched(raw in some_path()) {
            if let Ok(path) = normalise(&raw) {
                let matched = path.matching();
                let matched = matched.strip_suffix(b"/").unwrap_or(matched);
                prop_assert_eq!(lenient_upstream(path.forward()), matched);
            }
        }

        #[test]
        fn an_arbitrary_path_is_rejected_or_has_a_normal_form(
            raw in prop_oneof![some_path(), any::<String>()],
            slash in "/?",
        ) {
            let raw = format!("{slash}{raw}");
            match normalise(&raw) {
                Ok(path) => {
                    let forwarded = path.forward();
                    prop_assert!(raw.starts_with('/') && forwarded.starts_with('/'), "{}", forwarded);
                    prop_assert!(!forwarded.contains("//"), "{}", forwarded);
                    prop_assert!(!forwarded.split('/').any(|part| part == "." || part == ".."), "{}", forwarded);
                    prop_assert!(!path.matching().contains(&0), "{}", forwarded);
                }
                Err(PathError::NotAbsolute) => prop_assert!(!raw.starts_with('/')),
                Err(_) => prop_assert!(raw.contains(['%', '\\', '\0']), "{}", raw),
            }
        }
    }
}
