use super::*;
use crate::request::path;

/// Path patterns of the throttled endpoints of a TV authentication platform, in the order of its documentation.
pub(super) const DOCUMENT: [&str; 21] = [
    "/o/client/register",
    "/o/client/token",
    "/o/client/scopes",
    "/o/client/validate",
    "/api/v2/",
    "/api/v1/tokens/usermetadata",
    "/api/v1/tokens/authn",
    "/api/v1/tokens/authz",
    "/api/v1/tokens/media",
    "/api/v1/config/",
    "/api/v1/checkauthn",
    "/api/v1/logout",
    "/api/v1/authorize",
    "/api/v1/preauthorize",
    "/api/v1/mediatoken",
    "/api/v1/authenticate/freepreview",
    "/api/v1/authenticate/",
    "/api/v1/.+/profile-requests/.+",
    "/api/v1/identities",
    "/reggie/v1/.+/regcode",
    "/reggie/v1/.+/regcode/.+",
];

/// Returns a route with these methods and patterns. An empty list of methods matches all methods.
pub(super) fn route(index: usize, methods: &[&str], patterns: &[&str]) -> RouteMatch {
    RouteMatch {
        name: format!("route-{index}").into(),
        patterns: patterns.iter().map(ToString::to_string).collect(),
        methods: (!methods.is_empty()).then(|| {
            methods
                .iter()
                .map(|method| method.parse().unwrap())
                .collect()
        }),
        ambiguous_paths: AmbiguousPaths::Reject,
        paths: PathMode::Compatible,
    }
}

/// Compiles routes. The value of each route is its index.
pub(super) fn compile(routes: Vec<RouteMatch>) -> Result<Matcher<usize>, RoutesError> {
    Matcher::compile(routes.into_iter().zip(0..).collect())
}

fn compiled(routes: &[(&[&str], &[&str])]) -> Matcher<usize> {
    let routes = routes
        .iter()
        .enumerate()
        .map(|(index, (methods, patterns))| route(index, methods, patterns))
        .collect();
    compile(routes).unwrap()
}

#[track_caller]
fn finds(routes: &Matcher<usize>, method: &str, path: &str, expected: Option<usize>) {
    let method: Method = method.parse().unwrap();
    let found = routes.find(&method, path.as_bytes());
    assert_eq!(found.copied(), expected, "{method} {path}");
}

#[test]
fn the_first_route_that_matches_is_found() {
    let routes = compiled(&[
        (&[], &["/api/v1/authenticate/freepreview"]),
        (&[], &["/api/v1/authenticate/"]),
        (&[], &["/api/"]),
    ]);
    finds(&routes, "GET", "/api/v1/authenticate/freepreview", Some(0));
    finds(&routes, "GET", "/api/v1/authenticate/other", Some(1));
    finds(&routes, "GET", "/api/v1", Some(2));
    finds(&routes, "GET", "/", None);
}

#[test]
fn a_route_matches_if_any_of_its_patterns_matches() {
    let routes = compiled(&[(&[], &["/a$", "/b$"]), (&[], &["/"])]);
    finds(&routes, "GET", "/b", Some(0));
    finds(&routes, "GET", "/bb", Some(1));
}

#[test]
fn a_route_does_not_match_other_methods() {
    let routes = compiled(&[
        (&["POST"], &["/a"]),
        (&["POST", "GET"], &["/a"]),
        (&["PURGE"], &["/a/b"]),
        (&[], &["/a/b"]),
    ]);
    finds(&routes, "POST", "/a/b", Some(0));
    finds(&routes, "GET", "/a/b", Some(1));
    finds(&routes, "PURGE", "/a/b", Some(2));
    finds(&routes, "DELETE", "/a/b", Some(3));
    finds(&routes, "DELETE", "/a", None);
}

#[test]
fn methods_are_case_sensitive() {
    let routes = compiled(&[(&["POST"], &["/a"])]);
    finds(&routes, "POST", "/a", Some(0));
    finds(&routes, "post", "/a", None);
    finds(&routes, "Post", "/a", None);
}

#[test]
fn methods_that_match_the_same_routes_share_one_automaton() {
    let routes = compiled(&[
        (&["GET", "HEAD"], &["/a"]),
        (&["POST"], &["/b"]),
        (&["OPTIONS", "GET", "HEAD", "POST"], &["/c"]),
    ]);
    assert_eq!(routes.compiled.by_index.len(), 4);
    let without_methods = compiled(&[(&[], &["/a"]), (&[], &["/b"])]);
    assert_eq!(without_methods.compiled.by_index.len(), 1);
    assert!(without_methods.compiled.by_method.is_empty());
}

#[test]
fn every_documented_endpoint_is_found() {
    let routes = compiled(&[(&[], &DOCUMENT)]);
    for endpoint in DOCUMENT {
        finds(&routes, "GET", &endpoint.replace(".+", "tenant"), Some(0));
    }
    finds(&routes, "GET", "/api/v2/anything/below", Some(0));
    finds(&routes, "GET", "/api/v1/tenant/profile-requests/", None);
    finds(&routes, "GET", "/v1/o/client/register", None);
    finds(&routes, "GET", "/api/v1/health", None);
}

#[test]
fn a_dot_matches_encoded_newlines_and_invalid_utf8() {
    let routes = compiled(&[(&[], &["/reggie/v1/.+/regcode"])]);
    for raw in [
        "/reggie/v1/%0A/regcode",
        "/reggie/v1/a%FF/regcode",
        "/reggie/v1/a%0d%0ab/regcode",
    ] {
        let path = path::read(raw, None).unwrap();
        assert!(routes.select(&Method::GET, &path).is_ok(), "{raw}");
    }
}

#[test]
fn other_values_share_the_compiled_patterns() {
    let routes = compiled(&[(&[], &["/a"]), (&[], &["/b"])]);
    assert_eq!(routes.len(), 2);
    assert_eq!(routes.iter().copied().collect::<Vec<_>>(), [0, 1]);
    let names = routes.map(|index| format!("route-{index}"));
    assert!(Arc::ptr_eq(&names.compiled, &routes.compiled));
    assert_eq!(names.find(&Method::GET, b"/b").unwrap(), "route-1");
}

#[test]
fn an_empty_matcher_finds_no_route() {
    let routes = compiled(&[]);
    assert!(routes.is_empty());
    finds(&routes, "GET", "/", None);
}

#[test]
fn an_invalid_pattern_is_reported_with_its_route() {
    let routes = vec![route(0, &[], &["/a"]), route(1, &[], &["/b", "/c("])];
    let error = compile(routes).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"route "route-1" has an invalid path pattern "/c(": syntax error in the regular expression: unclosed group"#
    );
}

#[test]
fn a_method_without_a_route_reports_the_methods_of_all_routes_that_match_the_path() {
    let routes = compiled(&[
        (&["POST", "GET"], &["/a"]),
        (&["PUT", "GET"], &["/a/b"]),
        (&["DELETE"], &["/c"]),
        (&[], &["/open"]),
    ]);
    let select = |path: &str| {
        let path = path::read(path, None).unwrap();
        routes.select(&Method::PATCH, &path).copied()
    };
    for (path, methods) in [
        ("/a/b", &[Method::GET, Method::POST, Method::PUT][..]),
        ("/a", &[Method::GET, Method::POST]),
        ("/c//d", &[Method::DELETE]),
    ] {
        let allowed = methods.to_vec();
        assert_eq!(select(path), Err(RouteError::MethodNotAllowed { allowed }));
    }
    assert_eq!(select("/d"), Err(RouteError::NoRoute));
    assert_eq!(select("/open"), Ok(3));
}
