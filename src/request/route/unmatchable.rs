//! Finds path patterns that no request can match.
//!
//! Such a pattern is always a mistake, and hard to notice in operation: the route exists, but its limits never apply.
//! Either it matches no path at all, such as `/a$b`, or only paths that the gateway rejects or never sees, such as
//! `//x`: a server can read `//x` as `/x`, which this route does not match.
//!
//! A pattern of the second kind has no *plain* path, which all servers read as it is written. So the shortest path of
//! the pattern decides: if its route accepts this path, the pattern is not reported. A pattern whose DFA exceeds the
//! size limit of a [`PathSet`] is not reported either.

use std::sync::LazyLock;

use http::Method;

use super::path_set::PathSet;
use super::{Matcher, RouteMatch};
use crate::request::path;

/// Plain paths have no empty segment except the last, no `.` or `..` segment, no control character, and none of `%`,
/// `\`, `;`, `?` and `#`. A segment starts with a character other than a dot, with one dot and another character, or
/// with two dots and any character.
const PLAIN: &str = concat!(
    r"/(?:(?:[^./\x00-\x1f\x7f%\\;?#]|\.[^./\x00-\x1f\x7f%\\;?#]|\.\.[^/\x00-\x1f\x7f%\\;?#])",
    r"[^/\x00-\x1f\x7f%\\;?#]*(?:/|$))*$"
);

static PLAIN_PATHS: LazyLock<Option<PathSet>> = LazyLock::new(|| PathSet::of(&[PLAIN.to_owned()]));

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unmatchable {
    NoPath,
    Rejected {
        /// One of the shortest paths that match the pattern.
        path: String,
    },
}

/// `pattern` is one of the patterns of `route`. Returns `None` also if this cannot be decided.
pub(crate) fn check_matchable(pattern: &str, route: &RouteMatch) -> Option<Unmatchable> {
    let paths = PathSet::of(&[pattern.to_owned()])?;
    let Some(shortest) = paths.shortest() else {
        return Some(Unmatchable::NoPath);
    };
    if paths.shortest_within(PLAIN_PATHS.as_ref()?).is_some() {
        return None;
    }
    let accepted = accepts(route, &encode(&shortest))?;
    (!accepted).then(|| Unmatchable::Rejected {
        path: String::from_utf8_lossy(&shortest).into_owned(),
    })
}

/// Whether a gateway with this route only forwards the path. `None` if the patterns of the route are invalid.
fn accepts(route: &RouteMatch, path: &str) -> Option<bool> {
    let matcher = Matcher::compile(vec![(route.clone(), ())]).ok()?;
    let method = route.methods.iter().flatten().next();
    let method = method.unwrap_or(&Method::GET);
    let path = path::read(path, None);
    Some(path.is_ok_and(|path| matcher.select(method, &path).is_ok()))
}

/// The path that a client sends. `%2F` and `%5C` are the same in both.
fn encode(reading: &[u8]) -> String {
    let mut encoded = String::with_capacity(reading.len());
    let mut rest = reading;
    while let [byte, after @ ..] = rest {
        match byte {
            b'%' if after.starts_with(b"2F") || after.starts_with(b"5C") => encoded.push('%'),
            b'!'..=b'~' if !matches!(byte, b'%' | b'?' | b'#') => encoded.push(char::from(*byte)),
            _ => encoded.extend(["%", &format!("{byte:02X}")]),
        }
        rest = after;
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DOCUMENT, route};
    use super::super::{AmbiguousPaths, check_pattern};
    use super::*;

    fn check(patterns: &[&str]) -> Option<Unmatchable> {
        check_matchable(patterns[0], &route(0, &[], patterns))
    }

    #[test]
    fn a_pattern_without_a_path_is_reported() {
        for pattern in ["v1/payments", "api", "/a$b", r"/a\bb", "^v1", "$"] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
            assert_eq!(check(&[pattern]), Some(Unmatchable::NoPath), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_of_rejected_paths_is_reported() {
        for (pattern, path) in [
            ("//x", "//x"),
            ("/a//", "/a//"),
            (r"/a/\.\./b", "/a/../b"),
            (r"/a/\.$", "/a/."),
            ("/users/%40me", "/users/%40me"),
            ("/users/%2f", "/users/%2f"),
            ("/queues/%2F/", "/queues/%2F/"),
            ("/a;v=1", "/a;v=1"),
            (r"/a\\b", "/a\\b"),
            (r"/search\?q=", "/search?q="),
        ] {
            let rejected = Unmatchable::Rejected { path: path.into() };
            assert_eq!(check(&[pattern]), Some(rejected), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_requests_can_match_is_not_reported() {
        let usual = [
            "",
            "/",
            "/a/",
            "/.*",
            "^/a$",
            "/.well-known/",
            "/...",
            "/a..b",
            "/é",
            "/a b",
            "/users/@me",
            "/(?i:A)/",
            "/a/../b",
            "/users/:id",
            r"/v1/\d+$",
            "/a;?b",
            "(/a)?/b",
            "/files/(.*%2F)?x",
            ".*",
        ];
        for pattern in usual.iter().chain(&DOCUMENT) {
            assert_eq!(check(&[pattern]), None, "{pattern}");
        }
    }

    #[test]
    fn other_patterns_and_ambiguous_paths_of_the_route_are_considered() {
        assert_eq!(check(&["//x", "/"]), None);
        assert_eq!(check(&["/queues/%2F/", "/queues/"]), None);
        let mut allowing = route(0, &["POST"], &["//x"]);
        allowing.ambiguous_paths = AmbiguousPaths::Allow;
        assert_eq!(check_matchable("//x", &allowing), None);
    }
}
