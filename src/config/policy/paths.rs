//! `path` of a route: reports patterns that are invalid, that no request can match, or that match other paths than
//! their author probably expects.
//!
//! A pattern is a regular expression, but it looks like a path. So a common mistake is a pattern in the syntax of
//! another program: `/users/:id`, `/items/<id>` or `/v2/*`. Such a pattern is often valid and means something else. The
//! help says how this is written as a regular expression, but not the complete pattern, which would require to guess
//! what the author means.

use std::ops::Range;

use super::super::located::Located;
use super::super::problem::Findings;
use crate::request::route::{RouteMatch, Unmatchable, check_matchable, check_pattern};

struct Mistake {
    /// Part of the pattern that is wrong.
    part: Range<usize>,
    title: String,
    help: &'static str,
}

/// Returns whether the pattern is valid.
pub(super) fn check_syntax(pattern: &Located<String>, findings: &mut Findings) -> bool {
    let Located { span, value } = pattern;
    let Err(error) = check_pattern(value) else {
        return true;
    };
    // A parameter in braces is a syntax error.
    let in_braces = segment(value).filter(|mistake| value[mistake.part.clone()].starts_with('{'));
    let (part, title, help) = match in_braces {
        Some(mistake) => (Some(mistake.part), mistake.title, mistake.help),
        None => (
            error.span(),
            format!("`path` is not a valid pattern: {error}"),
            "write a regular expression for the path, such as \"/api/v2/\" or \"/users/[0-9]+$\"",
        ),
    };
    let part = part.map(|part| findings.sources.inside(span, value, part));
    findings.error(&part.unwrap_or_else(|| span.clone()), title, help);
    false
}

/// `patterns` are those of `route`, with their locations.
pub(super) fn check_meaning(
    patterns: &[&Located<String>],
    route: &RouteMatch,
    findings: &mut Findings,
) {
    for Located { span, value } in patterns {
        let unmatchable = check_matchable(value, route);
        let probable = probable_mistake(value);
        let Some(mistake) = probable.or_else(|| Some(unreachable(value, unmatchable.as_ref()?)))
        else {
            continue;
        };
        let part = findings.sources.inside(span, value, mistake.part);
        if matches!(unmatchable, Some(Unmatchable::NoPath)) {
            findings.error(&part, mistake.title, mistake.help);
        } else {
            findings.warning(&part, mistake.title, mistake.help);
        }
    }
}

/// Also finds mistakes in patterns that requests can match.
fn probable_mistake(pattern: &str) -> Option<Mistake> {
    origin(pattern)
        .or_else(|| control_character(pattern))
        .or_else(|| segment(pattern))
        .or_else(|| query(pattern))
}

fn origin(pattern: &str) -> Option<Mistake> {
    let host = pattern.find("://")? + "://".len();
    let end = pattern[host..]
        .find('/')
        .map_or(pattern.len(), |at| host + at);
    pattern.starts_with("http").then(|| Mistake {
        part: 0..end,
        title:
            "`path` contains a scheme and a host, but a route matches only the path of a request"
                .into(),
        help: "write only the path, such as \"/v1\"",
    })
}

fn control_character(pattern: &str) -> Option<Mistake> {
    let (at, character) = pattern.char_indices().find(|(_, c)| c.is_ascii_control())?;
    Some(Mistake {
        part: at..at + 1,
        title: format!(
            "`path` contains the control character U+{:04X}: in double quotes, `\\` starts an escape of TOML",
            u32::from(character)
        ),
        help: r"write a regular expression in single quotes, such as '/users\b'",
    })
}

fn segment(pattern: &str) -> Option<Mistake> {
    let mut end = 0;
    pattern.split('/').find_map(|segment| {
        let start = end;
        end = start + segment.len() + 1;
        let is_last = end > pattern.len();
        let text = segment.strip_suffix('$').unwrap_or(segment);
        let (title, help) = match text {
            _ if start == 0 => return None,
            "*" | "**" => (
                "`path` is a regular expression, in which `*` repeats the character before it, here the slash".into(),
                "remove `*` at the end, because a pattern matches all paths that start with it; \
                 elsewhere, write `[^/]+` for one segment",
            ),
            ".." => (
                "`path` is a regular expression, in which `..` matches any two characters, and not the parent directory"
                    .into(),
                "write the path without `..`, as servers read it",
            ),
            "." if !is_last => (
                "`path` is a regular expression, in which `.` matches any character, and not the current directory"
                    .into(),
                "write the path without `/.`, as servers read it",
            ),
            _ if is_parameter(text) => (
                format!("`path` is a regular expression, in which `{text}` is not a parameter"),
                "write `[^/]+` for one segment with any text, as in \"/users/[^/]+\"",
            ),
            _ => return None,
        };
        Some(Mistake {
            part: start..start + text.len(),
            title,
            help,
        })
    })
}

