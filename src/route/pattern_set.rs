//! Many patterns, one pass: which is the first that matches?
//!
//! Leftmost-first semantics answer that. Patterns compile to one alternation in which an earlier branch
//! is preferred wherever both can match, and since the search is anchored, both always begin at the
//! same place: a later pattern's match is dropped as soon as an earlier one's is found, however much
//! further right that ends. This holds only for a search that runs until nothing better is possible;
//! one stopped at the earliest match would answer with whichever pattern is shortest.
//!
//! The automaton is built whole when it fits. Then a match is one load from a read-only table for each
//! byte: no cache to fill, nothing locked, nothing allocated, nothing a hostile path can make slower.
//! Patterns full of `.+` on a common prefix can need a table exponential in their number; those run on
//! the lazy engine, whose states are made as paths ask for them. Its caches are pooled: the first thread
//! to match owns one outright, the others take theirs from stacks they only ever try to lock. When
//! hostile paths keep overflowing a cache it simulates the NFA, in time bounded by path times patterns.

use std::fmt;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Anchored, Input, meta};
use thiserror::Error;

use super::pattern;

/// The largest table built ahead of time, in bytes.
const TABLE_LIMIT: usize = 8 * 1024 * 1024;

/// The most memory spent on finding out whether a table fits; it bounds the time too.
const EFFORT_LIMIT: usize = 2 * 1024 * 1024;

/// What the lazy engine may keep for each thread, in bytes. A thousand patterns with `.+` on a common prefix
/// need more than 8 MiB for everyday paths, and are a thousand times slower where they do not get it.
const CACHE_LIMIT: usize = 32 * 1024 * 1024;

/// The most bytes all patterns may take together, compiled.
const PATTERNS_LIMIT: usize = 32 * 1024 * 1024;

/// The patterns together are larger than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the patterns together are larger than {limit} bytes")]
pub(super) struct TooLarge {
    pub(super) limit: usize,
}

/// Patterns in order of priority, each of which is known to be right by itself.
pub(super) enum PatternSet {
    /// Built ahead of time.
    Table(Box<dense::DFA<Vec<u32>>>),
    /// Built as paths ask for it.
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

    /// The first pattern that matches at the start of the path, by its place.
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

/// The table itself is nothing to read.
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
    fn the_earlier_pattern_wins_though_its_match_ends_later() {
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
    fn a_pattern_is_open_at_the_end_unless_it_is_closed() {
        first(&["/api/v2/"], b"/api/v2/anything", Some(0));
        first(&["/a$"], b"/ab", None);
        first(&["/a$"], b"/a", Some(0));
        first(&["/a$"], b"/a\n", None);
    }

    #[test]
    fn a_dot_is_any_byte() {
        for byte in 0..=u8::MAX {
            first(&["/a.c$"], &[b'/', b'a', byte, b'c'], Some(0));
        }
        first(&["/a/[^/]+/c"], b"/a/\n\xff/c", Some(0));
    }

    #[test]
    fn word_boundaries_work_on_either_engine() {
        first(&[r"/user\b"], b"/user/1", Some(0));
        first(&[r"/user\b"], b"/user", Some(0));
        first(&[r"/user\b"], b"/users", None);
    }

    #[test]
    fn a_unicode_word_boundary_is_left_to_the_lazy_engine() {
        let matcher = PatternSet::new(&[r"/(?u:user\b)"]).unwrap();
        assert!(matches!(matcher, PatternSet::Lazy(_)));
        assert_eq!(matcher.first_match(b"/user/1"), Some(0));
        assert_eq!(matcher.first_match("/useré".as_bytes()), None);
        assert_eq!(matcher.first_match(b"/user\xff"), Some(0));
    }

    #[test]
    fn no_patterns_match_nothing() {
        first(&[], b"/", None);
    }

    #[test]
    fn a_thousand_literal_prefixes_fit_a_table() {
        let patterns: Vec<_> = (0..1_000)
            .map(|n| format!("/service-{n}/v1/.+/items/.+"))
            .collect();
        let matcher = PatternSet::new(&patterns).unwrap();
        assert!(matches!(matcher, PatternSet::Table(_)));
        assert_eq!(matcher.first_match(b"/service-999/v1/x/items/y"), Some(999));
    }

    #[test]
    fn patterns_that_need_too_large_a_table_still_match() {
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
        fn the_answer_is_that_of_asking_one_pattern_after_the_other(
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
