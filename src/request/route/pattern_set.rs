//! Finds the first of many patterns that matches a path, in one pass over the path.
//!
//! The patterns are compiled to one alternation: if several match, the earliest wins, even if its match is longer. So
//! an anchored search has to continue until no better match is possible. If it stopped where the first match ends, it
//! would return the pattern with the shortest match.
//!
//! The table of a small DFA is built in advance. A search then reads one table entry per byte. It needs no cache, lock
//! or allocation, and no path can make it slower. Many patterns with `.+` after a common prefix can need a table of
//! exponential size. For them, the lazy engine builds states when a path needs them. Its caches are pooled, and no
//! thread waits for a lock. If paths repeatedly overflow a cache, the engine simulates the NFA, in a time bounded by
//! the path length times the number of patterns.

use std::fmt;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Anchored, Input, meta};
use thiserror::Error;

use super::pattern;

/// Maximum size of a DFA table that is built in advance, in bytes.
const TABLE_LIMIT: usize = 8 * 1024 * 1024;

/// Maximum memory for building a DFA table, in bytes. It also bounds the time.
const EFFORT_LIMIT: usize = 2 * 1024 * 1024;

/// Maximum size of the lazy engine's cache per thread, in bytes. A thousand patterns with `.+` after a common prefix
/// need more than 8 MiB for typical paths. If the cache is too small, the search is a thousand times slower.
const CACHE_LIMIT: usize = 32 * 1024 * 1024;

/// Maximum compiled size of all path patterns together, in bytes.
const PATTERNS_LIMIT: usize = 32 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the path patterns of all routes need more than {limit} bytes when compiled; use simpler patterns"
)]
pub(super) struct TooLarge {
    pub(super) limit: usize,
}

/// Patterns in order of priority. Each pattern must have passed [`pattern::check_pattern`].
pub(super) enum PatternSet {
    /// A complete DFA, which was built in advance.
    Table(Box<dense::DFA<Vec<u32>>>),
    /// A DFA whose states are built when a path needs them.
    Lazy(meta::Regex),
}

impl PatternSet {
    pub(super) fn new<P: AsRef<str>>(patterns: &[P]) -> Result<Self, TooLarge> {
        Self::table(patterns).map_or_else(|| Self::lazy(patterns), Ok)
    }

    fn table<P: AsRef<str>>(patterns: &[P]) -> Option<Self> {
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(TABLE_LIMIT))
            .determinize_size_limit(Some(EFFORT_LIMIT));
        dense::Builder::new()
            .configure(config)
            .syntax(pattern::syntax())
            .thompson(pattern::thompson().nfa_size_limit(Some(PATTERNS_LIMIT)))
            .build_many(patterns)
            .ok()
            .map(|dfa| Self::Table(Box::new(dfa)))
    }

    fn lazy<P: AsRef<str>>(patterns: &[P]) -> Result<Self, TooLarge> {
        let config = meta::Config::new()
            .utf8_empty(false)
            .which_captures(WhichCaptures::Implicit)
            .auto_prefilter(false)
            .dfa(false)
            .hybrid_cache_capacity(CACHE_LIMIT)
            .nfa_size_limit(Some(PATTERNS_LIMIT));
        meta::Builder::new()
            .configure(config)
            .syntax(pattern::syntax())
            .build_many(patterns)
            .map(Self::Lazy)
            .map_err(|_| TooLarge {
                limit: PATTERNS_LIMIT,
            })
    }

    /// Returns the index of the pattern.
    pub(super) fn first_match(&self, path: &[u8]) -> Option<usize> {
        let input = Input::new(path).anchored(Anchored::Yes);
        let found = match self {
            Self::Table(dfa) => dfa
                .try_search_fwd(&input)
                .expect("an anchored search of a table without quit bytes always finishes"),
            Self::Lazy(regex) => regex.search_half(&input),
        };
        found.map(|found| found.pattern().as_usize())
    }
}

