mod generated_docs;
mod mistakes;
mod warnings;

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::respond::{Dialect, Hints};
use crate::throttle::{Exceed, KeyPart, Mode, Quota};
use crate::upstream::HostHeader;

const MINIMAL: &str = include_str!("../../config/minimal.toml");
const STARTER: &str = include_str!("../../config/starter.toml");

fn load_with(
    text: &str,
    env: &[(&str, &str)],
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    let env = env.iter().copied().collect();
    parse("test.toml", text, &env, overrides)
}

fn policy(text: &str, env: &[(&str, &str)]) -> Policy {
    match load_with(text, env, &Overrides::default()) {
        Ok(loaded) => loaded.policy,
        Err(errors) => panic!("{errors}"),
    }
}

fn problems(text: &str, env: &[(&str, &str)]) -> Vec<ConfigProblem> {
    let errors = load_with(text, env, &Overrides::default()).expect_err("an invalid configuration");
    errors.problems().to_vec()
}

fn warnings(text: &str) -> Vec<String> {
    let loaded = load_with(text, &[], &Overrides::default()).expect("a valid configuration");
    loaded.warnings.into_iter().map(|w| w.title).collect()
}

#[test]
fn a_minimal_configuration_has_all_defaults() {
    let policy = policy(MINIMAL, &[]);
    assert_eq!(
        policy.server.listen,
        ["127.0.0.1:8080".parse().expect("an address")]
    );
    assert!(policy.server.workers > 0);
    assert_eq!(policy.server.shutdown_grace, Duration::from_secs(30));
    assert_eq!(
        policy.server.timeouts,
        crate::http::settings::ClientTimeouts::default()
    );
    assert_eq!(
        policy.server.limits,
        crate::http::settings::ServerLimits::default()
    );
    assert!(policy.admin.is_none() && policy.server.tls.is_none());
    assert_eq!(policy.max_clients, 1_000_000);
    assert_eq!(policy.respond.rate_limit, Dialect::Draft);
    assert_eq!(policy.respond.hints, Hints::default());
    assert!(policy.respond.docs.is_none());
    assert_eq!(policy.upstreams[0].host, HostHeader::Preserve);
    let limit = &policy.limits[0];
    assert_eq!(limit.quota.capacity().get(), 4);
    assert_eq!(
        (&*limit.key, limit.mode),
        (&[KeyPart::Client][..], Mode::Enforce)
    );
    assert_eq!(limit.exceed, Exceed::Reject);
    assert_eq!(policy.routes.len(), 1);
}

#[test]
fn the_default_burst_is_the_count_of_the_rate_minus_1() {
    let policy = policy(&MINIMAL.replace("burst = 3", "").replace("1/s", "5/s"), &[]);
    assert_eq!(policy.limits[0].quota.capacity().get(), 5);
}

#[test]
fn on_store_error_is_resolved() {
    use crate::throttle::OnStoreError::{Closed, Local, Open};
    assert_eq!(policy(MINIMAL, &[]).limits[0].on_store_error, Local);
    for (word, meaning) in [("local", Local), ("open", Open), ("closed", Closed)] {
        let env = [("TIDEGATE__LIMIT__CLIENT__ON_STORE_ERROR", word)];
        assert_eq!(policy(MINIMAL, &env).limits[0].on_store_error, meaning);
    }
}

#[test]
fn the_problems_of_all_steps_are_reported_together() {
    let text = MINIMAL
        .replace("rate = \"1/s\"", "rate = \"often\"")
        .replace("[\"client\"]", "[\"clint\"]")
        .replace("servers", "severs");
    let titles: Vec<_> = problems(&text, &[]).into_iter().map(|p| p.title).collect();
    let [unknown, rate, limit] = titles.as_slice() else {
        panic!("{titles:#?}");
    };
    assert!(unknown.contains("unknown key `severs`"));
    assert!(rate.contains("`often` is not a rate"));
    assert!(limit.contains("there is no rate limit named `clint`"));
}

