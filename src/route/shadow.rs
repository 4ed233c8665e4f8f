//! Finds routes that are never reached, because an earlier route matches all their requests.
//!
//! A route after a wider one is nearly always a mistake in the order, and no test of the running gateway shows it:
//! requests get responses, under the wrong limits. What is reported is proved, by inclusion of regular languages, for
//! every path and method and against a single earlier route. Routes that only together cover a later one are not
//! reported, nor is a case whose proof would be too long: a false report would reject a correct configuration.

use super::RouteMatch;
use super::language::Language;

/// Pairs of automaton states looked at for one route, against all earlier ones.
const EFFORT: usize = 5_000;

/// A route that can never be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadowed {
    /// Index of the route that matches all requests of the other.
    pub earlier: usize,
    /// Index of the route that is never reached.
    pub later: usize,
}

/// Finds the routes that can never be reached, each with the first route that alone is the reason.
pub(crate) fn find_shadowed(routes: &[RouteMatch]) -> Vec<Shadowed> {
    let languages: Vec<Option<Language>> = routes
        .iter()
        .map(|route| Language::of(&route.patterns))
        .collect();
    let shadowed_by = |place: usize, later: &RouteMatch| {
        let language = languages[place].as_ref()?;
        let witness = language.shortest()?;
        let mut budget = EFFORT;
        let earlier = routes
            .iter()
            .zip(&languages)
            .take(place)
            .position(|(earlier, wider)| {
                // The witness avoids nearly every comparison: most routes have nothing in common.
                takes_all_methods_of(earlier, later)
                    && wider.as_ref().is_some_and(|wider| {
                        wider.has(&witness) && language.is_within(wider, &mut budget)
                    })
            });
        earlier.map(|earlier| Shadowed {
            earlier,
            later: place,
        })
    };
    routes
        .iter()
        .enumerate()
        .filter_map(|(place, later)| shadowed_by(place, later))
        .collect()
}

fn takes_all_methods_of(earlier: &RouteMatch, later: &RouteMatch) -> bool {
    match (&earlier.methods, &later.methods) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(methods)) => methods.iter().all(|method| earlier.takes(Some(method))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::super::tests::{DOCUMENT, compile, route};
    use super::*;

    /// Pairs of places: the route that shadows, the route that is shadowed.
    fn shadowed(routes: &[(&[&str], &[&str])]) -> Vec<(usize, usize)> {
        let routes: Vec<RouteMatch> = routes
            .iter()
            .enumerate()
            .map(|(place, (methods, patterns))| route(place, methods, patterns))
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
    fn a_route_below_a_wider_one_is_shadowed() {
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
    fn a_closed_pattern_shadows_only_what_is_closed() {
        assert!(shadowed_patterns(&["/a$", "/a"]).is_empty());
        assert_eq!(shadowed_patterns(&["/a", "/a$"]), [(0, 1)]);
        assert_eq!(shadowed_patterns(&["/a/?$", "/a$"]), [(0, 1)]);
    }

    #[test]
    fn methods_must_be_covered_too() {
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
    fn the_patterns_of_a_route_shadow_together_and_are_shadowed_together() {
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
    fn two_routes_that_only_together_cover_a_third_are_not_reported() {
        assert!(shadowed_patterns(&["/a/x", "/a/[^x]", "/a/."]).is_empty());
    }

    #[test]
    fn the_first_route_that_suffices_is_named() {
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
    fn as_routes_of_their_own_the_documented_endpoints_have_one_that_is_never_reached() {
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
    fn a_route_no_path_can_match_is_not_called_shadowed() {
        assert!(shadowed_patterns(&["/", "api/", "/a$b"]).is_empty());
    }

    #[test]
    fn what_is_too_large_to_reason_about_is_not_reported() {
        let wide = "/(a|b)*a(a|b){20}";
        assert!(shadowed_patterns(&[wide, wide]).is_empty());
    }

    #[test]
    fn a_thousand_routes_are_compared_quickly() {
        let mut patterns: Vec<String> = (0..990)
            .map(|n| format!("/service-{n:03}/v[12]/[^/]+/items"))
            .collect();
        patterns.extend((0..10).map(|n| format!("/.+/common-{n}/.+")));
        let mut routes: Vec<RouteMatch> = patterns
            .iter()
            .enumerate()
            .map(|(place, pattern)| route(place, &[], &[pattern]))
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
        fn a_shadowed_route_is_never_found(
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
                .map(|(place, pattern)| route(place, &[], &[pattern]))
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