/// The size in bytes, but not the table.
impl fmt::Debug for PatternSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (engine, patterns, bytes) = match self {
            Self::Table(dfa) => ("table", dfa.pattern_len(), dfa.memory_usage()),
            Self::Lazy(regex) => ("lazy", regex.pattern_len(), regex.memory_usage()),
        };
        formatter
            .debug_struct("PatternSet")
            .field("engine", &engine)
            .field("patterns", &patterns)
            .field("bytes", &bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::nfa::thompson::pikevm::PikeVM;

    use super::*;

    fn both_engines(patterns: &[String]) -> [PatternSet; 2] {
        [
            PatternSet::table(patterns).unwrap(),
            PatternSet::lazy(patterns).unwrap(),
        ]
    }

    #[track_caller]
    fn first(patterns: &[&str], path: &[u8], expected: Option<usize>) {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        for matcher in both_engines(&patterns) {
            assert_eq!(matcher.first_match(path), expected, "{matcher:?}");
        }
    }

    #[test]
    fn the_earlier_pattern_is_found_even_if_its_match_ends_later() {
        first(&["/a.*z", "/a"], b"/a-----z", Some(0));
        first(&["/a.*z", "/a"], b"/a------", Some(1));
        first(&["/a", "/abc"], b"/abc", Some(0));
        first(&["/abc", "/ab", "/a"], b"/abd", Some(1));
        first(&["/a*?$", "/a"], b"/aaa", Some(0));
    }

    #[test]
    fn a_pattern_is_anchored_at_the_start_in_every_branch() {
        first(&["/a|/b"], b"/b", Some(0));
        first(&["/a|/b"], b"/c/b", None);
        first(&["b"], b"/b", None);
    }

    #[test]
    fn a_pattern_is_anchored_at_the_end_only_with_a_dollar_sign() {
        first(&["/api/v2/"], b"/api/v2/anything", Some(0));
        first(&["/a$"], b"/ab", None);
        first(&["/a$"], b"/a", Some(0));
        first(&["/a$"], b"/a\n", None);
    }

    #[test]
    fn a_dot_matches_any_byte() {
        for byte in 0..=u8::MAX {
            first(&["/a.c$"], &[b'/', b'a', byte, b'c'], Some(0));
        }
        first(&["/a/[^/]+/c"], b"/a/\n\xff/c", Some(0));
    }

    #[test]
    fn both_engines_match_word_boundaries() {
        first(&[r"/user\b"], b"/user/1", Some(0));
        first(&[r"/user\b"], b"/user", Some(0));
        first(&[r"/user\b"], b"/users", None);
    }

    #[test]
    fn a_unicode_word_boundary_uses_the_lazy_engine() {
        let matcher = PatternSet::new(&[r"/(?u:user\b)"]).unwrap();
        assert!(matches!(matcher, PatternSet::Lazy(_)));
        assert_eq!(matcher.first_match(b"/user/1"), Some(0));
        assert_eq!(matcher.first_match("/useré".as_bytes()), None);
        assert_eq!(matcher.first_match(b"/user\xff"), Some(0));
    }

    #[test]
    fn an_empty_set_matches_no_path() {
        first(&[], b"/", None);
    }

    #[test]
    fn a_thousand_patterns_with_literal_prefixes_use_a_table() {
        let patterns: Vec<_> = (0..1_000)
            .map(|n| format!("/service-{n}/v1/.+/items/.+"))
            .collect();
        let matcher = PatternSet::new(&patterns).unwrap();
        assert!(matches!(matcher, PatternSet::Table(_)));
        assert_eq!(matcher.first_match(b"/service-999/v1/x/items/y"), Some(999));
    }

    #[test]
    fn patterns_whose_table_is_too_large_use_the_lazy_engine() {
        let patterns: Vec<_> = (0..1_000)
            .rev()
            .map(|n| format!("/api/.+/thing-{n:03}/.+"))
            .collect();
        let matcher = PatternSet::new(&patterns).unwrap();
        assert!(matches!(matcher, PatternSet::Lazy(_)));
        assert_eq!(
            matcher.first_match(b"/api/x/thing-222/thing-333/thing-111/"),
            Some(666)
        );
        assert_eq!(matcher.first_match(b"/api/x/thing-1000/x"), None);
    }

    fn some_pattern() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/", "/", "a", "b", "ab", ".", ".*", ".+", ".*?", "a?", "a??", "(a|b)", "(?:|a)",
            "[^/]+", "[^a]", "$", r"\b", r"\B", "(ab)*", "(a|b$)", "^",
        ]);
        let branch = prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat());
        prop::collection::vec(branch, 1..3).prop_map(|branches| branches.join("|"))
    }

    fn some_path() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"//aabb\n\xff".to_vec()), 0..8)
    }

    proptest! {
        #[test]
        fn first_match_returns_the_same_pattern_as_matching_one_by_one(
            patterns in prop::collection::vec(some_pattern(), 0..8),
            paths in prop::collection::vec(some_path(), 1..20),
        ) {
            let one_by_one: Vec<PikeVM> = patterns
                .iter()
                .map(|pattern| {
                    PikeVM::builder()
                        .syntax(pattern::syntax().swap_greed(false))
                        .thompson(pattern::thompson().which_captures(WhichCaptures::Implicit))
                        .build(pattern)
                        .unwrap()
                })
                .collect();
            for matcher in both_engines(&patterns) {
                for path in &paths {
                    let input = Input::new(path).anchored(Anchored::Yes);
                    let expected = one_by_one
                        .iter()
                        .position(|regex| regex.is_match(&mut regex.create_cache(), input.clone()));
                    prop_assert_eq!(matcher.first_match(path), expected, "{:?} on {:?}", matcher, path);
                }
            }
        }
    }
}