#[cfg(not(feature = "lab"))]
#[test]
fn a_scenario_is_rejected_without_the_feature_lab() {
    let text = format!("{MINIMAL}\n[scenario.flaky]\nsteps = [\"503\"]\n");
    let [problem] = &problems(&text, &[])[..] else {
        panic!("one problem is expected");
    };
    assert!(
        problem.title.contains("without the feature `lab`"),
        "{problem:?}"
    );
}

#[test]
fn at_most_100_errors_are_shown() {
    let text = "[[route]]\nfoo = 1\n".repeat(150);
    let errors = parse(
        "a.toml",
        &text,
        &Environment::default(),
        &Overrides::default(),
    );
    let errors = errors.expect_err("invalid");
    assert_eq!(errors.problems().len(), 100);
    let shown = errors.to_string();
    assert!(
        shown.ends_with("more problems are not shown"),
        "{}",
        &shown[shown.len() - 80..]
    );
}

#[test]
fn an_invalid_value_is_reported_once() {
    let text = MINIMAL.replace("http://127.0.0.1:9000", "nowhere");
    let found = problems(&text, &[]);
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn a_variable_sets_a_key_with_or_without_a_value_in_the_file() {
    let env = [
        ("TIDEGATE__SERVER__LISTEN", "127.0.0.1:1"),
        ("TIDEGATE__limit__Client__RATE", "7/s"),
        ("TIDEGATE__LIMIT__CLIENT__BURST", "9"),
        ("TIDEGATE__ROUTE__ALL__COST", "2"),
        ("TIDEGATE__CLIENT__TRUSTED_PROXIES", "[\"10.0.0.0/8\"]"),
        ("TIDEGATE_LOG", "not an override"),
    ];
    let policy = policy(MINIMAL, &env);
    assert_eq!(
        policy.server.listen,
        ["127.0.0.1:1".parse().expect("an address")]
    );
    assert_eq!(policy.limits[0].quota.capacity().get(), 10);
    let route = policy.routes.iter().next().expect("a route");
    assert_eq!(route.cost.get(), 2);
}

#[test]
fn a_variable_can_contain_a_list() {
    let list = "[\"127.0.0.1:1\", \"127.0.0.1:2\"]";
    let policy = policy(MINIMAL, &[("TIDEGATE__SERVER__LISTEN", list)]);
    assert_eq!(policy.server.listen.len(), 2);
}

#[test]
fn a_variable_that_starts_with_a_bracket_can_be_a_single_value() {
    let env = [
        ("TIDEGATE__ROUTE__ALL__PATH", "[/]api"),
        ("TIDEGATE__SERVER__LISTEN", "[::1]:80"),
    ];
    let policy = policy(MINIMAL, &env);
    assert_eq!(
        policy.server.listen,
        ["[::1]:80".parse().expect("an address")]
    );
    for list in ["[/api]", "[\"/api\"", "[/a, /b]"] {
        let found = problems(MINIMAL, &[("TIDEGATE__ROUTE__ALL__PATH", list)]);
        let titles: Vec<_> = found.iter().map(|problem| &problem.title).collect();
        assert_eq!(titles, ["the value of the variable is not a list"]);
    }
}

#[test]
fn a_dash_in_a_name_is_an_underscore_in_a_variable() {
    let text = MINIMAL.replace("limit.client", "limit.per-client");
    let text = text.replace("[\"client\"]", "[\"per-client\"]");
    let policy = policy(&text, &[("TIDEGATE__LIMIT__PER_CLIENT__BURST", "9")]);
    assert_eq!(policy.limits[0].quota.capacity().get(), 10);
}

#[test]
fn a_problem_in_a_variable_is_located_in_the_variable() {
    let found = problems(MINIMAL, &[("TIDEGATE__LIMIT__CLIENT__RATE", "often")]);
    let [problem] = found.as_slice() else {
        panic!("{found:#?}");
    };
    assert_eq!(problem.file, "TIDEGATE__LIMIT__CLIENT__RATE");
    assert_eq!((problem.line, problem.column), (1, 31));
    assert_eq!(problem.offending, "often");
}

#[test]
fn a_variable_for_an_unknown_key_is_an_error() {
    for (name, offending, help) in [
        ("TIDEGATE__SERVER__LISEN", "LISEN", "did you mean `listen`?"),
        ("TIDEGATE__SEVER__LISTEN", "SEVER", "did you mean `server`?"),
        (
            "TIDEGATE__LIMIT__CLINT__RATE",
            "CLINT",
            "the only valid name is `client`",
        ),
        (
            "TIDEGATE__ROUTE__AL__COST",
            "AL",
            "the only valid name is `all`",
        ),
        ("TIDEGATE__SERVER__LISTEN__PORT", "PORT", "remove `__PORT`"),
    ] {
        let found = problems(MINIMAL, &[(name, "s3cret")]);
        assert_eq!(found[0].file, name);
        assert_eq!(found[0].offending, offending);
        assert!(found[0].help.contains(help), "{name}: {}", found[0].help);
    }
}

#[test]
fn no_problem_shows_a_secret() {
    let file = format!("{MINIMAL}\n[admin]\ntoken = \"s3cret with spaces\"\n");
    let spelling = [("TIDEGATE__ADMIN__TOKN", "s3cret")];
    let value = [("TIDEGATE__ADMIN__TOKEN", "s3cret with spaces")];
    for found in [
        problems(&file, &[]),
        problems(MINIMAL, &spelling),
        problems(MINIMAL, &value),
    ] {
        assert!(!found[0].render(false).contains("s3cret"), "{}", found[0]);
    }
}

#[test]
fn an_empty_token_is_an_error() {
    let text = format!("{MINIMAL}\n[admin]\nlisten = \"127.0.0.1:9\"\ntoken = \"${{TOKEN}}\"\n");
    assert!(
        problems(&text, &[("TOKEN", "")])[0]
            .title
            .contains("token is empty")
    );
    let token = policy(&text, &[("TOKEN", "t0p")])
        .admin
        .and_then(|admin| admin.token);
    assert_eq!(token, Some("t0p".into()));
}

#[test]
fn a_token_is_read_from_its_file_without_the_newline() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "t0p\n").expect("written");
    let path = file.path().display();
    let text = format!("{MINIMAL}\n[admin]\nlisten = \"0.0.0.0:9\"\ntoken_file = '{path}'\n");
    let token = policy(&text, &[]).admin.and_then(|admin| admin.token);
    assert_eq!(token, Some("t0p".into()));
}

