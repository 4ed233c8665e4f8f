//! `path` of a route: reports patterns that are invalid, that no request can match, or that match other paths than
//! their author probably expects.
//!
//! A pattern is a regular expression, but it looks like a path. So a common mistake is a pattern in the syntax of
//! another program: `/users/:id`, `/items/<id>` or `/v2/*`. Such a pattern is often valid and means something else. The
//! remedy contains the corrected pattern if [`corrected`] finds one that is valid and that requests can match.

mod rewrite;

use std::ops::Range;

use super::super::located::Located;
use super::super::problem::Findings;
use super::super::tree::quote;
use crate::request::route::{
    AmbiguousPaths, PathMode, RouteMatch, Unmatchable, check_matchable, check_pattern,
};

use rewrite::{SegmentMeaning, control_character, escape_name, query, segments};

/// Mistake in a pattern: the part of the text that is wrong, and what is wrong with it.
struct Mistake {
    part: Range<usize>,
    title: String,
}

/// Checks the syntax of a pattern. Returns whether it is valid.
pub(super) fn check_syntax(pattern: &Located<String>, findings: &mut Findings) -> bool {
    let Located { span, value } = pattern;
    let Err(error) = check_pattern(value) else {
        return true;
    };
    // A parameter in braces is a syntax error, so it is searched here too.
    let in_braces = parameter(value).filter(|mistake| value[mistake.part.clone()].starts_with('{'));
    let (part, title) = match in_braces {
        Some(mistake) => (Some(mistake.part), mistake.title),
        None => (
            error.span(),
            format!("`path` is not a valid pattern: {error}"),
        ),
    };
    let part = part.map_or_else(
        || span.clone(),
        |part| findings.sources.inside(span, value, part),
    );
    findings.error(&part, title, remedy(value));
    false
}

/// Reports patterns of a route that no request can match, and patterns that are probably mistakes. `patterns` are those
/// of `route`, with their locations.
pub(super) fn check_meaning(
    patterns: &[&Located<String>],
    route: &RouteMatch,
    findings: &mut Findings,
) {
    for Located { span, value } in patterns {
        let unmatchable = check_matchable(value, route);
        let Some(mistake) = mistake(value, unmatchable.as_ref()) else {
            continue;
        };
        let part = findings.sources.inside(span, value, mistake.part);
        match unmatchable {
            Some(Unmatchable::NoPath) => findings.error(&part, mistake.title, remedy(value)),
            Some(Unmatchable::Rejected { .. }) if escape(value).is_none() => {
                let help = format!(
                    "{}; or set `ambiguous_paths = \"allow\"` in this route",
                    remedy(value)
                );
                findings.warning(&part, mistake.title, help)
            }
            Some(Unmatchable::Rejected { .. }) | None => {
                findings.warning(&part, mistake.title, remedy(value))
            }
        };
    }
}

/// Returns the mistake in a valid pattern; `None` if there is probably none.
fn mistake(pattern: &str, unmatchable: Option<&Unmatchable>) -> Option<Mistake> {
    let obvious = url(pattern)
        .or_else(|| control(pattern))
        .or_else(|| parameter(pattern))
        .or_else(|| wildcard(pattern))
        .or_else(|| dot_segment(pattern))
        .or_else(|| in_query(pattern));
    if obvious.is_some() {
        return obvious;
    }
    let whole = 0..pattern.len();
    match unmatchable? {
        Unmatchable::NoPath => Some(no_path(pattern)),
        Unmatchable::Rejected { path } => Some(match escape(pattern) {
            Some(part) => Mistake {
                title: format!(
                    "no request can match `{pattern}`: escapes such as `{}` are decoded before a path is matched",
                    &pattern[part.clone()]
                ),
                part,
            },
            None => Mistake {
                title: format!(
                    "no request can match `{pattern}`: servers can read the path `{path}` as another path, so the \
                     gateway rejects it"
                ),
                part: whole,
            },
        }),
    }
}

fn url(pattern: &str) -> Option<Mistake> {
    rewrite::origin_end(pattern).map(|end| Mistake {
        part: 0..end,
        title:
            "`path` contains a scheme and a host, but a route matches only the path of a request"
                .into(),
    })
}

fn control(pattern: &str) -> Option<Mistake> {
    let (part, character) = control_character(pattern)?;
    let name = match escape_name(character) {
        Some(name) => format!("`\\{name}` in double quotes is an escape of TOML"),
        None => "a path never contains it unencoded".into(),
    };
    Some(Mistake {
        title: format!(
            "`path` contains the control character U+{:04X}: {name}",
            u32::from(character)
        ),
        part,
    })
}

fn parameter(pattern: &str) -> Option<Mistake> {
    let mut segments = segments(pattern);
    let part = segments.find_map(|(part, segment)| {
        matches!(segment, SegmentMeaning::Parameter { .. }).then_some(part)
    })?;
    let text = pattern[part.clone()].trim_end_matches('$');
    Some(Mistake {
        title: format!("`path` is a regular expression, in which `{text}` is not a parameter"),
        part: part.start..part.start + text.len(),
    })
}

fn wildcard(pattern: &str) -> Option<Mistake> {
    let mut segments = segments(pattern);
    let (part, _) = segments.find(|(_, segment)| matches!(segment, SegmentMeaning::Wildcard))?;
    Some(Mistake {
        title: "`path` is a regular expression, in which `*` repeats the character before it, here the slash".into(),
        part,
    })
}

