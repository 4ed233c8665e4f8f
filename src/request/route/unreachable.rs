//! Finds unreachable routes. A route is unreachable if all requests that it matches also match one earlier route.
//!
//! Such a route is nearly always a mistake in the order of routes, and hard to notice in operation: requests get
//! responses, but under the rate limits of the wrong route. A false report would reject a correct configuration, so every
//! report is proved for all paths and methods. A route is not reported if only several earlier routes together match all
//! of its requests, if a DFA exceeds the size limit of a [`PathSet`], or if the comparisons exceed [`EFFORT`].

use super::RouteMatch;
use super::path_set::PathSet;

/// Maximum number of pairs of DFA states that are compared for one route, with all earlier routes together.
const EFFORT: usize = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadowed {
    /// Matches all requests that `later` matches.
    pub earlier: usize,
    pub later: usize,
}

/// Each with the first earlier route that shadows it.
pub(crate) fn find_shadowed(routes: &[RouteMatch]) -> Vec<Shadowed> {
    let path_sets: Vec<Option<PathSet>> = routes
        .iter()
        .map(|route| PathSet::of(&route.patterns))
        .collect();
    let shadowed_by = |index: usize, later: &RouteMatch| {
        let path_set = path_sets[index].as_ref()?;
        let shortest = path_set.shortest()?;
        let mut budget = EFFORT;
        let earlier = routes
            .iter()
            .zip(&path_sets)
            .take(index)
            .position(|(earlier, wider)| {
                // The sets are compared only if the earlier route matches the shortest path of the later one. Most
                // routes have no path in common.
                matches_all_methods_of(earlier, later)
                    && wider.as_ref().is_some_and(|wider| {
                        wider.contains(&shortest) && path_set.is_subset_of(wider, &mut budget)
                    })
            });
        earlier.map(|earlier| Shadowed {
            earlier,
            later: index,
        })
    };
    routes
        .iter()
        .enumerate()
        .filter_map(|(index, later)| shadowed_by(index, later))
        .collect()
}