#[test]
fn a_variable_cannot_insert_toml_syntax() {
    let text = MINIMAL.replace("http://127.0.0.1:9000", "http://${HOST}");
    let found = problems(&text, &[("HOST", "a\"]\n[admin]\nlisten = \"0.0.0.0:9\"")]);
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn flags_override_the_file_and_the_environment() {
    let overrides = Overrides {
        listen: vec!["127.0.0.1:7".parse().expect("an address")],
        upstream: Some("https://other.example".into()),
        admin: Some("127.0.0.1:8".parse().expect("an address")),
        ..Overrides::default()
    };
    let env = [("TIDEGATE__SERVER__LISTEN", "127.0.0.1:1")];
    let loaded = load_with(MINIMAL, &env, &overrides).expect("a valid configuration");
    assert_eq!(loaded.policy.server.listen, overrides.listen);
    let admin = loaded.policy.admin.expect("an admin listener");
    assert_eq!(Some(admin.listen), overrides.admin);
    let server = &loaded.policy.upstreams[0].servers[0];
    assert!(server.tls);
    assert_eq!(server.authority.as_str(), "other.example");
}

#[test]
fn the_upstream_flag_is_an_error_with_several_upstreams() {
    let text = format!("{MINIMAL}\n[upstream.b]\nservers = [\"http://b\"]\n");
    let text = text.replace("path = \"/\"", "path = \"/\"\nupstream = \"b\"");
    let overrides = Overrides {
        upstream: Some("http://c".into()),
        ..Overrides::default()
    };
    let errors = load_with(&text, &[], &overrides).expect_err("two upstreams");
    let [problem] = errors.problems() else {
        panic!("{errors}");
    };
    assert_eq!(problem.file, "--upstream");
    assert!(problem.help.contains("api, b"), "{}", problem.help);
}

#[test]
fn the_tls_flags_replace_both_files_and_a_problem_is_shown_in_its_flag() {
    let overrides = Overrides {
        tls: Some(("flag.crt".into(), "flag.key".into())),
        ..Overrides::default()
    };
    for file in [
        "",
        "[server]\ntls = { cert = \"file.crt\", key = \"file.key\" }\n",
        "[server]\ntls = { cert = 1, keys = [] }\n",
    ] {
        let text = format!("{file}{MINIMAL}");
        let env = Environment::default();
        let loaded = parse_for(Purpose::Inspect, "test.toml", &text, &env, &overrides);
        loaded.expect("valid");

        let errors = load_with(&text, &[], &overrides).expect_err("no such files");
        let found: Vec<_> = errors
            .problems()
            .iter()
            .map(|it| it.file.as_str())
            .collect();
        assert_eq!(found, ["--tls-cert", "--tls-key"], "{errors}");
    }
    let errors = load_with("server = 1", &[], &overrides).expect_err("no table");
    assert_complete(&Err(errors));
}

#[test]
fn a_single_url_gives_a_configuration_without_a_limit_unless_one_is_given() {
    let env = Environment::default();
    let policy = |url: &str, limit: Option<&str>, burst| {
        let overrides = Overrides {
            upstream: Some(url.to_owned()),
            limit: limit.map(str::to_owned),
            ..Overrides::default()
        };
        policy_for_upstream(burst, &env, &overrides)
    };
    let url = "http://127.0.0.1:9000";
    let limits = |limit, burst| {
        let Loaded {
            policy, warnings, ..
        } = policy(url, limit, burst).expect("valid");
        assert!(warnings.is_empty(), "{warnings:?}");
        let route = policy.routes.iter().next().expect("a route");
        let limits = route.limits.iter().map(|limit| limit.quota);
        limits.collect::<Vec<_>>()
    };
    assert_eq!(limits(None, None), []);
    let quota = |burst| Quota::new(NonZeroU32::new(10).unwrap(), Duration::from_secs(1), burst);
    assert_eq!(limits(Some("10/s"), None), [quota(9).unwrap()]);
    assert_eq!(limits(Some("10/s"), Some(3)), [quota(3).unwrap()]);

    let errors = policy("127.0.0.1", None, None).expect_err("not a URL");
    assert_eq!(errors.problems()[0].file, "--upstream");
    let errors = policy(url, Some("often"), None).expect_err("not a rate");
    let problem = &errors.problems()[0];
    assert_eq!(
        (problem.file.as_str(), problem.offending.as_str()),
        ("--limit", "often")
    );
}

#[test]
fn an_unreadable_file_is_reported() {
    let nowhere = Path::new("/nonexistent/gate.toml");
    let errors = load(nowhere, &Environment::default(), &Overrides::default());
    let errors = errors.expect_err("no such file");
    assert!(
        errors.to_string().contains("/nonexistent/gate.toml"),
        "{errors}"
    );

    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), b"[server]\nlisten = \"\xff\"\n").expect("written");
    let errors = load(file.path(), &Environment::default(), &Overrides::default());
    let errors = errors.expect_err("not UTF-8");
    let problem = &errors.problems()[0];
    assert_eq!((problem.line, problem.column), (2, 11));
}

