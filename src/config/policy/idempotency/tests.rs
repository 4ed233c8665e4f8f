use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::config::{Environment, Overrides, parse};
use crate::idempotency::{OnServerError, OnUnknown};

const ROUTE: &str = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
                     [[route]]\nname = \"all\"\npath = \"/\"\n";

/// Returns the idempotency rule of a route with these configuration lines, and the titles of its warnings. The warning
/// about a missing `scope` is left out.
fn read(idempotency: &str) -> (Option<Arc<KeyRule>>, Vec<String>) {
    let (rule, mut warnings) = read_all(idempotency);
    warnings.retain(|warning| !warning.starts_with(NO_SCOPE));
    (rule, warnings)
}

const NO_SCOPE: &str = "without `scope`, a retry with a refreshed token";

fn read_all(idempotency: &str) -> (Option<Arc<KeyRule>>, Vec<String>) {
    let text = format!("{ROUTE}{idempotency}\n");
    let loaded = parse(
        "test.toml",
        &text,
        &Environment::default(),
        &Overrides::default(),
    );
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
    let routes = &loaded.policy.routes;
    let rule = routes.iter().next().expect("a route").idempotency.clone();
    (rule, loaded.warnings.into_iter().map(|w| w.title).collect())
}

/// Returns the idempotency rule of a route with these configuration lines. Panics if there is a warning.
fn rule(idempotency: &str) -> KeyRule {
    let (rule, warnings) = read(idempotency);
    assert!(warnings.is_empty(), "{warnings:?}");
    Arc::unwrap_or_clone(rule.expect("a rule"))
}

fn warning(idempotency: &str) -> String {
    let (_, warnings) = read(idempotency);
    let [only] = warnings.as_slice() else {
        panic!("{idempotency}: {warnings:?}");
    };
    only.clone()
}

#[test]
fn omitted_keys_have_the_defaults_of_the_rule() {
    assert_eq!(read("").0, None);
    assert_eq!(rule("idempotency = {}"), KeyRule::default());
    let explicit = "[route.idempotency]\nmode = \"optional\"\nmethods = [\"POST\", \"PATCH\"]\n\
                 header = \"Idempotency-Key\"\nttl = \"24h\"\nin_flight = \"wait\"\n\
                 wait_timeout = \"10s\"\non_server_error = \"replay\"\non_unknown = \"hold\"\n\
                 max_request = \"1MiB\"\nmax_response = \"1MiB\"\nexclude_headers = []";
    assert_eq!(rule(explicit), KeyRule::default());
}

#[test]
fn all_keys_can_be_set() {
    let configured = rule(
        "[route.idempotency]\nmode = \"required\"\nmethods = \"PUT\"\nheader = \"X-Once\"\n\
         body_field = \"requestId\"\n\
         scope = [\"header:X-Api-Key\", \"client\"]\nttl = \"7d\"\nin_flight = \"conflict\"\n\
         on_server_error = \"release\"\nrelease_on = [409, 503]\non_unknown = \"release\"\n\
         max_request = \"2KiB\"\nmax_response = 77\nexclude_headers = [\"Set-Cookie\"]\n\
         max_keys_per_scope = 5",
    );
    let key = HeaderName::from_static("x-api-key");
    let expected = KeyRule {
        requirement: Requirement::Required,
        methods: vec![Method::PUT],
        header: HeaderName::from_static("x-once"),
        body_field: Some("requestId".into()),
        scope: Scope::Parts(Box::new([ScopePart::Header(key), ScopePart::Client])),
        settings: RecordSettings {
            ttl: Duration::from_hours(7 * 24),
            on_unknown: OnUnknown::Release,
            max_keys_per_scope: NonZeroU32::new(5).expect("not zero"),
        },
        in_flight: InFlightPolicy::Conflict,
        on_server_error: OnServerError::Release,
        release_on: Some(vec![StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE]),
        max_request: 2048,
        max_response: 77,
        exclude_headers: vec![http::header::SET_COOKIE],
    };
    assert_eq!(configured, expected);
    let none = rule("idempotency = { release_on = [] }");
    assert_eq!(none.release_on, Some(Vec::new()));
}

