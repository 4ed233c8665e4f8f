//! Set of the paths that the patterns of a route match, comparable with that of another route.
//!
//! A set is a DFA over the bytes of a path, from the leading slash to the end. Patterns are not anchored at the end, so
//! a path that matches remains in the set when bytes are appended to it, unless a pattern ends with `$` or a word
//! boundary.
//!
//! regex-automata reports a match one byte late, because `$` and `\b` depend on the next byte. The end of the input
//! counts as a byte, so the transition for it decides whether a path is in the set.

use std::collections::{HashSet, VecDeque};

use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;

use super::pattern;

/// First byte of every path.
const ROOT: u8 = b'/';

/// Maximum size of a DFA, in bytes. Sets with a larger one are not compared.
const SIZE_LIMIT: usize = 512 * 1024;

/// Paths that at least one of several patterns matches.
pub(super) struct PathSet {
    dfa: dense::DFA<Vec<u32>>,
    /// After the leading slash.
    root: DfaState,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum DfaState {
    /// The path is in the set, regardless of the bytes that follow.
    Accepted,
    /// The following bytes decide whether the path is in the set.
    Reading(StateID),
}

impl PathSet {
    /// Returns `None` if the DFA is larger than [`SIZE_LIMIT`], or if a DFA cannot represent the patterns.
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
        let mut path_set = Self {
            root: DfaState::Reading(start),
            dfa,
        };
        path_set.root = path_set.after(path_set.root, ROOT);
        Some(path_set)
    }

    pub(super) fn contains(&self, path: &[u8]) -> bool {
        let Some((&ROOT, below)) = path.split_first() else {
            return false;
        };
        let mut state = self.root;
        for &byte in below {
            if state == DfaState::Accepted || self.is_dead(state) {
                break;
            }
            state = self.after(state, byte);
        }
        self.accepts_at_end(state)
    }

    /// `None` if the set is empty.
    pub(super) fn shortest(&self) -> Option<Vec<u8>> {
        self.shortest_within(self)
    }

    /// One of the shortest paths in both sets.
    pub(super) fn shortest_within(&self, other: &Self) -> Option<Vec<u8>> {
        struct SearchStep {
            states: (DfaState, DfaState),
            /// Index of the previous step, and the byte that leads from it to this one.
            from: Option<(usize, u8)>,
        }
        let alphabet: Vec<u8> = self.alphabet_with(other);
        let root = (self.root, other.root);
        let mut seen = HashSet::from([root]);
        let mut steps = vec![SearchStep {
            states: root,
            from: None,
        }];
        let mut at = 0;
        while let Some(&SearchStep { states, .. }) = steps.get(at) {
            let (own, others) = states;
            if self.accepts_at_end(own) && other.accepts_at_end(others) {
                let back = std::iter::successors(steps[at].from, |&(before, _)| steps[before].from);
                let mut path: Vec<u8> = back.map(|(_, byte)| byte).collect();
                path.push(ROOT);
                path.reverse();
                return Some(path);
            }
            for &byte in &alphabet {
                let next = (self.after(own, byte), other.after(others, byte));
                let is_dead = self.is_dead(next.0) || other.is_dead(next.1);
                if !is_dead && seen.insert(next) {
                    steps.push(SearchStep {
                        states: next,
                        from: Some((at, byte)),
                    });
                }
            }
            at += 1;
        }
        None
    }

    /// Subtracts the number of compared pairs of states from `budget`. False if the budget does not suffice.
    pub(super) fn is_subset_of(&self, other: &Self, budget: &mut usize) -> bool {
        let alphabet = self.alphabet_with(other);
        let root = (self.root, other.root);
        let mut seen = HashSet::from([root]);
        let mut open = VecDeque::from([root]);
        while let Some((own, others)) = open.pop_front() {
            if others == DfaState::Accepted || self.is_dead(own) {
                continue;
            }
            if self.accepts_at_end(own) && !other.accepts_at_end(others) {
                return false;
            }
            let Some(left) = budget.checked_sub(1) else {
                return false;
            };
            *budget = left;
            for &byte in &alphabet {
                let next = (self.after(own, byte), other.after(others, byte));
                if seen.insert(next) {
                    open.push_back(next);
                }
            }
        }
        true
    }