#[test]
fn every_commented_setting_of_the_starter_configuration_can_be_enabled() {
    let mut enabled = 0;
    let lines = STARTER.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => {
            enabled += 1;
            setting
        }
        _ => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(enabled >= 5, "{enabled}");
    let (env, overrides) = (Environment::default(), Overrides::default());
    let loaded = parse_for(Purpose::Inspect, "starter.toml", &text, &env, &overrides);
    let warnings = loaded.unwrap_or_else(|errors| panic!("{errors}")).warnings;
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_shipped_configurations_have_no_warnings() {
    for text in [
        MINIMAL,
        STARTER,
        include_str!("../../config/reference.toml"),
        include_str!("../../config/client-endpoints.toml"),
    ] {
        assert!(warnings(text).is_empty());
    }
    // The configuration of the demo is checked separately: it causes one warning, because it has no `scope`.
    let demo = warnings(include_str!("../../config/demo.toml"));
    assert!(demo.len() == 1 && demo[0].starts_with("without `scope`"));
}

#[test]
fn the_admin_listener_is_found_in_a_file_with_errors_in_other_sections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tidegate.toml");
    let admin = |text: &str, variables: &[(&str, &str)]| {
        std::fs::write(&path, text).unwrap();
        let env = variables
            .iter()
            .fold(Environment::default(), |env, (name, value)| {
                env.with(name, value)
            });
        load_admin(&path, &env)
    };
    let invalid =
        "[admin]\nlisten = \"127.0.0.1:9090\"\ntoken = \"${TOKEN}\"\n[[route]]\npth = 1\n";
    let found = admin(invalid, &[("TOKEN", "secret")]).unwrap().unwrap();
    assert_eq!(found.listen.port(), 9090);
    assert_eq!(found.token.unwrap().reveal(), "secret");
    let port = ("TIDEGATE__ADMIN__LISTEN", "127.0.0.1:9091");
    assert_eq!(admin("", &[port]).unwrap().unwrap().listen.port(), 9091);
    assert!(admin("", &[]).unwrap().is_none());
    assert!(admin("[admin]\nlisten = 1\n", &[]).is_err());
    let broken = format!("[limit.l]\nrate = fast\n{invalid}");
    let found = admin(&broken, &[("TOKEN", "secret")]).unwrap().unwrap();
    assert_eq!(found.listen.port(), 9090);
    for hidden in [
        "[admin\nlisten = \"127.0.0.1:9090\"\n",
        "a = [1,\n[admin]\nlisten = \"127.0.0.1:9090\"\n",
    ] {
        let errors = admin(hidden, &[]).expect_err(hidden);
        assert!(
            errors.problems()[0].title.starts_with("syntax error"),
            "{errors}"
        );
    }
}