#[test]
fn a_scope_is_one_entry_or_a_list() {
    let scope = |text: &str| rule(&format!("idempotency = {{ scope = {text} }}")).scope;
    assert_eq!(scope("\"shared\""), Scope::Shared);
    assert_eq!(scope("[\"shared\"]"), Scope::Shared);
    let client = Scope::Parts(Box::new([ScopePart::Client]));
    assert_eq!(scope("\"client\""), client);
    let cookie = Scope::Parts(Box::new([ScopePart::Cookie("sid".into())]));
    assert_eq!(scope("[\"cookie:sid\"]"), cookie);
}

#[test]
fn a_route_without_a_scope_gets_a_warning_in_every_mode() {
    for mode in ["optional", "required"] {
        let (_, warnings) = read_all(&format!("idempotency = {{ mode = \"{mode}\" }}"));
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(NO_SCOPE),
            "{mode}: {warnings:?}"
        );
        for scope in ["client", "header:Authorization", "cookie:sid", "shared"] {
            let table = format!("idempotency = {{ mode = \"{mode}\", scope = \"{scope}\" }}");
            assert_eq!(read_all(&table).1, Vec::<String>::new(), "{table}");
        }
    }
    assert!(read_all("idempotency = { mode = \"off\" }").1.is_empty());
}

#[test]
fn mode_off_causes_no_warnings() {
    let (rule, warnings) =
        read("methods = \"GET\"\nidempotency = { mode = \"off\", max_response = \"999GiB\" }");
    assert!(rule.is_none() && warnings.is_empty(), "{warnings:?}");
}

#[test]
fn values_that_are_probably_not_intended_get_a_warning() {
    let cookies = "idempotency = { scope = \"header:Cookie\" }";
    assert!(warning(cookies).contains("any cookie"));
    for path in ["data.key", "$.key", "/key"] {
        let field = format!("idempotency = {{ body_field = \"{path}\" }}");
        assert!(warning(&field).contains("top-level member"), "{path}");
    }
    rule("idempotency = { body_field = \"idempotency_key\" }");

    let unmatched = "methods = [\"GET\", \"PUT\"]\nidempotency = {}";
    assert!(warning(unmatched).contains("does not match POST or PATCH"));
    rule("methods = [\"GET\", \"PATCH\"]\nidempotency = {}");

    let small = "idempotency = {}\n[store]\nmax_bytes = \"1023KiB\"";
    assert!(warning(small).contains("`max_bytes` of [store] is 1047552 bytes"));
    let large = "idempotency = { max_response = \"257MiB\" }";
    assert!(warning(large).contains("268435456 bytes"));
    rule("idempotency = { max_response = \"256MiB\" }");

    let unbuffered = "idempotency = { max_response = \"9MiB\" }\n[server]\nmax_buffered = \"8MiB\"";
    assert!(warning(unbuffered).contains("`max_buffered` of [server] is 8388608 bytes"));
    rule("idempotency = { max_response = \"8MiB\" }\n[server]\nmax_buffered = \"8MiB\"");
}

#[test]
fn the_environment_can_enable_and_disable_keys() {
    for (table, value, on) in [("", "optional", true), ("idempotency = {}", "off", false)] {
        let env = [("TIDEGATE__ROUTE__ALL__IDEMPOTENCY__MODE", value)];
        let text = format!("{ROUTE}{table}\n");
        let loaded = parse(
            "test.toml",
            &text,
            &env.into_iter().collect(),
            &Overrides::default(),
        );
        let policy = loaded.expect("a valid configuration").policy;
        let route = policy.routes.iter().next().expect("a route");
        assert_eq!(route.idempotency.is_some(), on, "{value}");
    }
}
