//! Cost of finding the route of a request among 1, 10 and 1,000 routes.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use http::Method;
use tidegate::config::{self, Environment, Overrides};
use tidegate::internals::{self, AmbiguousPaths, Matcher, PathMode, RouteMatch};

/// One matching path for each route pattern of the sample configuration, in the order of the configuration.
const DOCUMENTED: [&str; 21] = [
    "/o/client/register",
    "/o/client/token",
    "/o/client/scopes",
    "/o/client/validate",
    "/api/v2/REF30/profiles",
    "/api/v1/tokens/usermetadata",
    "/api/v1/tokens/authn",
    "/api/v1/tokens/authz",
    "/api/v1/tokens/media",
    "/api/v1/config/REF30",
    "/api/v1/checkauthn",
    "/api/v1/logout",
    "/api/v1/authorize",
    "/api/v1/preauthorize",
    "/api/v1/mediatoken",
    "/api/v1/authenticate/freepreview",
    "/api/v1/authenticate/REF30",
    "/api/v1/REF30/profile-requests/5f2d7c1e",
    "/api/v1/identities",
    "/reggie/v1/REF30/regcode",
    "/reggie/v1/REF30/regcode/5F2D7C1",
];

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route");
    for count in [1, 10, 1_000] {
        let paths = paths_of(count, |n| format!("/api/v1/resource-{n:04}/items/7"));
        let routes = compile(count, |n| format!("/api/v1/resource-{n:04}/"));
        find(&mut group, "literal", &routes, &paths);

        let paths = paths_of(count, |n| format!("/api/v1/REF30/resource-{n:04}/items/7"));
        let routes = compile(count, |n| format!("/api/v1/.+/resource-{n:04}/"));
        find(&mut group, "wildcard", &routes, &paths);
    }
    find(
        &mut group,
        "documented",
        &documented(),
        &DOCUMENTED.map(String::from),
    );
    group.finish();
}

/// Measures how long the lookup of a path takes. The paths are in random order, so that the branch predictor of the CPU
/// cannot learn the order.
fn find(
    group: &mut BenchmarkGroup<'_, WallTime>,
    kind: &str,
    routes: &Matcher<()>,
    paths: &[String],
) {
    for path in paths {
        let found = routes.find(&Method::GET, path.as_bytes());
        assert!(found.is_some(), "{path} has a route");
    }
    let mut random = fastrand::Rng::with_seed(7);
    group.bench_function(BenchmarkId::new(kind, paths.len()), |bencher| {
        bencher.iter(|| {
            let path = &paths[random.usize(..paths.len())];
            routes.find(black_box(&Method::GET), path.as_bytes())
        });
    });
}

fn paths_of(count: usize, path: impl Fn(usize) -> String) -> Vec<String> {
    (0..count).map(path).collect()
}

fn compile(count: usize, pattern: impl Fn(usize) -> String) -> Matcher<()> {
    let routes = (0..count)
        .map(|index| {
            let matches = RouteMatch {
                name: format!("route-{index}").into(),
                patterns: vec![pattern(index)],
                methods: None,
                ambiguous_paths: AmbiguousPaths::Reject,
                paths: PathMode::Compatible,
            };
            (matches, ())
        })
        .collect();
    Matcher::compile(routes).expect("the patterns are valid")
}

fn documented() -> Matcher<()> {
    let loaded = config::parse(
        "client-endpoints.toml",
        include_str!("../../config/client-endpoints.toml"),
        &Environment::default(),
        &Overrides::default(),
    );
    internals::routes(&loaded.expect("the sample configuration is valid").policy)
}