/// A number in braces is a repetition.
fn is_parameter(segment: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let enclosed = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    if let Some(name) = segment.strip_prefix(':') {
        let rest = name.trim_start_matches(is_name);
        return rest.len() < name.len()
            && (rest.is_empty() || rest.starts_with(['?', '*', '+', '(', '.']));
    }
    let name = enclosed('<', '>')
        .or(enclosed('{', '}'))
        .unwrap_or_default();
    name.starts_with(|c: char| c.is_ascii_alphabetic() || "_*".contains(c))
        && !name.contains(['{', '}'])
}

/// A query is a question mark that a parameter such as `q=` follows.
fn query(pattern: &str) -> Option<Mistake> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let mut marks = pattern.match_indices('?').map(|(at, _)| at);
    let start = marks.find(|at| {
        let after = &pattern[at + 1..];
        let rest = after.trim_start_matches(is_name);
        rest.len() < after.len() && rest.starts_with('=')
    })?;
    Some(Mistake {
        part: start..pattern.len(),
        title: "`path` contains a query, but a route matches only the path of a request".into(),
        help: "remove the query: a route cannot depend on it",
    })
}

fn unreachable(pattern: &str, reason: &Unmatchable) -> Mistake {
    let whole = 0..pattern.len();
    match reason {
        Unmatchable::NoPath => no_path(pattern),
        Unmatchable::Rejected { path } => match escape(pattern) {
            Some(part) => Mistake {
                title: format!(
                    "no request can match `{pattern}`: escapes such as `{}` are decoded before a path is matched",
                    &pattern[part.clone()]
                ),
                part,
                help: "write the decoded character, such as `@` for `%40`",
            },
            None => Mistake {
                title: format!(
                    "no request can match `{pattern}`: servers can read the path `{path}` as another path, so the \
                     gateway rejects it"
                ),
                part: whole,
                help: "write the path as servers read it, such as \"/x\" for \"//x\"; or set `ambiguous_paths = \
                       \"allow\"` in this route",
            },
        },
    }
}

fn no_path(pattern: &str) -> Mistake {
    let inner_dollar = pattern.strip_suffix('$').unwrap_or(pattern).find('$');
    let (part, reason, help) = match inner_dollar {
        _ if !pattern.starts_with(['/', '^', '(', '[', '.']) => (
            0..pattern.len(),
            "the path of a request starts with `/`",
            "write `/` at the start of the pattern, and methods in `methods`",
        ),
        Some(at) => (
            at..at + 1,
            "`$` matches only the end of a path",
            r"write `\$` in single quotes for a dollar sign, as in '/a\$b'",
        ),
        None => (
            0..pattern.len(),
            "no path matches this regular expression",
            "write a regular expression for the path, such as \"/api/v2/\" or \"/users/[0-9]+$\"",
        ),
    };
    Mistake {
        part,
        title: format!("no request can match `{pattern}`: {reason}"),
        help,
    }
}

/// Escapes of slashes are part of a path.
fn escape(pattern: &str) -> Option<Range<usize>> {
    let mut marks = pattern.match_indices('%');
    marks.find_map(|(at, _)| {
        let octet = u8::from_str_radix(pattern.get(at + 1..at + 3)?, 16).ok()?;
        (!matches!(octet, b'/' | b'\\')).then_some(at..at + 3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_in_the_syntax_of_other_programs_are_reported() {
        for (pattern, part) in [
            ("/users/:id", ":id"),
            ("/users/:id/orders/:order$", ":id"),
            ("/users/:id.json", ":id.json"),
            (r"/users/:id(\d+)", r":id(\d+)"),
            ("/items/<id>", "<id>"),
            ("/items/<int:id>/x", "<int:id>"),
            ("/users/{id}", "{id}"),
            ("/files/{*rest}", "{*rest}"),
            ("/v2/*", "*"),
            ("/v2/**", "**"),
            ("/a/*/b", "*"),
            ("/a/../b", ".."),
            ("/a/./b", "."),
            ("/search?q=.*", "?q=.*"),
            ("https://api.example/v1", "https://api.example"),
            ("/users\u{8}", "\u{8}"),
        ] {
            let mistake = probable_mistake(pattern).expect(pattern);
            assert_eq!(&pattern[mistake.part], part);
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
            "/a/.*",
            "/a/.",
            "/a?b",
            "/[^/]{2}/",
            "/user@host",
        ] {
            let mistake = probable_mistake(pattern).map(|mistake| mistake.title);
            assert_eq!(mistake, None, "{pattern}");
        }
    }
}