fn dot_segment(pattern: &str) -> Option<Mistake> {
    let mut segments = segments(pattern);
    let (part, _) = segments
        .find(|(_, segment)| matches!(segment, SegmentMeaning::Current | SegmentMeaning::Parent))?;
    let (text, count) = match &pattern[part.clone()] {
        text @ ".." => (text, "any two characters, and not the parent"),
        text => (text, "any character, and not the current"),
    };
    Some(Mistake {
        title: format!(
            "`path` is a regular expression, in which `{text}` matches {count} directory"
        ),
        part,
    })
}

fn in_query(pattern: &str) -> Option<Mistake> {
    query(pattern).map(|part| Mistake {
        part,
        title: "`path` contains a query, but a route matches only the path of a request".into(),
    })
}

/// Returns the position of the first percent escape that a literal path never contains.
fn escape(pattern: &str) -> Option<Range<usize>> {
    let mut escapes = rewrite::escapes(pattern);
    escapes.find_map(|(part, octet)| (!matches!(octet, b'/' | b'\\')).then_some(part))
}

fn no_path(pattern: &str) -> Mistake {
    let end = pattern.strip_suffix('$').unwrap_or(pattern).find('$');
    let (part, reason) = match end {
        _ if !pattern.starts_with(['/', '^', '(', '[', '.']) => {
            (0..pattern.len(), "the path of a request starts with `/`")
        }
        Some(at) => (at..at + 1, "`$` matches only the end of a path"),
        None => (0..pattern.len(), "no path matches this regular expression"),
    };
    Mistake {
        part,
        title: format!("no request can match `{pattern}`: {reason}"),
    }
}

/// Returns the remedy for a pattern: the corrected pattern if there is one, else examples.
fn remedy(pattern: &str) -> String {
    match corrected(pattern) {
        Some(corrected) => {
            let meaning = if corrected.contains(rewrite::ANY) {
                ", in which `[^/]+` matches one segment"
            } else if wildcard(pattern).is_some() {
                ", which matches all paths that start with it"
            } else {
                ""
            };
            format!("write {}{meaning}", quote(&corrected))
        }
        None => {
            "write a regular expression for the path, such as \"/api/v2/\" or \"/users/[0-9]+$\""
                .into()
        }
    }
}

/// Returns a pattern without the mistakes of `pattern`. Returns `None` if the result is invalid or if no request can
/// match it.
fn corrected(pattern: &str) -> Option<String> {
    let rewritten = rewrite::rewrite(pattern);
    let route = RouteMatch {
        name: "corrected".into(),
        patterns: vec![rewritten.clone()],
        methods: None,
        ambiguous_paths: AmbiguousPaths::Reject,
        paths: PathMode::Compatible,
    };
    let works = check_pattern(&rewritten).is_ok() && check_matchable(&rewritten, &route).is_none();
    (works && rewritten != pattern).then_some(rewritten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corrected_pattern_means_what_the_author_expects() {
        for (pattern, expected) in [
            ("v1/payments", "/v1/payments"),
            ("^v1/payments$", "^/v1/payments$"),
            ("/users/:id", "/users/[^/]+"),
            ("/users/:id/orders/:order$", "/users/[^/]+/orders/[^/]+$"),
            ("/items/<id>", "/items/[^/]+"),
            ("/items/<int:id>/x", "/items/[^/]+/x"),
            ("/users/{id}", "/users/[^/]+"),
            ("/users/{id}/{*rest}", "/users/[^/]+/"),
            ("/v2/*", "/v2/"),
            ("/v2/**", "/v2/"),
            ("/a/*/b", "/a/[^/]+/b"),
            ("/a$b", r"/a\$b"),
            ("//x", "/x"),
            ("/a/../b", "/b"),
            ("/a/./b", "/a/b"),
            ("/users/%40me", "/users/@me"),
            ("/a%20b", "/a b"),
            ("/a%2Eb", r"/a\.b"),
            ("/search?q=.*", "/search$"),
            ("https://api.example/v1", "/v1"),
            ("/users\u{8}", r"/users\b"),
            ("users/:id/*", "/users/[^/]+/"),
            ("/users/:id(\\d+)", "/users/(\\d+)"),
            ("/users/:id.json", "/users/[^/]+.json"),
            ("*", "/"),
            ("(v1|v2)/x", "/(v1|v2)/x"),
            ("GET /v1", "/v1"),
            (" /a", "/a"),
            ("/%C3%A9", "/é"),
        ] {
            assert_eq!(corrected(pattern).as_deref(), Some(expected), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_without_a_mistake_is_not_reported() {
        for pattern in [
            "/",
            "/o/client/(register|token|scopes|validate)",
            "/api/v1/.+/profile-requests/.+",
            "/v1/items:batchGet",
            "/(?:a|b)/",
            "/(?P<name>[a-z]+)/",
            "/[/:a]",
            "/a/*$",
            "/a/.*",
            "/a/.",
            "/a?b",
            "/[^/]{2}/",
            "/user@host",
        ] {
            let mistake = mistake(pattern, None).map(|mistake| mistake.title);
            assert_eq!(mistake, None, "{pattern}");
        }
    }
}
