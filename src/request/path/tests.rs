use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

#[track_caller]
fn forwards(raw: &str, expected: &str) {
    let path = read(raw, None).unwrap_or_else(|error| panic!("{raw}: {error}"));
    assert_eq!(path.forwarded(), expected, "{raw}");
    assert_eq!(path.rewritten().is_some(), raw != expected, "{raw}");
}

#[track_caller]
fn forwards_query(raw: &str, expected: &str) {
    let path = read("/", Some(raw)).unwrap();
    let unchanged = || format!("/?{raw}");
    let target = path.rewritten().unwrap_or_else(unchanged);
    assert_eq!(target, format!("/?{expected}"), "{raw}");
    assert_eq!(path.rewritten().is_some(), raw != expected, "{raw}");
}

#[track_caller]
fn has_literal(raw: &str, expected: impl AsRef<[u8]>) {
    let path = read(raw, None).unwrap_or_else(|error| panic!("{raw}: {error}"));
    assert_eq!(
        path.literal().escape_ascii().to_string(),
        expected.as_ref().escape_ascii().to_string(),
        "{raw}"
    );
}

/// Returns the lenient readings, sorted.
fn lenient(raw: &str) -> Vec<String> {
    let path = read(raw, None).unwrap_or_else(|error| panic!("{raw}: {error}"));
    let readings = path
        .lenient()
        .unwrap_or_else(|error| panic!("{raw}: {error}"));
    let mut readings: Vec<_> = readings
        .iter()
        .map(|reading| reading.escape_ascii().to_string())
        .collect();
    readings.sort_unstable();
    readings
}

#[track_caller]
fn is_rejected(raw: &str, expected: PathError) {
    assert_eq!(read(raw, None), Err(expected), "{raw}");
}

#[test]
fn an_ordinary_path_is_not_copied_and_has_no_lenient_readings() {
    for path in [
        "/",
        "/a",
        "/a/",
        "/a/b.c/..d/...",
        "/o/client/register",
        "/.well-known/x",
        "/a/%40b",
        "/a/%20%C3%A9",
        "/é",
    ] {
        let read = read(path, Some("b=%20c&d[]=e")).unwrap();
        assert!(matches!(read.forwarded, Cow::Borrowed(_)), "{path}");
        assert_eq!(read.rewritten(), None, "{path}");
        assert!(lenient(path).is_empty(), "{path}");
    }
    assert!(read("/a/b", None).unwrap().is_plain);
}

#[test]
fn unreserved_octets_are_decoded_and_hexadecimal_digits_are_upper_cased() {
    forwards("/%6f/%43lient/%7E%2d%5F%2E%39", "/o/Client/~-_.9");
    forwards("/a%3a%3A%3f%c3%A9%2f%5c", "/a%3A%3A%3F%C3%A9%2F%5C");
    forwards_query("a=%6F%2f&b=%c3%a9", "a=o%2F&b=%C3%A9");
}

