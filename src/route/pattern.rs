//! What a route's pattern may say.
//!
//! Regular expressions over bytes, not characters: `.` and `[^/]` take any byte, a newline and invalid
//! UTF-8 included, so no `%0A` or `%FF` slips past `.+`. Classes such as `\w` are ASCII; whoever wants
//! Unicode says `(?u)`. Look-around is limited to `^`, `$` and word boundaries: every pattern is
//! matched in time linear in the path.
//!
//! A short pattern can describe an enormous automaton (`(a{1000}){1000}`), so its size is bounded
//! compiled, not as text.

use std::ops::Range;

use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::syntax;
use thiserror::Error;

/// The most bytes one pattern may take, compiled: about 4,000 literal bytes, or `[a-z0-9-]{1,1000}`.
pub(crate) const MAX_PATTERN_SIZE: usize = 128 * 1024;

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatternError {
    /// It is no regular expression.
    #[error("{message}")]
    Syntax {
        /// What is wrong, in a line.
        message: String,
        /// Where, in bytes of the pattern.
        span: Range<usize>,
    },
    /// It is one, and too large.
    #[error("the pattern is too large: more than {MAX_PATTERN_SIZE} bytes when compiled")]
    TooLarge,
    /// It is one that can not be compiled.
    #[error("{0}")]
    Unsupported(String),
}

impl PatternError {
    /// Where in the pattern the trouble is, in bytes, if it is in one place.
    pub fn span(&self) -> Option<Range<usize>> {
        match self {
            Self::Syntax { span, .. } => Some(span.clone()),
            Self::TooLarge | Self::Unsupported(_) => None,
        }
    }
}

/// Tells whether a pattern can be used, in time bounded by [`MAX_PATTERN_SIZE`].
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

/// How every engine is to read a pattern.
///
/// Only whether a pattern matches is asked, never how far, so quantifiers are made to stop as early as
/// they can: `.+` at the end of a pattern costs one byte, not the rest of the path, and automata are smaller.
pub(super) fn syntax() -> syntax::Config {
    syntax::Config::new()
        .unicode(false)
        .utf8(false)
        .dot_matches_new_line(true)
        .swap_greed(true)
}

/// How every engine is to compile a pattern.
pub(super) fn thompson() -> thompson::Config {
    NFA::config()
        .utf8(false)
        .which_captures(WhichCaptures::None)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn usual_patterns_are_fine() {
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
    fn a_syntax_error_names_its_place() {
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
    fn an_error_is_said_in_one_line() {
        assert_eq!(
            check_pattern("/a(b").unwrap_err().to_string(),
            "unclosed group"
        );
        assert_eq!(
            check_pattern(r"/\pL").unwrap_err().to_string(),
            "Unicode not allowed here"
        );
        let too_large = check_pattern(r"/\w{5000}").unwrap_err().to_string();
        assert_eq!(
            too_large,
            "the pattern is too large: more than 131072 bytes when compiled"
        );
    }

    #[test]
    fn a_monster_is_refused_at_once() {
        let started = Instant::now();
        for monster in [
            "(a{1000}){1000}",
            r"\w{5000}",
            "((((a{90}){90}){90}){90}){90}",
            "(?u:\\w{50})",
            "(.{1,60}){1,60}{1,60}",
            "((a{0,900}){0,900}){0,900}",
        ] {
            assert_eq!(
                check_pattern(monster),
                Err(PatternError::TooLarge),
                "{monster}"
            );
        }
        assert!(check_pattern(&"(".repeat(10_000)).is_err());
        assert!(started.elapsed() < Duration::from_secs(2));
    }
}
