//! Tests of the `RateLimit` fields of responses: dialects, the order of members on a 429, and fields of the upstream.

use super::*;

/// Bucket of four tokens, refilled at one per hour.
const DEVICE: [(&str, &str); 1] = [("device", "rate = \"1/h\"\nburst = 3")];

/// Names of the limit, remaining and reset fields of the dialects that show one limit.
const ONE_LIMIT: [(&str, [&str; 3]); 2] = [
    (
        "legacy",
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
    ),
    (
        "x",
        [
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
        ],
    ),
];

/// Names of limits, and the lines of their sections.
type Limits<'a> = &'a [(&'a str, &'a str)];

fn in_dialect(dialect: &str, limits: &[(&str, &str)]) -> String {
    format!("respond.rate_limit = \"{dialect}\"\n{}", limited_by(limits))
}

/// Returns the lines of these headers in the response to a request whose upstream sends the lines `sent`. Several lines
/// of a header are separated by `+`.
async fn merged<const N: usize>(config: &str, sent: &str, names: [&str; N]) -> [String; N] {
    let chain = Chain::with_headers(config, sent);
    let response = chain.send(get("/")).await;
    assert_eq!(response.status, 200);
    names.map(|name| {
        let lines = response.headers.get_all(name).iter();
        let lines: Vec<_> = lines.map(|line| line.to_str().unwrap()).collect();
        lines.join("+")
    })
}