#[test]
fn a_reload_keeps_both_uses_of_the_tunnel_timeout() {
    let running = policy(MINIMAL, &[]);
    let mut new = policy(MINIMAL, &[("TIDEGATE__SERVER__TUNNEL_TIMEOUT", "7s")]);
    assert_eq!(new.keep_until_restart(&running), ["server.tunnel_timeout"]);
    assert_eq!(new.server.tunnels.idle, running.server.tunnels.idle);
    assert_eq!(new.server.timeouts, running.server.timeouts);
}

/// Asserts that each problem of a rejected configuration has a location, a title and a remedy, and that it can be
/// rendered.
fn assert_complete(result: &Result<Loaded, ConfigErrors>) {
    let Err(errors) = result else {
        return;
    };
    assert!(!errors.problems().is_empty());
    for problem in errors.problems() {
        assert!(problem.line >= 1 && problem.column >= 1, "{problem}");
        assert!(
            !problem.title.is_empty() && !problem.help.is_empty(),
            "{problem}"
        );
        let location = format!("{}:{}:{}", problem.file, problem.line, problem.column);
        assert!(problem.render(false).contains(&location), "{problem}");
    }
}

proptest::proptest! {
    #[test]
    fn every_text_is_accepted_or_rejected_with_location_and_remedy(text in "[ -~\\n\\t\u{e9}\u{1f30a}]{0,200}") {
        assert_complete(&load_with(&text, &[("A", "b")], &Overrides::default()));
    }

    #[test]
    fn every_change_of_a_file_is_accepted_or_rejected_with_location_and_remedy(
        at in 0..MINIMAL.len(),
        gone in 0..40_usize,
        put in "[ -~\\n\u{1f30a}]{0,12}",
    ) {
        let at = MINIMAL.floor_char_boundary(at);
        let end = MINIMAL.floor_char_boundary((at + gone).min(MINIMAL.len()));
        let text = format!("{}{put}{}", &MINIMAL[..at], &MINIMAL[end..]);
        assert_complete(&load_with(&text, &[("A", "b")], &Overrides::default()));
    }

    #[test]
    fn every_variable_is_accepted_or_rejected_with_location_and_remedy(name in "[A-Z_]{0,20}", value in "\\PC{0,30}") {
        let name = format!("TIDEGATE__{name}");
        assert_complete(&load_with(MINIMAL, &[(&name, &value)], &Overrides::default()));
    }
}