#[test]
fn characters_that_uris_do_not_allow_are_percent_encoded() {
    forwards(r#"/"<>{}|^`a"#, "/%22%3C%3E%7B%7D%7C%5E%60a");
    forwards_query(
        r#"query=up{job="x"}|<>^`"#,
        "query=up%7Bjob=%22x%22%7D%7C%3C%3E%5E%60",
    );
    forwards("/a\\b", "/a\\b");
}

#[test]
fn dot_segments_slashes_and_parameters_are_forwarded_unchanged() {
    for path in [
        "/a/..",
        "/a/../b",
        "/./a/.",
        "//",
        "/a//b///",
        "/a;x=1/..;/b",
        "/@scope%2Fname",
        "/api/queues/%2F/",
        "/%252e%252e/a",
        "/a\\b",
    ] {
        forwards(path, path);
    }
}

#[test]
fn a_query_is_never_rejected() {
    for query in ["%", "%zz", "%00", "a=//../;\\", "%2500"] {
        forwards_query(query, query);
    }
    // A decoded character must not complete a malformed escape.
    forwards_query("%%411&%4%31{&%c3", "%%411&%4%31%7B&%C3");
}

#[test]
fn the_literal_reading_decodes_escapes_once_except_slashes_and_backslashes() {
    has_literal("/users/%40me", "/users/@me");
    has_literal("/a%3a%3A%3f%c3%A9", "/a::?é");
    has_literal("/a%ff", b"/a\xff");
    has_literal("/@scope%2fname%5C", "/@scope%2Fname%5C");
    has_literal("/%252e%252e/a", "/%2e%2e/a");
    has_literal("/a%252Fb", "/a%2Fb");
    has_literal("/a//b/../c;x", "/a//b/../c;x");
    has_literal("/other%3F/o/client/register", "/other?/o/client/register");
    has_literal("/o/client%0d%0A/register", "/o/client\r\n/register");
    has_literal("/a{b}", "/a{b}");
}

#[test]
fn the_lenient_readings_are_the_results_of_all_sequences_of_steps() {
    for (raw, expected) in [
        ("/a//b", &["/a/b"][..]),
        ("/a/../b", &["/b"]),
        ("/a/.", &["/a/"]),
        ("/..", &["/"]),
        ("/a/../../b", &["/b"]),
        ("/a%2Fb", &["/a/b"]),
        ("/a\\b", &["/a/b"]),
        ("/a%5Cb", &["/a/b", r"/a\\b"]),
        ("/a;x/b", &["/a", "/a/b"]),
        ("/a;x", &["/a"]),
        ("/a/..;/b", &["/", "/a/..", "/a/../b", "/b"]),
        ("/a//../b", &["/a/../b", "/a/b", "/b"]),
        ("/%2541", &["/A"]),
        ("/a%252525b", &["/a%25b", "/a%b"]),
        ("/a%3Fb", &["/a"]),
        ("/a%23b", &["/a"]),
        ("//a/b", &["/a/b", "/b"]),
        ("////a/b", &["/a/b", "/b"]),
        (r"/\/a/b", &["///a/b", "/a/b", "/b"]),
        ("/a%0A", &["/a"]),
        ("/a%250A", &["/a", r"/a\n"]),
        ("/a%0Ab", &[]),
        ("/a%C0%AFb", &["/a/b", "/ab"]),
        ("/a%E0%80%AFb", &["/a/b", "/ab"]),
        ("/a%F0%80%80%AFb", &["/a/b", "/ab"]),
        ("/a%C0%80b", &["/a", r"/a\x00b", "/ab"]),
        ("/a%FFb%A0", &["/ab"]),
    ] {
        assert_eq!(lenient(raw), expected, "{raw}");
    }
}

#[test]
fn a_server_can_apply_a_step_before_it_decodes() {
    // The server removes the parameter `y` and then decodes `%3B`.
    assert_eq!(
        lenient("/a%3Bx/b;y"),
        ["/a", "/a/b", "/a;x/b"],
        "parameters before and after decoding"
    );
    assert!(lenient("/a%2Fb;x/%3Bc").contains(&"/a%2Fb/;c".to_owned()));
    // A server that never decodes is not considered.
    assert!(lenient("/users/%40me").is_empty());
}

#[test]
fn nul_is_rejected_at_any_depth_of_encoding() {
    for raw in ["/a\0", "/a%00", "/a%2500", "/a%252500b", "/%25%2530%2530"] {
        is_rejected(raw, PathError::Nul);
    }
}

#[test]
fn malformed_escapes_are_rejected_with_their_position() {
    for (raw, at) in [
        ("/%", 1),
        ("/%4", 1),
        ("/a%4g", 2),
        ("/%g4", 1),
        ("/a%%41", 2),
        ("/%+1", 1),
        ("/%41% 1", 4),
        ("/%é", 1),
        ("/%u002f", 1),
    ] {
        is_rejected(raw, PathError::MalformedEscape { at });
    }
}

#[test]
fn a_path_without_a_leading_slash_is_rejected() {
    for raw in ["", "*", "a/b", "%2Fa", "../a"] {
        is_rejected(raw, PathError::NotAbsolute);
    }
}

#[test]
fn escapes_that_are_nested_too_deeply_are_rejected() {
    let nested = |depth: usize| format!("/%{}41", "25".repeat(depth - 1));
    assert!(read(&nested(MAX_DECODINGS), None).is_ok());
    is_rejected(&nested(MAX_DECODINGS + 1), PathError::NestedEscapes);
    is_rejected(
        &format!("/%{}", "25".repeat(16_000)),
        PathError::NestedEscapes,
    );
}

#[test]
fn a_path_with_too_many_readings_is_reported() {
    let hostile = "//a;x%3Bz//..;y/%252f\\%255c..%3F/%C0%AFb/../%23c";
    assert_eq!(read(hostile, None).unwrap().lenient(), Err(TooManyReadings));
    let long = format!("/{}", "a;/..//%2525\\".repeat(2_500));
    assert_eq!(read(&long, None).unwrap().lenient(), Err(TooManyReadings));
}

#[test]
fn a_hostile_path_of_32_kib_is_read_within_a_second() {
    let started = Instant::now();
    for piece in [
        "%2525252525252541",
        "%25",
        "..;/",
        "/",
        "\\",
        "%252f..",
        "a;/..//%2525\\",
        "%C0%AF",
    ] {
        let raw = format!("/{}", piece.repeat(32 * 1024 / piece.len()));
        let _ = read(&raw, None).map(|path| path.lenient());
    }
    assert!(started.elapsed() < Duration::from_secs(1));
}

/// Generates paths from characters and sequences that have a special meaning in URIs.
fn some_path() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/", "//", ".", "..", "a", "b", "%2e", "%2E", "%2f", "%5c", "\\", "%00", "%", "%4", "%41",
        "%40", "%25", "2e", "%0a", "%ff", ";", "~", "é", ":", "{", "%3f", "%c0%af",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #[test]
    fn reading_the_forwarded_path_again_changes_nothing(
        raw in prop_oneof![some_path(), "/\\PC*"],
        query in prop_oneof![some_path(), "\\PC*"],
    ) {
        if let Ok(once) = read(&raw, Some(&query)) {
            let target = once.rewritten().unwrap_or_else(|| format!("{raw}?{query}"));
            let forwarded_query = target.strip_prefix(once.forwarded()).unwrap().strip_prefix('?');
            let twice = read(once.forwarded(), forwarded_query).unwrap();
            prop_assert_eq!(twice.forwarded(), once.forwarded());
            prop_assert_eq!(twice.rewritten(), None);
            prop_assert_eq!(twice.literal(), once.literal());
            prop_assert_eq!(twice.lenient(), once.lenient());
        }
    }

    #[test]
    fn the_forwarded_path_has_the_same_octets_as_the_received_path(raw in some_path()) {
        if let Ok(path) = read(&raw, None) {
            let decoded = |text: &str| lenient::decode(text.as_bytes()).unwrap_or(text.into());
            prop_assert_eq!(decoded(path.forwarded()), decoded(&raw));
        }
    }

    #[test]
    fn an_arbitrary_path_is_rejected_or_has_absolute_readings(
        raw in prop_oneof![some_path(), any::<String>()],
        slash in "/?",
    ) {
        let raw = format!("{slash}{raw}");
        match read(&raw, None) {
            Ok(path) => {
                prop_assert!(path.forwarded().starts_with('/'), "{}", raw);
                prop_assert!(path.literal().starts_with(b"/"), "{}", raw);
                for reading in path.lenient().unwrap_or_default() {
                    prop_assert!(reading.starts_with(b"/"), "{}", raw);
                    prop_assert!(reading != path.literal(), "{}", raw);
                }
            }
            Err(PathError::NotAbsolute) => prop_assert!(!raw.starts_with('/')),
            Err(_) => prop_assert!(raw.contains(['%', '\0']), "{}", raw),
        }
    }
}
