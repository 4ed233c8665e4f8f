use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::config::{Backend, ConfigErrors, Environment, Loaded, Overrides, parse};

const ROUTES: &str = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
                      [upstream.slow]\nservers = [\"http://127.0.0.1:9001\"]\ntimeout = \"80s\"\n\
                      [[route]]\nname = \"all\"\npath = \"/\"\nupstream = \"api\"\nidempotency = { scope = \"client\" }\n\
                      [[route]]\nname = \"slow\"\npath = \"/slow\"\nmethods = [\"PUT\"]\nupstream = \"slow\"\n";

fn load(store: &str, routes: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigErrors> {
    // The route for all paths is moved to the end, because it would match all requests before the other routes.
    let (head, tail) = routes.split_at(routes.rfind("[[route]]").expect("two routes"));
    let (upstreams, all) = head.split_at(head.find("[[route]]").expect("two routes"));
    let text = format!("[store]\nbackend = \"redis\"\n{store}\n{upstreams}{tail}{all}");
    let env: Environment = env.iter().copied().collect();
    parse("test.toml", &text, &env, &Overrides::default())
}

fn redis_with(store: &str, routes: &str, env: &[(&str, &str)]) -> RedisSettings {
    let loaded = load(store, routes, env).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    match loaded.policy.store.backend {
        Backend::Redis(redis) => redis,
        other => panic!("{other:?}"),
    }
}

fn redis(store: &str) -> RedisSettings {
    redis_with(store, ROUTES, &[])
}

/// Returns the title and the help of the only problem of a store with these configuration lines. Panics if there is no
/// problem or more than one.
fn problem(store: &str, routes: &str) -> (String, String) {
    let errors = load(store, routes, &[]).expect_err(store);
    let [problem] = errors.problems() else {
        panic!("{errors}");
    };
    (problem.title.clone(), problem.help.clone())
}

fn node(url: &str) -> RedisNode {
    url.parse::<RedisUrl>().expect(url).0
}

#[test]
fn a_url_without_other_keys_has_all_defaults() {
    let expected = RedisSettings {
        nodes: Nodes::Single(node("redis://127.0.0.1:6379")),
        prefix: "tidegate".into(),
        user: None,
        password: None,
        ca_file: None,
        limits_timeout: Duration::from_millis(50),
        records_timeout: Duration::from_millis(500),
        lease: Duration::from_secs(95),
        wait_replicas: None,
        max_keys_per_client: None,
    };
    assert_eq!(redis("url = \"redis://127.0.0.1\""), expected);
}

#[test]
fn all_keys_can_be_set() {
    let issued = rcgen::generate_simple_self_signed(["redis".to_owned()]).unwrap();
    let ca_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca_file.path(), issued.cert.pem()).unwrap();
    let expected = RedisSettings {
        nodes: Nodes::Cluster(vec![node("rediss://a"), node("rediss://b:7000")]),
        prefix: "fleet-2".into(),
        user: Some("gate".into()),
        password: Some("s3cret".into()),
        ca_file: Some(ca_file.path().into()),
        limits_timeout: Duration::from_millis(5),
        records_timeout: Duration::from_secs(10),
        lease: Duration::from_secs(66),
        wait_replicas: NonZeroU32::new(2),
        max_keys_per_client: NonZeroU32::new(500),
    };
    let explicit = format!(
        "url = [\"rediss://a\", \"rediss://b:7000\"]\nprefix = \"fleet-2\"\nuser = \"gate\"\n\
                 password = \"s3cret\"\nca_file = {:?}\nlimits_timeout = \"5ms\"\n\
                 records_timeout = \"10s\"\nlease = \"66s\"\nwait_replicas = 2\n\
                 max_keys_per_client = 500",
        ca_file.path()
    );
    assert_eq!(redis(&explicit), expected);
}

#[test]
fn a_list_of_one_is_a_cluster() {
    let cluster = redis("url = [\"redis://a\"]").nodes;
    assert_eq!(cluster, Nodes::Cluster(vec![node("redis://a")]));
}

#[test]
fn the_environment_overrides_the_keys() {
    let url = "url = \"redis://a\"";
    let one = [("TIDEGATE__STORE__URL", "redis://b/2")];
    assert_eq!(
        redis_with(url, ROUTES, &one).nodes,
        Nodes::Single(node("redis://b/2"))
    );
    let list = [("TIDEGATE__STORE__URL", "[\"redis://b\", \"redis://c\"]")];
    let nodes = Nodes::Cluster(vec![node("redis://b"), node("redis://c")]);
    assert_eq!(redis_with(url, ROUTES, &list).nodes, nodes);
    assert_eq!(redis_with("", ROUTES, &list).nodes, nodes);
    let others = [
        ("TIDEGATE__STORE__PASSWORD", "12345"),
        ("TIDEGATE__STORE__WAIT_REPLICAS", "1"),
        ("TIDEGATE__STORE__LEASE", "1h"),
    ];
    let settings = redis_with(url, ROUTES, &others);
    assert_eq!(settings.password, Some("12345".into()));
    assert_eq!(settings.wait_replicas, Some(NonZeroU32::MIN));
    assert_eq!(settings.lease, Duration::from_hours(1));
    let reference = [("URL", "redis://:s3cret@d")];
    let settings = redis_with("url = \"${URL}\"", ROUTES, &reference);
    assert_eq!(settings.nodes, Nodes::Single(node("redis://:s3cret@d")));
}

#[test]
fn a_password_is_read_from_its_file_without_the_newline() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let store = format!(
        "url = \"redis://a\"\npassword_file = '{}'",
        file.path().display()
    );
    std::fs::write(file.path(), "two words\r\n").expect("written");
    let password = redis(&store).password.expect("a password");
    assert_eq!(password.reveal(), "two words");

    std::fs::write(file.path(), "\n").expect("written");
    assert!(
        problem(&store, ROUTES)
            .0
            .contains("the password in this file is invalid: the password is empty")
    );
}