    /// One byte of each class of bytes that are equivalent in both DFAs.
    fn alphabet_with(&self, other: &Self) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
        let (own, others) = (self.dfa.byte_classes(), other.dfa.byte_classes());
        bytes.dedup_by_key(|byte| (own.get(*byte), others.get(*byte)));
        bytes
    }

    fn after(&self, state: DfaState, byte: u8) -> DfaState {
        match state {
            DfaState::Accepted => DfaState::Accepted,
            DfaState::Reading(id) => self.entered(self.dfa.next_state(id, byte)),
        }
    }

    fn accepts_at_end(&self, state: DfaState) -> bool {
        match state {
            DfaState::Accepted => true,
            DfaState::Reading(id) => {
                self.entered(self.dfa.next_eoi_state(id)) == DfaState::Accepted
            }
        }
    }

    fn entered(&self, id: StateID) -> DfaState {
        if self.dfa.is_match_state(id) {
            DfaState::Accepted
        } else {
            DfaState::Reading(id)
        }
    }

    fn is_dead(&self, state: DfaState) -> bool {
        matches!(state, DfaState::Reading(id) if self.dfa.is_dead_state(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_set(patterns: &[&str]) -> PathSet {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        PathSet::of(&patterns).unwrap()
    }

    fn shortest(pattern: &str) -> Option<String> {
        path_set(&[pattern])
            .shortest()
            .map(|path| path.escape_ascii().to_string())
    }

    #[track_caller]
    fn within(inner: &[&str], outer: &[&str], expected: bool) {
        let found = path_set(inner).is_subset_of(&path_set(outer), &mut 10_000);
        assert_eq!(found, expected, "{inner:?} within {outer:?}");
    }

    #[test]
    fn shortest_returns_a_shortest_matching_path() {
        assert_eq!(shortest(""), Some("/".to_owned()));
        assert_eq!(shortest("/a(bc|d)e$"), Some("/ade".to_owned()));
        assert_eq!(
            shortest("/a.{3}b").map(|path| path.len()),
            Some("/a\\x00\\x00\\x00b".len())
        );
        assert_eq!(shortest(r"/user\b"), Some("/user".to_owned()));
    }

    #[test]
    fn the_shortest_common_path_is_in_both_sets() {
        let common = |a: &str, b: &str| {
            let path = path_set(&[a]).shortest_within(&path_set(&[b]));
            path.map(|path| path.escape_ascii().to_string())
        };
        assert_eq!(common("/a", "/.b"), Some("/ab".to_owned()));
        assert_eq!(common("/a", "/[^a]"), None);
        assert_eq!(common("/a$", "/ab"), None);
    }

    #[test]
    fn a_pattern_that_matches_no_path_has_no_shortest_path() {
        assert_eq!(shortest("api"), None);
        assert_eq!(shortest("/a$b"), None);
        assert_eq!(shortest(r"/a\bb"), None);
    }

    #[test]
    fn a_set_contains_the_paths_that_its_patterns_match() {
        let users = path_set(&[r"/users/\d+$", "/all"]);
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
            assert_eq!(users.contains(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn a_set_is_a_subset_if_the_other_contains_all_its_paths() {
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
    fn a_comparison_that_exceeds_the_budget_is_not_a_subset() {
        let long = format!("/{}", "a".repeat(100));
        let (inner, outer) = (path_set(&[&long]), path_set(&[&long]));
        assert!(inner.is_subset_of(&outer, &mut 200));
        assert!(!inner.is_subset_of(&outer, &mut 50));
    }
}