fn matches_all_methods_of(earlier: &RouteMatch, later: &RouteMatch) -> bool {
    match (&earlier.methods, &later.methods) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(methods)) => methods
            .iter()
            .all(|method| earlier.matches_method(Some(method))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::super::tests::{DOCUMENT, compile, route};
    use super::*;

    /// Returns the unreachable routes as pairs of indexes: the route that shadows, and the route that is shadowed.
    fn shadowed(routes: &[(&[&str], &[&str])]) -> Vec<(usize, usize)> {
        let routes: Vec<RouteMatch> = routes
            .iter()
            .enumerate()
            .map(|(index, (methods, patterns))| route(index, methods, patterns))
            .collect();
        find_shadowed(&routes)
            .into_iter()
            .map(|found| (found.earlier, found.later))
            .collect()
    }

    fn shadowed_patterns(patterns: &[&str]) -> Vec<(usize, usize)> {
        let routes: Vec<(&[&str], &[&str])> = patterns
            .iter()
            .map(|pattern| (&[][..], std::slice::from_ref(pattern)))
            .collect();
        shadowed(&routes)
    }

    #[test]
    fn a_route_after_a_wider_one_is_shadowed() {
        assert_eq!(shadowed_patterns(&["/api/", "/api/v2/"]), [(0, 1)]);
        assert_eq!(shadowed_patterns(&["/api/.*", "/api/v2/"]), [(0, 1)]);
        assert_eq!(shadowed_patterns(&["/", "/a", "/b"]), [(0, 1), (0, 2)]);
        assert_eq!(shadowed_patterns(&["/a", "/a"]), [(0, 1)]);
        assert_eq!(shadowed_patterns(&["/(a|b|c)/", "/b/x"]), [(0, 1)]);
        assert_eq!(
            shadowed_patterns(&["/[a-z]+/", "/(users|items)/"]),
            [(0, 1)]
        );
    }

    #[test]
    fn a_route_before_a_wider_one_is_not_shadowed() {
        assert!(shadowed_patterns(&["/api/v2/", "/api/"]).is_empty());
        assert!(shadowed_patterns(&["/api/v2/", "/api/.*"]).is_empty());
        assert!(shadowed_patterns(&["/api/.+", "/api/"]).is_empty());
        assert!(shadowed_patterns(&["/(a|b)/", "/[abc]/"]).is_empty());
    }

    #[test]
    fn a_pattern_that_is_anchored_at_the_end_shadows_only_anchored_patterns() {
        assert!(shadowed_patterns(&["/a$", "/a"]).is_empty());
        assert_eq!(shadowed_patterns(&["/a", "/a$"]), [(0, 1)]);
        assert_eq!(shadowed_patterns(&["/a/?$", "/a$"]), [(0, 1)]);
    }

    #[test]
    fn a_route_with_methods_shadows_only_routes_with_a_subset_of_them() {
        assert!(shadowed(&[(&["GET"], &["/a"]), (&["GET", "POST"], &["/a"])]).is_empty());
        assert!(shadowed(&[(&["GET"], &["/a"]), (&[], &["/a"])]).is_empty());
        assert!(shadowed(&[(&["GET"], &["/a"]), (&["get"], &["/a"])]).is_empty());
        assert_eq!(
            shadowed(&[(&["GET", "POST"], &["/a"]), (&["GET"], &["/a"])]),
            [(0, 1)]
        );
        assert_eq!(shadowed(&[(&[], &["/a"]), (&["GET"], &["/a"])]), [(0, 1)]);
    }

    #[test]
    fn all_patterns_of_a_route_are_compared_together() {
        assert_eq!(
            shadowed(&[(&[], &["/a/x", "/a/[^x]"]), (&[], &["/a/."])]),
            [(0, 1)]
        );
        assert_eq!(
            shadowed(&[(&[], &["/a", "/b"]), (&[], &["/b/1", "/a/1"])]),
            [(0, 1)]
        );
        assert!(shadowed(&[(&[], &["/a"]), (&[], &["/a/1", "/b/1"])]).is_empty());
    }

    #[test]
    fn a_route_that_only_two_others_together_cover_is_not_reported() {
        assert!(shadowed_patterns(&["/a/x", "/a/[^x]", "/a/."]).is_empty());
    }

    #[test]
    fn the_first_route_that_shadows_is_reported() {
        assert_eq!(
            shadowed_patterns(&["/z", "/a", "/a/b", "/a/b/c"]),
            [(1, 2), (1, 3)]
        );
    }

    #[test]
    fn the_patterns_of_one_route_never_shadow_each_other() {
        assert!(shadowed(&[(&[], &DOCUMENT)]).is_empty());
    }

    #[test]
    fn the_documented_endpoints_as_separate_routes_contain_one_shadowed_route() {
        let found = shadowed_patterns(&DOCUMENT);
        let named: Vec<_> = found
            .iter()
            .map(|&(earlier, later)| (DOCUMENT[earlier], DOCUMENT[later]))
            .collect();
        assert_eq!(
            named,
            [("/reggie/v1/.+/regcode", "/reggie/v1/.+/regcode/.+")]
        );
    }

    #[test]
    fn a_route_that_matches_no_path_is_not_reported() {
        assert!(shadowed_patterns(&["/", "api/", "/a$b"]).is_empty());
    }

    #[test]
    fn a_pattern_with_a_too_large_automaton_is_not_reported() {
        let large = "/(a|b)*a(a|b){20}";
        assert!(shadowed_patterns(&[large, large]).is_empty());
    }

    #[test]
    fn a_thousand_routes_are_compared_within_ten_seconds() {
        let mut patterns: Vec<String> = (0..990)
            .map(|n| format!("/service-{n:03}/v[12]/[^/]+/items"))
            .collect();
        patterns.extend((0..10).map(|n| format!("/.+/common-{n}/.+")));
        let mut routes: Vec<RouteMatch> = patterns
            .iter()
            .enumerate()
            .map(|(index, pattern)| route(index, &[], &[pattern]))
            .collect();
        routes.push(route(1_000, &[], &["/service-500/v2/x/items/y"]));
        let started = Instant::now();
        let found = find_shadowed(&routes);
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(
            found,
            [Shadowed {
                earlier: 500,
                later: 1_000
            }]
        );
    }

    proptest! {
        #[test]
        fn no_request_matches_a_shadowed_route(
            patterns in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec!["/", "a", "b", ".", ".*", ".+", "(a|b)", "a?", "[^/]+", "$", r"\b"]),
                    0..4,
                ).prop_map(|pieces| format!("/{}", pieces.concat())),
                2..6,
            ),
            paths in prop::collection::vec("/[/ab\n]{0,6}", 1..40),
        ) {
            let routes: Vec<RouteMatch> = patterns
                .iter()
                .enumerate()
                .map(|(index, pattern)| route(index, &[], &[pattern]))
                .collect();
            let unreachable = find_shadowed(&routes);
            let routes = compile(routes).unwrap();
            for path in &paths {
                if let Some(found) = routes.find(&http::Method::GET, path.as_bytes()) {
                    prop_assert!(unreachable.iter().all(|shadowed| shadowed.later != *found), "{}", path);
                }
            }
        }
    }
}
