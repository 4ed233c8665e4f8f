//! The set of paths a route's patterns match, to be compared with another route's.
//!
//! A language is a DFA over the bytes of a path, read from its leading slash to its end. Patterns are
//! open at the end, so a match once made can not be lost: acceptance absorbs. regex-automata reports a
//! match one byte late, with the end of input counted as a byte, which is what makes `$` and `\b` come
//! out right: a path is accepted where its last step, the one over its end, is.

use std::collections::{HashSet, VecDeque};

use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;

use super::pattern;

/// Every path begins with it, so nothing is said about those that do not.
const ROOT: u8 = b'/';

/// The largest automaton that is reasoned about, in bytes; beyond it nothing can be proved.
const SIZE_LIMIT: usize = 512 * 1024;

/// The paths matched by any of some patterns.
pub(super) struct Language {
    dfa: dense::DFA<Vec<u32>>,
    /// After the leading slash.
    root: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// The path is in, whatever follows.
    Accepted,
    Reading(StateID),
}

impl Language {
    /// `None` where it is too large to reason about, or beyond a DFA.
    pub(super) fn of(patterns: &[String]) -> Option<Self> {
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(SIZE_LIMIT))
            .determinize_size_limit(Some(SIZE_LIMIT));
        let dfa = dense::Builder::new()
            .configure(config)
            .syntax(pattern::syntax())
            .thompson(pattern::thompson().nfa_size_limit(Some(SIZE_LIMIT)))
            .build_many(patterns)
            .ok()?;
        let start = dfa
            .start_state(&start::Config::new().anchored(Anchored::Yes))
            .ok()?;
        let mut language = Self {
            root: State::Reading(start),
            dfa,
        };
        language.root = language.after(language.root, ROOT);
        Some(language)
    }

    /// Whether it has this path.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        let Some((&ROOT, below)) = path.split_first() else {
            return false;
        };
        let mut state = self.root;
        for &byte in below {
            if state == State::Accepted || self.is_dead(state) {
                break;
            }
            state = self.after(state, byte);
        }
        self.accepts_at_end(state)
    }

    /// One of its shortest paths; `None` where it has none.
    pub(super) fn shortest(&self) -> Option<Vec<u8>> {
        struct Step {
            state: State,
            /// Where this step came from, and over which byte.
            from: Option<(usize, u8)>,
        }
        let alphabet: Vec<u8> = self.alphabet_with(self);
        let mut seen = HashSet::from([self.root]);
        let mut steps = vec![Step {
            state: self.root,
            from: None,
        }];
        let mut at = 0;
        while let Some(&Step { state, .. }) = steps.get(at) {
            if self.accepts_at_end(state) {
                let back = std::iter::successors(steps[at].from, |&(before, _)| steps[before].from);
                let mut path: Vec<u8> = back.map(|(_, byte)| byte).collect();
                path.push(ROOT);
                path.reverse();
                return Some(path);
            }
            for &byte in &alphabet {
                let next = self.after(state, byte);
                if !self.is_dead(next) && seen.insert(next) {
                    steps.push(Step {
                        state: next,
                        from: Some((at, byte)),
                    });
                }
            }
            at += 1;
        }
        None
    }

    /// Whether every path it has is one of `other`'s, as far as that shows within `budget` pairs of
    /// states; what is used is taken off it.
    pub(super) fn is_within(&self, other: &Self, budget: &mut usize) -> bool {
        let alphabet = self.alphabet_with(other);
        let root = (self.root, other.root);
        let mut seen = HashSet::from([root]);
        let mut open = VecDeque::from([root]);
        while let Some((mine, theirs)) = open.pop_front() {
            if theirs == State::Accepted || self.is_dead(mine) {
                continue;
            }
            if self.accepts_at_end(mine) && !other.accepts_at_end(theirs) {
                return false;
            }
            let Some(left) = budget.checked_sub(1) else {
                return false;
            };
            *budget = left;
            for &byte in &alphabet {
                let next = (self.after(mine, byte), other.after(theirs, byte));
                if seen.insert(next) {
                    open.push_back(next);
                }
            }
        }
        true
    }

    /// Bytes enough to take every step either language can tell apart.
    fn alphabet_with(&self, other: &Self) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
        let (mine, theirs) = (self.dfa.byte_classes(), other.dfa.byte_classes());
        bytes.dedup_by_key(|byte| (mine.get(*byte), theirs.get(*byte)));
        bytes
    }

    fn after(&self, state: State, byte: u8) -> State {
        match state {
            State::Accepted => State::Accepted,
            State::Reading(id) => self.entered(self.dfa.next_state(id, byte)),
        }
    }

    fn accepts_at_end(&self, state: State) -> bool {
        match state {
            State::Accepted => true,
            State::Reading(id) => self.entered(self.dfa.next_eoi_state(id)) == State::Accepted,
        }
    }

    fn entered(&self, id: StateID) -> State {
        if self.dfa.is_match_state(id) {
            State::Accepted
        } else {
            State::Reading(id)
        }
    }

    fn is_dead(&self, state: State) -> bool {
        matches!(state, State::Reading(id) if self.dfa.is_dead_state(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language(patterns: &[&str]) -> Language {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        Language::of(&patterns).unwrap()
    }

    fn shortest(pattern: &str) -> Option<String> {
        language(&[pattern])
            .shortest()
            .map(|path| path.escape_ascii().to_string())
    }

    #[track_caller]
    fn within(inner: &[&str], outer: &[&str], expected: bool) {
        let found = language(inner).is_within(&language(outer), &mut 10_000);
        assert_eq!(found, expected, "{inner:?} within {outer:?}");
    }

    #[test]
    fn a_shortest_path_is_found() {
        assert_eq!(shortest(""), Some("/".to_owned()));
        assert_eq!(shortest("/a(bc|d)e$"), Some("/ade".to_owned()));
        assert_eq!(
            shortest("/a.{3}b").map(|path| path.len()),
            Some("/a\\x00\\x00\\x00b".len())
        );
        assert_eq!(shortest(r"/user\b"), Some("/user".to_owned()));
    }

    #[test]
    fn a_pattern_that_matches_no_path_has_no_shortest_one() {
        assert_eq!(shortest("api"), None);
        assert_eq!(shortest("/a$b"), None);
        assert_eq!(shortest(r"/a\bb"), None);
    }

    #[test]
    fn a_language_has_what_its_pattern_matches() {
        let users = language(&[r"/users/\d+$", "/all"]);
        for (path, expected) in [
            ("/users/1", true),
            ("/users/12", true),
            ("/users/12/", false),
            ("/users/", false),
            ("/allies", true),
            ("/al", false),
            ("users/1", false),
            ("", false),
        ] {
            assert_eq!(users.has(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn inclusion_is_decided_over_whole_paths() {
        within(&["/api/v2/"], &["/api/"], true);
        within(&["/api/"], &["/api/v2/"], false);
        within(&["/a$"], &["/a"], true);
        within(&["/a"], &["/a$"], false);
        within(&["/a$", "/a."], &["/a"], true);
        within(&["/a"], &["/a$", "/a."], true);
        within(&["/a"], &["/a$", "/a[^b]"], false);
        within(&[r"/user\b"], &["/user"], true);
        within(&["/user"], &[r"/user\b"], false);
        within(&["/user/"], &[r"/user\b"], true);
        within(&["/x"], &[""], true);
        within(&[""], &["/"], true);
        within(&["/.+"], &["/."], true);
        within(&["/(?-s:.+)$"], &["/[^\n]"], true);
    }

    #[test]
    fn what_needs_more_than_the_budget_is_not_proved() {
        let long = format!("/{}", "a".repeat(100));
        let (inner, outer) = (language(&[&long]), language(&[&long]));
        assert!(inner.is_within(&outer, &mut 200));
        assert!(!inner.is_within(&outer, &mut 50));
    }
}