#[test]
fn the_default_lease_is_longer_than_the_longest_execution() {
    let lease = |routes: &str| redis_with("url = \"redis://a\"", routes, &[]).lease;
    let unkeyed = ROUTES.replace("idempotency = { scope = \"client\" }", "");
    assert_eq!(lease(&unkeyed), Duration::from_secs(30));
    let off = ROUTES.replace("scope = \"client\"", "mode = \"off\"");
    assert_eq!(lease(&off), Duration::from_secs(30));
    let both = format!("{ROUTES}idempotency = {{ methods = \"PUT\", scope = \"client\" }}\n");
    assert_eq!(lease(&both), Duration::from_secs(110));
    let exact = both.replace("\"80s\"", "\"2500ms\"\nfirst_byte_timeout = \"5m\"");
    assert_eq!(lease(&exact), Duration::from_secs(95));
    let endless = both.replace("\"80s\"", "\"2h\"");
    assert_eq!(lease(&endless), Duration::from_hours(1));
    let longer_route = format!("{both}timeout = \"100s\"\n");
    assert_eq!(lease(&longer_route), Duration::from_secs(130));
    let shorter_route = format!("{both}timeout = \"10s\"\n");
    assert_eq!(lease(&shorter_route), Duration::from_secs(95));
}

#[test]
fn the_longest_execution_includes_all_attempts() {
    let lasts = |upstream: &str, seconds: u64| {
        let routes = ROUTES.replacen("[\"http://127.0.0.1:9000\"]\n", upstream, 1);
        let lease = redis_with("url = \"redis://a\"", &routes, &[]).lease;
        assert_eq!(
            lease,
            Duration::from_secs(seconds) + lease::MARGIN,
            "{upstream}"
        );
    };
    let one = "[\"http://a\"]\n";
    let three = "[\"http://a\", { url = \"http://b\", weight = 2 }, \"http://c\"]\n";
    lasts(one, 5 + 60);
    lasts(three, 3 * 5 + 60);

    let retry = format!("{three}retry = {{}}\n");
    lasts(&retry, 30);
    let patient = retry.replace("{}", "{ deadline = \"2m\" }");
    lasts(&patient, 120);
    let bounded = format!("{patient}timeout = \"7s\"\n");
    lasts(&bounded, 7);
}

