//! Many spellings of a limited path: none of them is forwarded uncounted, whatever the server decodes.

use std::collections::BTreeMap;

use http::Method;
use proptest::prelude::*;
use tidegate::internals::{AmbiguousPaths, Matcher, PathMode, RouteMatch, read_path};

use super::decoders::DECODERS;
use super::servers::LIMITED;
use super::spelling_grammar::{Random, spellings};

/// Returns the name of a decoder that reads a path as the limited path.
fn reads_as_limited(path: &str) -> Option<&'static str> {
    let is_limited = |read: fn(&str) -> String| read(path).starts_with(LIMITED);
    let decoder = DECODERS.iter().find(|decoder| is_limited(decoder.read));
    decoder.map(|decoder| decoder.name)
}

#[test]
fn no_spelling_that_a_server_reads_as_the_limited_path_is_forwarded_uncounted() {
    let routes = routes();
    let mut outcomes = BTreeMap::<_, usize>::new();
    for spelling in spellings(Random::new(1), 20_000) {
        let path = spelling.target.split(['?', '#']).next().unwrap_or_default();
        if reads_as_limited(path).is_some() {
            *outcomes.entry("read as limited").or_default() += 1;
        }
        let read = read_path(path, None).ok();
        let route = read.as_ref().map(|read| routes.select(&Method::GET, read));
        let outcome = match (read, route) {
            (Some(read), Some(Ok(&"rest"))) => {
                let decoder = reads_as_limited(read.forwarded());
                assert_eq!(decoder, None, "{path} is forwarded uncounted");
                "forwarded"
            }
            (_, Some(Ok(_))) => "counted",
            _ => "rejected",
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    let is_one_sided = outcomes.values().any(|count| *count < 500);
    assert!(outcomes.len() == 4 && !is_one_sided, "{outcomes:?}");
}

/// Returns a matcher with the limited path and a route for everything else. The values are the names of the routes.
fn routes() -> Matcher<&'static str> {
    let route = |name: &'static str, pattern: &str| {
        let matches = RouteMatch {
            name: name.into(),
            patterns: vec![pattern.to_owned()],
            methods: None,
            ambiguous_paths: AmbiguousPaths::Reject,
            paths: PathMode::Compatible,
        };
        (matches, name)
    };
    let routes = vec![route("limited", LIMITED), route("rest", "/")];
    Matcher::compile(routes).expect("the patterns are valid")
}

/// Generates paths whose readings are often the limited path.
fn some_path() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/o/client/register",
        "/o",
        "/client",
        "/register",
        "o",
        "/",
        "//",
        "\\",
        "%2f",
        "%5C",
        "%252F",
        "%25",
        "2f",
        "5c",
        "/.",
        "/..",
        "..",
        ".",
        "%2e",
        "%252e",
        ";",
        ";x",
        "%3b",
        "%3F",
        "%23",
        "%c0%af",
        "%c0%ae",
        "%e0%80%af",
        "x",
        "/x",
        "%6f",
        "%256f",
        "%40",
    ]);
    prop::collection::vec(piece, 1..8).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn all_servers_agree_on_the_route_of_a_forwarded_path(raw in some_path()) {
        let routes = routes();
        let Ok(path) = read_path(&raw, None) else {
            return Ok(());
        };
        let Ok(&route) = routes.select(&Method::GET, &path) else {
            return Ok(());
        };
        for decoder in &DECODERS {
            let read = (decoder.read)(path.forwarded());
            let is_limited = read.starts_with(LIMITED);
            prop_assert_eq!(is_limited, route == "limited", "{} reads {} as {}", decoder.name, raw, read);
        }
    }
}
