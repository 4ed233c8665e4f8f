//! Syntax and maximum size of the path patterns of routes.
//!
//! A pattern is a regular expression over bytes: `.` matches every byte, and `[^/]` every byte except the slash, also
//! newlines and invalid UTF-8. So `.+` matches a path with `%0A` or `%FF`. Classes such as `\w` match only ASCII,
//! unless `(?u)` enables Unicode. Look-around is restricted to `^`, `$` and word boundaries, so the time for matching
//! is linear in the length of the path.
//!
//! A short pattern such as `(a{1000}){1000}` can compile to a very large automaton, so the maximum applies to the
//! compiled size.

use std::ops::Range;

use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::syntax;
use thiserror::Error;

/// Maximum compiled size, in bytes. About 4,000 literal bytes or `[a-z0-9-]{1,1000}` fit into it.
pub(crate) const MAX_PATTERN_SIZE: usize = 128 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatternError {
    #[error("syntax error in the regular expression: {message}")]
    Syntax {
        /// One line.
        message: String,
        /// Position in bytes.
        span: Range<usize>,
    },
    #[error(
        "the regular expression needs more than {MAX_PATTERN_SIZE} bytes when compiled; use a simpler one"
    )]
    TooLarge,
    #[error("the regular expression cannot be compiled: {0}")]
    Unsupported(String),
}

impl PatternError {
    /// Position of a syntax error in the pattern, in bytes.
    pub fn span(&self) -> Option<Range<usize>> {
        match self {
            Self::Syntax { span, .. } => Some(span.clone()),
            Self::TooLarge | Self::Unsupported(_) => None,
        }
    }
}

/// Takes a time bounded by [`MAX_PATTERN_SIZE`].
pub(crate) fn check_pattern(pattern: &str) -> Result<(), PatternError> {
    let hir = syntax::parse_with(pattern, &syntax()).map_err(|error| syntax_error(&error))?;
    let limited = thompson().nfa_size_limit(Some(MAX_PATTERN_SIZE));
    match NFA::compiler().configure(limited).build_from_hir(&hir) {
        Ok(_) => Ok(()),
        Err(error) if error.size_limit().is_some() => Err(PatternError::TooLarge),
        Err(error) => Err(PatternError::Unsupported(error.to_string())),
    }
}

fn syntax_error(error: &regex_syntax::Error) -> PatternError {
    let (message, span) = match error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span()),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span()),
        other => return PatternError::Unsupported(other.to_string()),
    };
    PatternError::Syntax {
        message,
        span: span.start.offset..span.end.offset,
    }
}

/// Quantifiers are lazy, because only the existence of a match matters and not its end. So `.+` at the end of a pattern
/// reads one byte instead of the remaining path, and automata are smaller.
pub(super) fn syntax() -> syntax::Config {
    syntax::Config::new()
        .unicode(false)
        .utf8(false)
        .dot_matches_new_line(true)
        .swap_greed(true)
}

pub(super) fn thompson() -> thompson::Config {
    NFA::config()
        .utf8(false)
        .which_captures(WhichCaptures::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_patterns_are_accepted() {
        for pattern in [
            "",
            "/",
            "/o/client/(register|token|scopes|validate)",
            "/api/v1/.+/profile-requests/.+",
            "^/a$",
            r"/users/\d+\b",
            "/(?i:admin)/",
            "/é",
            "/(?u:[é-ü])",
            "/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            "/[a-z0-9-]{1,1000}",
        ] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        assert_eq!(check_pattern(&format!("/{}", "x".repeat(4_000))), Ok(()));
    }

    #[test]
    fn a_syntax_error_has_the_position_of_the_offending_text() {
        for (pattern, offending) in [
            ("/a(b", "("),
            ("/a[b", "["),
            ("/a**(", "("),
            ("/a{3,1}", "{3,1}"),
            (r"/\q", r"\q"),
            ("/(?=a)", "(?="),
            (r"/é(b)\1", r"\1"),
            (r"/\pL", r"\pL"),
        ] {
            let error = check_pattern(pattern).unwrap_err();
            let span = error.span().unwrap_or_else(|| panic!("{pattern}: no span"));
            assert_eq!(&pattern[span], offending, "{pattern}");
        }
    }

    #[test]
    fn an_error_message_has_one_line() {
        assert_eq!(
            check_pattern("/a(b").unwrap_err().to_string(),
            "syntax error in the regular expression: unclosed group"
        );
        assert_eq!(
            check_pattern(r"/\pL").unwrap_err().to_string(),
            "syntax error in the regular expression: Unicode not allowed here"
        );
        let too_large = check_pattern(r"/\w{5000}").unwrap_err().to_string();
        assert_eq!(
            too_large,
            "the regular expression needs more than 131072 bytes when compiled; use a simpler one"
        );
    }

    #[test]
    fn a_pattern_that_compiles_to_a_huge_automaton_is_rejected() {
        for pattern in [
            "(a{1000}){1000}",
            r"\w{5000}",
            "((((a{90}){90}){90}){90}){90}",
            "(?u:\\w{50})",
            "(.{1,60}){1,60}{1,60}",
            "((a{0,900}){0,900}){0,900}",
        ] {
            assert_eq!(
                check_pattern(pattern),
                Err(PatternError::TooLarge),
                "{pattern}"
            );
        }
        assert!(check_pattern(&"(".repeat(10_000)).is_err());
    }
}