#[test]
fn the_error_about_a_short_lease_contains_the_longest_execution() {
    let lease = |lease: &str| format!("url = \"redis://a\"\nlease = \"{lease}\"");
    assert_eq!(
        redis(&lease("65001ms")).lease,
        Duration::from_millis(65_001)
    );
    let (title, help) = problem(&lease("65s"), ROUTES);
    assert!(title.contains("`api` can take 65s"), "{title}");
    assert!(help.contains("\"95s\""), "{help}");

    let both = format!("{ROUTES}idempotency = {{ methods = \"PUT\", scope = \"client\" }}\n");
    let (title, _) = problem(&lease("66s"), &both);
    assert!(title.contains("`slow` can take 80s"), "{title}");
    let (title, help) = problem(&lease("1h"), &both.replace("\"80s\"", "\"2h\""));
    assert!(title.contains("can take 2h"), "{title}");
    assert!(help.contains("[upstream.slow]"), "{help}");

    let unkeyed = ROUTES.replace("idempotency = { scope = \"client\" }", "");
    let settings = redis_with(&lease("1s"), &unkeyed, &[]);
    assert_eq!(settings.lease, Duration::from_secs(1));
}

#[test]
fn conflicting_or_incomplete_credentials_are_errors() {
    for (store, title) in [
        ("url = \"redis://a\"\nuser = \"gate\"", "without `password`"),
        (
            "url = \"redis://:x@a\"\nuser = \"gate\"",
            "credentials are set twice",
        ),
        (
            "url = [\"redis://:x@a\"]\npassword = \"y\"",
            "credentials are set twice",
        ),
        (
            "url = \"redis://a\"\npassword = \"x\"\npassword_file = \"y\"",
            "are both set",
        ),
        (
            "url = \"redis://a\"\npassword_file = \"/nonexistent\"",
            "cannot read the file that contains the password",
        ),
        (
            "url = [\"redis://:x@a\", \"redis://:y@b\"]",
            "the same user and password",
        ),
        (
            "url = [\"redis://:x@a\", \"redis://b\"]",
            "the same user and password",
        ),
        (
            "url = [\"redis://x:x@a\", \"redis://y:x@b\"]",
            "the same user and password",
        ),
    ] {
        let found = problem(store, ROUTES).0;
        assert!(found.contains(title), "{store}: {found}");
    }
    let same = redis("url = [\"redis://u:p@a\", \"redis://u:p@b\"]");
    assert_eq!(same.nodes.all().len(), 2);
}

#[test]
fn an_invalid_url_is_the_only_problem_reported() {
    for store in [
        "url = \"http://a\"\nuser = \"x\"\nca_file = \"y\"",
        "url = [\"redis\"]\npassword = \"x\"",
        "url = []",
        "url = 5",
        "url = \"${MISSING}\"",
    ] {
        problem(store, ROUTES);
    }
}

#[test]
fn a_large_max_response_gets_no_warning_with_redis() {
    let routes = ROUTES.replace("{ scope", "{ max_response = \"8GiB\", scope");
    let server = "[server]\nmax_buffered = \"8GiB\"\n";
    redis_with("url = \"redis://a\"", &format!("{routes}{server}"), &[]);
}

#[test]
fn debug_output_omits_passwords() {
    let settings = redis("url = \"redis://gate:s3cret@a\"");
    let shown = format!("{settings:?} {}", settings.nodes);
    assert!(
        shown.contains("redis://a:6379") && !shown.contains("s3cret"),
        "{shown}"
    );
    let settings = redis("url = \"redis://a\"\npassword = \"s3cret\"");
    assert!(!format!("{settings:?}").contains("s3cret"));
}
