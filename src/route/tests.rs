use super::*;
use crate::path;

/// The throttled endpoints of a TV-authentication platform, in the order its document lists them.
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

/// A route at this place; no methods for all of them.
pub(super) fn route(place: usize, methods: &[&str], patterns: &[&str]) -> Route {
    Route {
        id: RouteId(place),
        name: format!("route-{place}").into(),
        patterns: patterns.iter().map(ToString::to_string).collect(),
        methods: (!methods.is_empty()).then(|| {
            methods
                .iter()
                .map(|method| method.parse().unwrap())
                .collect()
        }),
        upstream: UpstreamId(0),
        limits: Vec::new(),
        cost: NonZeroU32::MIN,
        idempotency: None,
        access_log: false,
    }
}

fn compile(routes: &[(&[&str], &[&str])]) -> Routes {
    let routes = routes
        .iter()
        .enumerate()
        .map(|(place, (methods, patterns))| route(place, methods, patterns))
        .collect();
    Routes::compile(routes).unwrap()
}

#[track_caller]
fn finds(routes: &Routes, method: &str, path: &str, expected: Option<usize>) {
    let method: Method = method.parse().unwrap();
    let found = routes
        .find(&method, path.as_bytes())
        .map(|route| route.id.0);
    assert_eq!(found, expected, "{method} {path}");
}

#[test]
fn the_first_match_wins() {
    let routes = compile(&[
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
fn any_pattern_of_a_route_will_do() {
    let routes = compile(&[(&[], &["/a$", "/b$"]), (&[], &["/"])]);
    finds(&routes, "GET", "/b", Some(0));
    finds(&routes, "GET", "/bb", Some(1));
}

#[test]
fn a_route_is_passed_over_for_methods_it_does_not_take() {
    let routes = compile(&[
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
    let routes = compile(&[(&["POST"], &["/a"])]);
    finds(&routes, "POST", "/a", Some(0));
    finds(&routes, "post", "/a", None);
    finds(&routes, "Post", "/a", None);
}

#[test]
fn methods_that_meet_the_same_routes_share_one_automaton() {
    let routes = compile(&[
        (&["GET", "HEAD"], &["/a"]),
        (&["POST"], &["/b"]),
        (&["OPTIONS", "GET", "HEAD", "POST"], &["/c"]),
    ]);
    assert_eq!(routes.views.len(), 4);
    let without_methods = compile(&[(&[], &["/a"]), (&[], &["/b"])]);
    assert_eq!(without_methods.views.len(), 1);
    assert!(without_methods.by_method.is_empty());
}

#[test]
fn every_documented_endpoint_is_found() {
    let routes = compile(&[(&[], &DOCUMENT)]);
    for endpoint in DOCUMENT {
        finds(&routes, "GET", &endpoint.replace(".+", "tenant"), Some(0));
    }
    finds(&routes, "GET", "/api/v2/anything/below", Some(0));
    finds(&routes, "GET", "/api/v1/tenant/profile-requests/", None);
    finds(&routes, "GET", "/v1/o/client/register", None);
    finds(&routes, "GET", "/api/v1/health", None);
}

#[test]
fn no_byte_in_a_path_slips_past_a_dot() {
    let routes = compile(&[(&[], &["/reggie/v1/.+/regcode"])]);
    for raw in [
        "/reggie/v1/%0A/regcode",
        "/reggie/v1/%FF/regcode",
        "/reggie/v1/a%0d%0ab/regcode",
    ] {
        let path = path::normalise(raw).unwrap();
        assert!(
            routes.find(&Method::GET, path.matching()).is_some(),
            "{raw}"
        );
    }
}

#[test]
fn routes_are_counted_listed_and_got_by_id() {
    let routes = compile(&[(&[], &["/a"]), (&[], &["/b"])]);
    assert_eq!(routes.len(), 2);
    assert_eq!(routes.get(RouteId(1)).unwrap().patterns, ["/b"]);
    assert!(routes.get(RouteId(2)).is_none());
    let ids: Vec<_> = routes.iter().map(|route| route.id).collect();
    assert_eq!(ids, [RouteId(0), RouteId(1)]);
}

#[test]
fn no_routes_find_nothing() {
    let routes = compile(&[]);
    assert!(routes.is_empty());
    finds(&routes, "GET", "/", None);
}

#[test]
fn a_bad_pattern_is_named_with_its_route() {
    let error =
        Routes::compile(vec![route(0, &[], &["/a"]), route(1, &[], &["/b", "/c("])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"route "route-1": pattern "/c(": unclosed group"#
    );
}