#[tokio::test]
async fn a_429_lists_the_limits_that_rejected_first_and_longest_wait_first() {
    let delaying = |max_delay: &str| {
        format!("rate = \"1/2h\"\nburst = 0\non_exceed = \"delay\"\nmax_delay = \"{max_delay}\"")
    };
    let (beyond, within) = (delaying("30m"), delaying("3h"));
    let shadow = "rate = \"1/d\"\nmode = \"shadow\"";
    let cases: [(Limits<'_>, &str, &str, &[&str]); 5] = [
        (
            &[
                ("fast", "rate = \"1/m\""),
                ("trial", shadow),
                ("slow", "rate = \"1/h\""),
            ],
            r#""fast";q=1;w=60, "slow";q=1;w=3600"#,
            r#""slow";r=0;t=3600, "fast";r=0;t=60"#,
            &["slow", "fast"],
        ),
        (
            &[
                ("wide", "rate = \"100/h\""),
                ("minute", "rate = \"1/m\""),
                ("day", "rate = \"1/d\""),
                ("wider", "rate = \"200/h\""),
            ],
            r#""wide";q=100;w=3600, "minute";q=1;w=60, "day";q=1;w=86400, "wider";q=200;w=3600"#,
            r#""day";r=0;t=86400, "minute";r=0;t=60, "wide";r=99;t=36, "wider";r=199;t=18"#,
            &["day", "minute"],
        ),
        (
            &[("b", "rate = \"1/h\""), ("a", "rate = \"1/h\"")],
            r#""b";q=1;w=3600, "a";q=1;w=3600"#,
            r#""b";r=0;t=3600, "a";r=0;t=3600"#,
            &["b", "a"],
        ),
        // The slot of the second request is two hours away. A delaying limit rejects until it is within `max_delay`.
        (
            &[("fast", "rate = \"1/h\""), ("outflow", &*beyond)],
            r#""fast";q=1;w=3600, "outflow";q=1;w=7200"#,
            r#""outflow";r=0;t=5400, "fast";r=0;t=3600"#,
            &["outflow", "fast"],
        ),
        (
            &[("outflow", &*within), ("fast", "rate = \"1/h\"")],
            r#""outflow";q=1;w=7200, "fast";q=1;w=3600"#,
            r#""fast";r=0;t=3600, "outflow";r=0;t=7200"#,
            &["fast"],
        ),
    ];
    for (limits, policy, state, violated) in cases {
        let chain = Chain::new(&limited_by(limits));
        chain.send(get("/")).await.assert_created(1);
        let rejected = chain.send(get("/")).await;
        rejected.assert_problem(429, "rate-limited");
        assert_eq!(rejected.header("ratelimit-policy"), Some(policy));
        assert_eq!(rejected.header("ratelimit"), Some(state));
        let problem = rejected.problem();
        assert_eq!(problem["violated-policies"], serde_json::json!(violated));
        let first = format!("The rate limit '{}' is exceeded.", violated[0]);
        assert!(
            problem["detail"].as_str().unwrap().starts_with(&first),
            "{problem}"
        );
        let wait = rejected.header("retry-after").unwrap();
        assert!(
            state
                .split(", ")
                .next()
                .unwrap()
                .ends_with(&format!("t={wait}"))
        );
    }
}

#[tokio::test]
async fn older_dialects_show_one_limit_and_off_shows_none() {
    let fields = |response: &Received| {
        let fields = response.headers.iter();
        let fields = fields.filter(|(name, _)| name.as_str().contains("ratelimit"));
        let mut fields: Vec<_> = fields
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        fields.sort_unstable();
        fields
    };
    for (dialect, prefix) in [("legacy", ""), ("x", "x-"), ("off", "")] {
        let chain = Chain::new(&in_dialect(dialect, &DEVICE));
        let expected = |remaining| match dialect {
            "off" => vec![],
            _ => [("limit", 4), ("remaining", remaining), ("reset", 3600)]
                .map(|(name, value)| format!("{prefix}ratelimit-{name}: {value}"))
                .into(),
        };
        for remaining in (0..4).rev() {
            let admitted = chain.send(get("/")).await;
            assert_eq!(fields(&admitted), expected(remaining), "{dialect}");
            assert!(admitted.header("retry-after").is_none());
        }
        let rejected = chain.send(get("/")).await;
        assert_eq!(fields(&rejected), expected(0), "{dialect}");
        assert_eq!(rejected.header("retry-after"), Some("3600"));
    }
}

const POLICY: &str = r#""device";q=4;w=14400"#;
const STATE: &str = r#""device";r=3;t=3600"#;
const DRAFT: [&str; 2] = ["ratelimit-policy", "ratelimit"];

#[tokio::test]
async fn the_members_of_upstream_precede_those_of_the_gateway_in_one_line() {
    let renamed = |member: &str| member.replace("device", "tidegate.device");
    let cases = [
        (
            "ratelimit-policy: \"api\";q=100;w=60;x-new=?1 | ratelimit: \"api\";r=9;pk=:YQ==:; note=fine,\t\"b\";r=1",
            format!("\"api\";q=100;w=60;x-new=?1, {POLICY}"),
            format!("\"api\";r=9;pk=:YQ==:; note=fine,\t\"b\";r=1, {STATE}"),
        ),
        (
            r#"ratelimit: "a";r=1;t=1 | ratelimit:  | ratelimit: "b";r=2;t=2, "c";r=3 | ratelimit-policy: "#,
            POLICY.into(),
            format!(r#""a";r=1;t=1, "b";r=2;t=2, "c";r=3, {STATE}"#),
        ),
        // A name that the upstream uses in either field is renamed in both.
        (
            r#"ratelimit-policy: "device";q=100;w=60"#,
            format!(r#""device";q=100;w=60, {}"#, renamed(POLICY)),
            renamed(STATE),
        ),
        (
            r#"ratelimit: "api";r=9 | ratelimit: "device";r=9;t=5"#,
            renamed(POLICY),
            format!(r#""api";r=9, "device";r=9;t=5, {}"#, renamed(STATE)),
        ),
        (
            r#"ratelimit: "device";r=9, "tidegate.device";r=9"#,
            renamed(&renamed(POLICY)),
            format!(
                r#""device";r=9, "tidegate.device";r=9, {}"#,
                renamed(&renamed(STATE))
            ),
        ),
        // A field with a line that does not parse is replaced.
        (
            r#"ratelimit: "api";r=9 | ratelimit: b=1"#,
            POLICY.into(),
            STATE.into(),
        ),
    ];
    for dialect in ["draft", "draft-11"] {
        for (sent, policies, states) in &cases {
            let lines = merged(&in_dialect(dialect, &DEVICE), sent, DRAFT).await;
            assert_eq!(lines, [policies.as_str(), states], "{sent}");
        }
    }
    // A dictionary as in draft 7, names without quotes, the format of Hugging Face, and invalid lists.
    for value in [
        "limit=100, remaining=9, reset=5",
        "100;w=60",
        "device;r=9;t=5",
        r#""fixed window";"device";q=500;w=300"#,
        r#"("device");r=9"#,
        r#""device";r=9,"#,
        r#""device;r=9"#,
        "?",
    ] {
        let sent = format!(r#"ratelimit: {value} | ratelimit-policy: "api";q=9;w=1"#);
        let lines = merged(&in_dialect("draft", &DEVICE), &sent, DRAFT).await;
        let policies = format!(r#""api";q=9;w=1, {POLICY}"#);
        assert_eq!(lines, [&*policies, STATE], "{value}");
    }
}

#[tokio::test]
async fn fields_of_other_dialects_and_of_routes_without_limits_pass_unchanged() {
    let fields = [
        ("ratelimit", "not, valid;"),
        ("ratelimit-policy", r#""device";q=9;w=5"#),
        ("ratelimit-limit", "100, 100;w=60"),
        ("ratelimit-remaining", "1"),
        ("ratelimit-reset", "2000000000"),
        ("x-ratelimit-limit", "7"),
        ("x-ratelimit-remaining", "none"),
        ("x-ratelimit-reset", "1.5"),
        ("x-ratelimit-used", "6"),
    ];
    let sent = fields.map(|(name, value)| format!("{name}: {value}"));
    for (config, own) in [
        (in_dialect("draft", &DEVICE), &DRAFT[..]),
        (in_dialect("legacy", &DEVICE), &ONE_LIMIT[0].1),
        (in_dialect("x", &DEVICE), &ONE_LIMIT[1].1),
        (in_dialect("off", &DEVICE), &[]),
        (keyed(""), &[]),
    ] {
        let lines = merged(&config, &sent.join(" | "), fields.map(|(name, _)| name)).await;
        for ((name, value), line) in fields.into_iter().zip(lines) {
            assert!(
                own.contains(&name) || line == value,
                "{config} {name}: {line}"
            );
        }
    }
}

#[tokio::test]
async fn an_older_dialect_shows_the_upstream_if_it_is_the_tightest() {
    let own = ["4", "3", "3600"];
    // An empty text is no line. The clock starts in 1970, so a Unix time is as far ahead as its number.
    for (sent, expected) in [
        (["100", "2", "7"], ["100", "2", "7"]),
        (
            ["100, 100;w=60", "0", "1000000000"],
            ["100, 100;w=60", "0", "1000000000"],
        ),
        (["100", "2", "1000000001"], ["100", "2", "1000000001"]),
        // Of equal limits the one with the later reset is the tighter.
        (["100", "3", "3599"], own),
        (["100", "3", "3601"], ["100", "3", "3601"]),
        (["2", "4", "86400"], own),
        // One field that does not parse replaces all three.
        (["100", "-1", "7"], own),
        (["100", "1, 2", "7"], own),
        (["100", "+1", "7"], own),
        (["100", "1", "soon"], own),
        (["100", "1", "Wed, 21 Oct 2026 07:28:00 GMT"], own),
        (["all", "1", "7"], own),
        (["9", "", "7"], own),
        // Without `limit` and `reset` of the upstream, those of the gateway would describe another limit.
        (["", "1", ""], ["", "1", ""]),
    ] {
        for (dialect, names) in ONE_LIMIT {
            let lines = names
                .into_iter()
                .zip(sent)
                .filter(|(_, value)| !value.is_empty());
            let lines: Vec<_> = lines
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            let shown = merged(&in_dialect(dialect, &DEVICE), &lines.join(" | "), names).await;
            assert_eq!(shown, expected, "{lines:?}");
        }
    }
    for (dialect, names) in ONE_LIMIT {
        let twice = format!("{0}: 1 | {0}: 2", names[1]);
        let shown = merged(&in_dialect(dialect, &DEVICE), &twice, names).await;
        assert_eq!(shown, own);
        let empty = format!("{}: 9 | {}: ", names[0], names[1]);
        let shown = merged(&in_dialect(dialect, &DEVICE), &empty, names).await;
        assert_eq!(shown, own);
    }
}

#[tokio::test]
async fn a_replay_has_the_fields_of_the_gateway_only() {
    let sent = "ratelimit-policy: \"api\";q=9;w=5 | ratelimit: \"api\";r=0;t=5 | ratelimit-remaining: 0 | \
                x-ratelimit-remaining: 0 | x-ratelimit-limit-minute: 9 | x-served-by: api";
    for dialect in ["draft", "legacy", "x", "off"] {
        let config = in_dialect(dialect, &[("device", "rate = \"4/h\"")]);
        let config = format!("{config}idempotency = {{ mode = \"optional\" }}\n");
        let chain = Chain::with_headers(&config, sent);
        let first = chain.send(post("a")).await;
        assert_eq!(first.header("x-ratelimit-limit-minute"), Some("9"));
        let replay = chain.send(post("a")).await;
        assert!(replay.is_replay());
        assert_eq!(replay.header("x-served-by"), Some("api"));
        let names = replay.headers.keys().map(http::HeaderName::as_str);
        let mut names: Vec<_> = names.filter(|name| name.contains("ratelimit")).collect();
        names.sort_unstable();
        match dialect {
            "draft" => {
                assert_eq!(names, ["ratelimit", "ratelimit-policy"]);
                assert_eq!(replay.header("ratelimit"), Some(r#""device";r=2;t=900"#));
            }
            "off" => assert!(names.is_empty(), "{names:?}"),
            _ => {
                let (_, [limit, remaining, reset]) =
                    *ONE_LIMIT.iter().find(|(name, _)| *name == dialect).unwrap();
                assert_eq!(names, [limit, remaining, reset]);
                assert_eq!(replay.header(remaining), Some("2"));
            }
        }
    }
}
