use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;

use super::*;
use crate::config::{ConfigErrors, ConfigProblem, Environment, Loaded, Overrides, parse};
use crate::respond::Fallback;
use crate::retry::{Backoff, Jitter, Preset, Strategy};
use crate::upstream::{
    BreakerSettings, BudgetSettings, FailureStatuses, HealthSettings, OpensOn, RetrySettings,
};

const HEAD: &str = "[[route]]\nname = \"all\"\npath = \"/\"\n\
                    [upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n";

fn load(keys: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigErrors> {
    let text = format!("{HEAD}{keys}\n");
    let env: Environment = env.iter().copied().collect();
    parse("test.toml", &text, &env, &Overrides::default())
}

fn read(keys: &str, env: &[(&str, &str)]) -> (Upstream, Vec<ConfigProblem>) {
    let loaded = load(keys, env).unwrap_or_else(|errors| panic!("{errors}"));
    let upstream = &loaded.policy.upstreams[0];
    (Upstream::clone(upstream), loaded.warnings)
}

/// Returns the upstream with these configuration lines. Panics if there is a warning.
fn upstream_with(keys: &str) -> Upstream {
    let (upstream, warnings) = read(keys, &[]);
    assert!(warnings.is_empty(), "{warnings:?}");
    upstream
}

/// Returns the settings of a `retry` table with these configuration lines, and the titles of its warnings.
fn retry(keys: &str) -> (RetrySettings, Vec<String>) {
    let (upstream, warnings) = read(&format!("[upstream.api.retry]\n{keys}"), &[]);
    let titles = warnings.into_iter().map(|warning| warning.title).collect();
    (upstream.retry.expect("retries"), titles)
}

/// Returns the title and the help of the only problem of an upstream with these configuration lines. Panics if there is
/// no problem or more than one.
fn problem(keys: &str) -> (String, String) {
    let errors = load(keys, &[]).expect_err(keys);
    let [problem] = errors.problems() else {
        panic!("{errors}");
    };
    (problem.title.clone(), problem.help.clone())
}

fn number(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("not zero")
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn omitted_keys_have_the_defaults_of_the_settings() {
    let minimal = upstream_with("");
    assert_eq!(minimal.servers[0].weight, NonZeroU32::MIN);
    assert_eq!(minimal.retry, None);
    // Refused connections of a sole server do not open its circuit.
    let sole = BreakerSettings {
        opens_on: OpensOn::ConnectTimeouts,
        ..BreakerSettings::default()
    };
    assert_eq!(minimal.breaker, sole);
    assert_eq!((minimal.health, minimal.concurrency), (None, None));
    assert_eq!(minimal.slow_start, seconds(10));

    let empty = upstream_with(
        "health = { path = \"/healthz\" }\n\
         [upstream.api.retry]\n[upstream.api.breaker]\n[upstream.api.concurrency]",
    );
    let retry = RetrySettings {
        policy: crate::retry::RetryPolicy {
            deadline: Some(seconds(30)),
            ..Preset::Standard.policy()
        },
        max_body: 64 * 1024,
        budget: BudgetSettings {
            ratio: 0.1,
            window: seconds(10),
            floor: 3,
        },
    };
    assert_eq!(empty.retry, Some(retry));
    // If `[upstream.api.breaker]` is present, even if empty, all failures can open the circuit, not only connect
    // failures.
    let configured = BreakerSettings {
        opens_on: OpensOn::AllFailures,
        ..BreakerSettings::default()
    };
    assert_eq!(empty.breaker, configured);
    assert_eq!(configured.open, seconds(1));
    assert_eq!(empty.concurrency, Some(ConcurrencySettings::default()));
    let health = HealthSettings {
        path: "/healthz".parse().expect("a path"),
        interval: seconds(5),
        timeout: seconds(1),
        max_ejected: 0.5,
    };
    assert_eq!(empty.health, Some(health));
}

#[test]
fn all_keys_of_retry_can_be_set() {
    let (settings, warnings) = retry(
        "preset = \"sender\"\nattempts = 20\nstrategy = \"linear\"\nbase = \"100ms\"\ncap = \"2s\"\n\
         jitter = \"±10%\"\ndeadline = \"1m\"\nmax_body = 0\n\
         budget = { ratio = 1, window = \"1h\", floor = 0 }",
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    let preset = Preset::Sender.policy();
    let expected = RetrySettings {
        policy: crate::retry::RetryPolicy {
            table: preset.table,
            backoff: Backoff {
                strategy: Strategy::Linear,
                base: Duration::from_millis(100),
                cap: seconds(2),
                factor: preset.backoff.factor,
                jitter: Jitter::Percent(0.1),
            },
            attempts: number(20),
            deadline: Some(seconds(60)),
            retry_after: preset.retry_after,
        },
        max_body: 0,
        budget: BudgetSettings {
            ratio: 1.0,
            window: seconds(3600),
            floor: 0,
        },
    };
    assert_eq!(settings, expected);
    assert_eq!(
        retry("factor = 1.5").0.policy.backoff.factor.to_bits(),
        1.5_f64.to_bits()
    );
    assert_eq!(
        retry("factor = 3").0.policy.backoff.factor.to_bits(),
        3.0_f64.to_bits()
    );
}

#[test]
fn a_preset_sets_the_values_of_omitted_keys() {
    for preset in Preset::ALL {
        let name = preset.name();
        let (settings, warnings) = retry(&format!("preset = \"{name}\""));
        let expected = crate::retry::RetryPolicy {
            deadline: Some(seconds(30)),
            ..preset.policy()
        };
        assert_eq!(settings.policy, expected, "{name}");
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
    }
    let (_, help) = problem("[upstream.api.retry]\npreset = \"standart\"");
    assert!(help.contains("did you mean `standard`?"), "{help}");
    for preset in Preset::ALL {
        assert!(help.contains(preset.name()), "{help}");
    }
}

#[test]
fn a_jitter_can_be_a_number_in_the_file_and_in_a_variable() {
    for text in ["0.3", "\"0.3\"", "\"+30%\"", "\"additive\""] {
        let jitter = retry(&format!("jitter = {text}")).0.policy.backoff.jitter;
        assert_eq!(jitter, Jitter::Proportional(0.3), "{text}");
    }
    assert_eq!(
        retry("jitter = 1").0.policy.backoff.jitter,
        Jitter::Proportional(1.0)
    );
    for (value, meaning) in [
        ("0.5", Jitter::Proportional(0.5)),
        ("1", Jitter::Proportional(1.0)),
        ("full", Jitter::Full),
        ("±25%", Jitter::Percent(0.25)),
        ("2s", Jitter::Added(seconds(2))),
    ] {
        let (upstream, _) = read("", &[("TIDEGATE__UPSTREAM__API__RETRY__JITTER", value)]);
        let jitter = upstream.retry.expect("retries").policy.backoff.jitter;
        assert_eq!(jitter, meaning, "{value}");
    }
    let (title, _) = problem("[upstream.api.retry]\njitter = 1.5");
    assert!(
        title.contains("`upstream.api.retry.jitter` is too large"),
        "{title}"
    );
}

#[test]
fn a_default_follows_a_configured_bound() {
    let backoff = |keys: &str| retry(keys).0.policy.backoff;
    let long = backoff("base = \"20m\"\ndeadline = \"2h\"");
    assert_eq!((long.base, long.cap), (seconds(1200), seconds(1200)));

    let open = |keys: &str| upstream_with(&format!("[upstream.api.breaker]\n{keys}")).breaker;
    assert_eq!(open("open = \"2m\"").open_max, seconds(120));
    assert_eq!(open("open = \"1s\"").open_max, seconds(60));

    let checked = upstream_with("health = { path = \"/\", interval = \"500ms\" }").health;
    assert_eq!(checked.expect("checks").timeout, Duration::from_millis(500));

    let concurrency = |keys: &str| {
        let upstream = upstream_with(&format!("[upstream.api.concurrency]\n{keys}"));
        let limit = upstream.concurrency.expect("a bound");
        [limit.min, limit.initial, limit.max].map(NonZeroU32::get)
    };
    assert_eq!(concurrency("max = 10"), [4, 10, 10]);
    assert_eq!(concurrency("max = 3"), [3, 3, 3]);
    assert_eq!(concurrency("min = 50"), [50, 50, 1000]);
    assert_eq!(concurrency("min = 5000"), [5000, 5000, 5000]);
    assert_eq!(concurrency("initial = 2"), [2, 2, 1000]);
    assert_eq!(concurrency("initial = 2000"), [4, 2000, 2000]);
    assert_eq!(concurrency("min = 1\ninitial = 2\nmax = 3"), [1, 2, 3]);
}

#[test]
fn contradicting_keys_are_errors() {
    for (keys, title, help) in [
        (
            "[upstream.api.retry]\nbase = \"2s\"\ncap = \"1s\"",
            "`cap` is shorter than `base`, which is 2s",
            "\"2s\"",
        ),
        (
            "[upstream.api.retry]\npreset = \"batch\"\ncap = \"1ms\"",
            "in the preset `batch`",
            "`base`",
        ),
        (
            "[upstream.api.retry]\nstrategy = \"linear\"\nfactor = 2",
            "`factor` has no effect",
            "exponential",
        ),
        (
            "[upstream.api.breaker]\nopen_max = \"500ms\"",
            "`open_max` is shorter than `open`, which is 1s",
            "\"1s\"",
        ),
        (
            "health = { path = \"/\", timeout = \"6s\" }",
            "`timeout` of `health` is longer than `interval`, which is 5s",
            "\"5s\"",
        ),
        (
            "max_ejected = 0.1",
            "`max_ejected` has no effect",
            "`health =",
        ),
        (
            "[upstream.api.concurrency]\nmin = 3\nmax = 2",
            "`max` of `concurrency` is below `min`",
            "at least 3",
        ),
        (
            "[upstream.api.concurrency]\nmin = 3\ninitial = 2",
            "`initial` of `concurrency` is below `min`",
            "at least 3",
        ),
        (
            "[upstream.api.concurrency]\ninitial = 3\nmax = 2",
            "`max` of `concurrency` is below `initial`",
            "at least 3",
        ),
    ] {
        let (found, remedy) = problem(keys);
        assert!(found.contains(title), "{keys}: {found}");
        assert!(remedy.contains(help), "{keys}: {remedy}");
    }
}

#[test]
fn an_invalid_table_is_the_only_problem_reported() {
    for keys in [
        "health = \"/healthz\"\nmax_ejected = 0.1",
        "health = { path = \"healthz\" }\nmax_ejected = 0.1",
        "health = { interval = \"1s\" }\nmax_ejected = 0.1",
        "[upstream.api.retry]\nstrategy = \"liner\"\nfactor = 2",
        "[upstream.api.breaker]\nfallback = {}",
    ] {
        problem(keys);
    }
}

#[test]
fn harmful_retries_get_a_warning() {
    let only = |keys: &str| {
        let (_, warnings) = retry(keys);
        let [warning] = warnings.as_slice() else {
            panic!("{keys}: {warnings:?}");
        };
        warning.clone()
    };
    assert!(only("strategy = \"constant\"").contains("constant interval"));
    assert!(only("strategy = \"constant\"\njitter = \"full\"").contains("constant interval"));
    let decorrelated = "strategy = \"constant\"\njitter = \"decorrelated\"";
    assert!(only(decorrelated).contains("`strategy` has no effect"));
    for none in ["\"none\"", "0", "\"0ms\""] {
        assert!(only(&format!("jitter = {none}")).contains("without jitter"));
    }
    let both = "strategy = \"constant\"\njitter = \"none\"";
    assert_eq!(retry(both).1.len(), 2);

    for valid in [
        "strategy = \"linear\"",
        "strategy = \"exponential\"\njitter = \"decorrelated\"",
        "attempts = 1\nstrategy = \"constant\"\njitter = \"none\"\ndeadline = \"1ms\"",
    ] {
        assert!(retry(valid).1.is_empty(), "{valid}: {:?}", retry(valid).1);
    }
}

#[test]
fn retries_that_never_happen_get_a_warning() {
    for (keys, expected) in [
        ("base = \"5s\"\ndeadline = \"5s\"", "no request is retried"),
        ("base = \"30s\"", "no request is retried"),
        (
            "base = \"1s\"\ndeadline = \"100ms\"",
            "no request is retried",
        ),
        (
            "base = \"5s\"\ndeadline = \"2s\"\njitter = \"equal\"",
            "no request is retried",
        ),
        (
            "base = \"5s\"\ndeadline = \"3s\"\njitter = \"equal\"",
            "some requests are not retried",
        ),
        (
            "base = \"5s\"\ndeadline = \"3s\"\njitter = \"±50%\"",
            "some requests are not retried",
        ),
        (
            "base = \"5s\"\ndeadline = \"1s\"\njitter = \"full\"",
            "some requests are not retried",
        ),
        ("budget = { ratio = 0, floor = 0 }", "no request is retried"),
    ] {
        let (_, warnings) = retry(keys);
        let [warning] = warnings.as_slice() else {
            panic!("{keys}: {warnings:?}");
        };
        assert!(warning.contains(expected), "{keys}: {warning}");
    }
    for valid in [
        "base = \"5s\"\ndeadline = \"6s\"",
        "budget = { ratio = 0 }",
        "budget = { floor = 0 }",
    ] {
        assert!(retry(valid).1.is_empty(), "{valid}: {:?}", retry(valid).1);
    }
}

#[test]
fn all_keys_of_breaker_can_be_set() {
    let configured = upstream_with(
        "[upstream.api.breaker]\nenabled = false\nconsecutive_failures = 1\nfailure_ratio = 1\n\
         window = \"1m\"\nmin_requests = 7\nfailures = [599, 500]\nopen = \"10ms\"\nopen_max = \"1d\"\n\
         fallback = { body = \"{}\", content_type = \"application/json\" }",
    );
    let expected = BreakerSettings {
        opens_on: OpensOn::Nothing,
        consecutive_failures: NonZeroU32::MIN,
        failures: FailureStatuses::from_iter([500, 599]),
        failure_ratio: 1.0,
        window: seconds(60),
        min_requests: number(7),
        open: Duration::from_millis(10),
        open_max: seconds(86_400),
        fallback: Some(Fallback {
            body: Bytes::from_static(b"{}"),
            content_type: HeaderValue::from_static("application/json"),
        }),
    };
    assert_eq!(configured.breaker, expected);
    let plain = upstream_with("breaker = { fallback = { body = \"Später.\" } }").breaker;
    let fallback = plain.fallback.expect("a fallback");
    assert_eq!(fallback.body, "Später.");
    assert_eq!(fallback.content_type, "text/plain; charset=utf-8");
    assert_eq!(plain.opens_on, OpensOn::AllFailures);

    let failures = |keys: &str, env: &[(&str, &str)]| {
        let (upstream, _) = read(&format!("[upstream.api.breaker]\n{keys}"), env);
        upstream.breaker.failures
    };
    assert_eq!(failures("failures = \"5xx\"", &[]), FailureStatuses::ALL);
    let none = FailureStatuses::from_iter([]);
    assert_eq!(failures("failures = []", &[]), none);
    let name = "TIDEGATE__UPSTREAM__API__BREAKER__FAILURES";
    assert_eq!(failures("", &[(name, "5xx")]), FailureStatuses::ALL);
    let one = FailureStatuses::from_iter([500]);
    assert_eq!(failures("failures = []", &[(name, "[500]")]), one);
}

#[test]
fn the_weights_of_servers_are_resolved() {
    let servers = |list: &str, env: &[(&str, &str)]| {
        let text = HEAD.replace("[\"http://127.0.0.1:9000\"]", list);
        let env: Environment = env.iter().copied().collect();
        let loaded = parse("test.toml", &text, &env, &Overrides::default());
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let servers = policy.upstreams[0].servers.iter();
        let shown = servers.map(|s| format!("{} {} {}", s.tls, s.authority, s.weight));
        shown.collect::<Vec<_>>()
    };
    let mixed = "[\"http://a\", { url = \"https://b:1\", weight = 1000 }, { url = \"http://c\" }]";
    let expected = ["false a 1", "true b:1 1000", "false c 1"];
    assert_eq!(servers(mixed, &[]), expected);
    let variable = [("TIDEGATE__UPSTREAM__API__SERVERS", mixed)];
    assert_eq!(servers("[\"http://z\"]", &variable), expected);
    let plain = [("TIDEGATE__UPSTREAM__API__SERVERS", "[\"http://a\"]")];
    assert_eq!(servers(mixed, &plain), ["false a 1"]);
}

#[test]
fn the_upstream_flag_replaces_servers_with_weights() {
    let text = HEAD.replace(
        "\"http://127.0.0.1:9000\"",
        "{ url = \"http://a\", weight = 3 }",
    );
    let overrides = Overrides {
        upstream: Some("http://b".into()),
        ..Overrides::default()
    };
    let loaded = parse("test.toml", &text, &Environment::default(), &overrides);
    let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
    let [server] = policy.upstreams[0].servers.as_slice() else {
        panic!("{:?}", policy.upstreams);
    };
    assert_eq!(
        (server.authority.as_str(), server.weight),
        ("b", NonZeroU32::MIN)
    );
}

#[test]
fn the_environment_overrides_keys_of_nested_tables() {
    let env = [
        ("TIDEGATE__UPSTREAM__API__RETRY__ATTEMPTS", "7"),
        ("TIDEGATE__UPSTREAM__API__RETRY__BUDGET__RATIO", "0.25"),
        ("TIDEGATE__UPSTREAM__API__BREAKER__FAILURE_RATIO", "1"),
        ("TIDEGATE__UPSTREAM__API__BREAKER__ENABLED", "false"),
        ("TIDEGATE__UPSTREAM__API__CONCURRENCY", "{ max = 30 }"),
        ("TIDEGATE__UPSTREAM__API__HEALTH", "{ path = \"/up\" }"),
        ("TIDEGATE__UPSTREAM__API__HEALTH__INTERVAL", "9s"),
        ("TIDEGATE__UPSTREAM__API__MAX_EJECTED", "0"),
        ("TIDEGATE__UPSTREAM__API__SLOW_START", "0s"),
    ];
    for keys in [
        "",
        "[upstream.api.retry]\nattempts = 2\nbudget = { ratio = 1 }",
    ] {
        let (upstream, warnings) = read(keys, &env);
        assert!(warnings.is_empty(), "{warnings:?}");
        let retry = upstream.retry.expect("retries");
        assert_eq!(retry.policy.attempts, number(7));
        assert_eq!(retry.budget.ratio.to_bits(), 0.25_f64.to_bits());
        assert_eq!(upstream.breaker.opens_on, OpensOn::Nothing);
        assert!(upstream.breaker.failure_ratio >= 1.0);
        assert_eq!(
            upstream.concurrency.map(|limit| limit.max),
            Some(number(30))
        );
        let health = upstream.health.expect("checks");
        assert_eq!((health.path.as_str(), health.interval), ("/up", seconds(9)));
        assert!(health.max_ejected <= 0.0);
        assert_eq!(upstream.slow_start, Duration::ZERO);
    }
    let name = "TIDEGATE__UPSTREAM__API__RETRY__ATTEMPTS";
    let errors = load("", &[(name, "21")]).expect_err("too many");
    let [problem] = errors.problems() else {
        panic!("{errors}");
    };
    assert_eq!((problem.file.as_str(), problem.column), (name, 42));
    assert!(problem.help.contains("at most 20"), "{}", problem.help);
}

#[test]
fn each_upstream_has_its_own_retry_settings() {
    let text = format!(
        "{HEAD}retry = {{ attempts = 2 }}\n[upstream.b]\nservers = [\"http://b\"]\n\
         [[route]]\nname = \"b\"\npath = \"/b\"\nupstream = \"b\"\n"
    );
    // The route for all paths is moved to the end, because it would match all requests before the other routes.
    let text = text.replacen("[[route]]\nname = \"all\"\npath = \"/\"\n", "", 1)
        + "[[route]]\nname = \"all\"\npath = \"/\"\nupstream = \"api\"\n";
    let loaded = parse(
        "test.toml",
        &text,
        &Environment::default(),
        &Overrides::default(),
    );
    let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
    let attempts = |upstream: &Arc<Upstream>| upstream.retry.map(|retry| retry.policy.attempts);
    let found: Vec<_> = policy.upstreams.iter().map(attempts).collect();
    assert_eq!(found, [Some(number(2)), None]);
}

#[test]
fn the_default_first_byte_timeout_leaves_time_for_a_retry() {
    let first_byte = |keys: &str| read(keys, &[]).0.timeouts.first_byte;
    assert_eq!(first_byte(""), seconds(60));
    assert_eq!(first_byte("[upstream.api.retry]"), seconds(15));
    assert_eq!(
        first_byte("[upstream.api.retry]\ndeadline = \"4s\""),
        seconds(2)
    );
    assert_eq!(
        first_byte("[upstream.api.retry]\ndeadline = \"5m\""),
        seconds(60)
    );
    assert_eq!(
        first_byte("[upstream.api.retry]\nattempts = 1"),
        seconds(60)
    );

    let warnings = |first_byte: &str| {
        let keys = format!("first_byte_timeout = \"{first_byte}\"\n[upstream.api.retry]");
        let (upstream, warnings) = read(&keys, &[]);
        (upstream.timeouts.first_byte, warnings.len())
    };
    assert_eq!(warnings("29s"), (seconds(29), 0));
    assert_eq!(warnings("30s"), (seconds(30), 1));
}
