//! Tests of `RateLimit` fields that upstream sends, in each dialect that the gateway supports.

use std::time::{Duration, SystemTime};

use super::{limited, lines, sending};
use crate::support::{ClientResponse, Gateway, Upstream};

/// Rate limit `device` with a bucket of four tokens, refilled at one token per hour.
const DEVICE: [(&str, &str); 1] = [("device", "rate = \"1/h\"\nburst = 3")];
const POLICY: &str = "\"device\";q=4;w=14400";
const STATE: &str = "\"device\";r=3;t=3600";
const DRAFTS: [&str; 2] = ["draft", "draft-11"];

/// Dialects that show a single rate limit in three fields. Each entry contains the dialect and the names of its limit,
/// remaining and reset fields.
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

/// Returns the response to the first request. The upstream sends the header lines `sent`, and the gateway uses
/// `dialect`.
async fn merged(dialect: &str, sent: &[(&'static str, &str)]) -> ClientResponse {
    merged_with(&DEVICE, dialect, sent).await
}

async fn merged_with(
    limits: &[(&str, &str)],
    dialect: &str,
    sent: &[(&'static str, &str)],
) -> ClientResponse {
    let upstream = sending(sent);
    let gateway = limited(&format!("rate_limit = \"{dialect}\""), limits)
        .upstream(&upstream)
        .start();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 200);
    response
}

#[tokio::test]
async fn the_gateway_appends_its_members_to_those_of_upstream() {
    let policy = "\"api\";q=100;w=60;x-new=?1";
    // The value contains unknown parameters (`pk`, `note`), which the gateway forwards unchanged.
    let state = "\"api\";r=9;t=5;pk=:YQ==:; note=fine,\t\"b\";r=1";
    for dialect in DRAFTS {
        let sent = [("ratelimit-policy", policy), ("ratelimit", state)];
        let response = merged(dialect, &sent).await;
        let [policies, states] =
            ["ratelimit-policy", "ratelimit"].map(|name| lines(&response, name));
        assert_eq!(policies, [format!("{policy}, {POLICY}")]);
        assert_eq!(states, [format!("{state}, {STATE}")]);
    }
}

#[tokio::test]
async fn several_lines_of_upstream_become_one_in_order() {
    let response = merged(
        "draft",
        &[
            ("ratelimit", "\"a\";r=1;t=1"),
            ("ratelimit", ""),
            ("ratelimit", "\"b\";r=2;t=2, \"c\";r=3"),
            ("ratelimit-policy", ""),
        ],
    )
    .await;
    assert_eq!(
        lines(&response, "ratelimit"),
        [format!("\"a\";r=1;t=1, \"b\";r=2;t=2, \"c\";r=3, {STATE}")]
    );
    assert_eq!(lines(&response, "ratelimit-policy"), [POLICY]);
}

#[tokio::test]
async fn a_name_that_upstream_uses_is_renamed_in_both_fields() {
    // The upstream uses the gateway's limit name `device` in both fields, in one of them, or on the second line of a
    // field.
    let sent: [&[_]; 4] = [
        &[
            ("ratelimit-policy", "\"device\";q=100;w=60"),
            ("ratelimit", "\"device\";r=9;t=5"),
        ],
        &[("ratelimit", "\"device\";r=9;t=5")],
        &[("ratelimit-policy", "\"device\";q=100;w=60")],
        &[
            ("ratelimit", "\"api\";r=9;t=5"),
            ("ratelimit", "\"device\";r=9;t=5"),
        ],
    ];
    for sent in sent {
        let response = merged("draft", sent).await;
        for (name, gateway_values) in [("ratelimit-policy", POLICY), ("ratelimit", STATE)] {
            let upstream_values = sent.iter().filter(|(sent, _)| *sent == name);
            let mut members: Vec<_> = upstream_values
                .map(|&(_, value)| value.to_owned())
                .collect();
            members.push(gateway_values.replace("\"device\"", "\"tidegate.device\""));
            assert_eq!(lines(&response, name), [members.join(", ")], "{sent:?}");
        }
    }
}

#[tokio::test]
async fn a_renamed_limit_has_a_unique_name() {
    let limits = [
        ("device", "rate = \"1/h\""),
        ("tidegate.device", "rate = \"1/d\""),
    ];
    let response = merged_with(&limits, "draft", &[("ratelimit", "\"device\";r=9;t=5")]).await;
    assert_eq!(
        response.header("ratelimit-policy"),
        "\"tidegate.tidegate.device\";q=1;w=3600, \"tidegate.device\";q=1;w=86400"
    );
    assert_eq!(
        response.header("ratelimit"),
        "\"device\";r=9;t=5, \"tidegate.tidegate.device\";r=0;t=3600, \
         \"tidegate.device\";r=0;t=86400"
    );
}

#[tokio::test]
async fn two_gateways_in_a_row_name_the_same_limit_differently() {
    let upstream = Upstream::replying(200);
    let inner = limited("", &DEVICE).upstream(&upstream).start();
    let middle = limited("", &DEVICE)
        .upstream_url(&format!("http://{}", inner.address()))
        .start();
    let outer = limited("", &DEVICE)
        .upstream_url(&format!("http://{}", middle.address()))
        .start();
    let response = outer.client().get("/").send().await;
    let named = |name: &str| POLICY.replace("device", name);
    let policies = ["device", "tidegate.device", "tidegate.tidegate.device"].map(named);
    assert_eq!(lines(&response, "ratelimit-policy"), [policies.join(", ")]);
}

#[tokio::test]
async fn a_field_that_does_not_parse_is_replaced() {
    let unparsable = [
        // The first value is a dictionary as in draft 7. The next two have a number and a token instead of a quoted
        // name. The fourth has the format of Hugging Face. The others are not valid lists of quoted names.
        "limit=100, remaining=9, reset=5",
        "100;w=60",
        "device;r=9;t=5",
        "\"fixed window\";\"device\";q=500;w=300",
        "(\"device\");r=9",
        "\"device\";r=9,",
        "\"device;r=9",
        "\"d\u{e9}vice\";r=9",
        "?",
    ];
    for value in unparsable {
        let sent = [
            ("ratelimit", value),
            ("ratelimit-policy", "\"api\";q=9;w=1"),
        ];
        let response = merged("draft", &sent).await;
        assert_eq!(lines(&response, "ratelimit"), [STATE], "{value}");
        let policy = format!("\"api\";q=9;w=1, {POLICY}");
        assert_eq!(lines(&response, "ratelimit-policy"), [policy], "{value}");
    }
    // A field is invalid if one of its lines does not parse. The gateway then replaces all lines of the field by its
    // own line.
    let sent = [("ratelimit", "\"api\";r=9"), ("ratelimit", "b=1")];
    let response = merged("draft", &sent).await;
    assert_eq!(lines(&response, "ratelimit"), [STATE]);
}

#[tokio::test]
async fn a_field_of_ten_thousand_members_is_merged() {
    let value = vec!["\"a\";r"; 10_000].join(",");
    assert_eq!(value.len(), 59_999);
    let response = merged("draft", &[("ratelimit", &value)]).await;
    assert_eq!(lines(&response, "ratelimit"), [format!("{value}, {STATE}")]);
}

#[tokio::test]
async fn fields_of_other_dialects_pass_unchanged() {
    let fields = [
        ("ratelimit", "\"device\";r=9;t=5"),
        ("ratelimit-policy", "\"device\";q=9;w=5"),
        ("ratelimit-limit", "100, 100;w=60"),
        ("ratelimit-remaining", "1"),
        ("ratelimit-reset", "2000000000"),
        ("x-ratelimit-limit", "7"),
        ("x-ratelimit-remaining", "none"),
        ("x-ratelimit-reset", "1.5"),
        ("x-ratelimit-used", "6"),
    ];
    let draft: &[&str] = &["ratelimit", "ratelimit-policy"];
    let merged_fields = [
        ("draft", draft),
        ("draft-11", draft),
        (ONE_LIMIT[0].0, &ONE_LIMIT[0].1),
        (ONE_LIMIT[1].0, &ONE_LIMIT[1].1),
        ("off", &[]),
    ];
    for (dialect, own) in merged_fields {
        let response = merged(dialect, &fields).await;
        for (name, value) in fields {
            if !own.contains(&name) {
                assert_eq!(lines(&response, name), [value], "{dialect}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn a_route_without_limits_passes_all_fields_unchanged() {
    let fields = [
        ("ratelimit", "not, valid;"),
        ("ratelimit", "\"device\";r=9;t=5"),
        ("ratelimit-limit", "100"),
        ("x-ratelimit-reset", "2000000000"),
    ];
    let upstream = sending(&fields);
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let response = gateway.client().get("/").send().await;
    assert_eq!(lines(&response, "ratelimit"), [fields[0].1, fields[1].1]);
    assert_eq!(lines(&response, "ratelimit-limit"), ["100"]);
    assert_eq!(lines(&response, "x-ratelimit-reset"), ["2000000000"]);
    assert!(!response.has("ratelimit-policy"));
}

/// Returns the limit, remaining and reset fields of the response to the first request. The upstream sends the values
/// `sent` in these fields.
async fn merged_values(
    dialect: &str,
    names: [&'static str; 3],
    sent: [&str; 3],
) -> [Vec<String>; 3] {
    let sent: Vec<_> = names.into_iter().zip(sent).collect();
    let response = merged(dialect, &sent).await;
    names.map(|name| lines(&response, name))
}

#[tokio::test]
async fn upstream_is_shown_if_it_is_the_tightest_with_reset_in_seconds() {
    for (dialect, names) in ONE_LIMIT {
        let shown = merged_values(dialect, names, ["100", "2", "7"]).await;
        assert_eq!(shown, [["100"], ["2"], ["7"]]);
        let shown = merged_values(dialect, names, ["100, 100;w=60", "0", "1000000000"]).await;
        assert_eq!(shown, [["100, 100;w=60"], ["0"], ["1000000000"]]);

        // The gateway converts a reset time in Unix seconds to seconds from now, rounded up. It converts a past time to
        // 0.
        let epoch = SystemTime::UNIX_EPOCH
            .elapsed()
            .expect("the system clock should be after 1970")
            + Duration::from_mins(10);
        let shown = merged_values(dialect, names, ["100", "2", &epoch.as_secs().to_string()]).await;
        let seconds: u64 = shown[2][0]
            .parse()
            .expect("the reset value should be a number of seconds");
        assert!((540..=600).contains(&seconds), "{seconds}");
        let shown = merged_values(dialect, names, ["100", "2", "1000000001"]).await;
        assert_eq!(shown, [["100"], ["2"], ["0"]]);
    }
}

#[tokio::test]
async fn of_equal_limits_the_one_with_the_later_reset_is_the_tighter() {
    for (dialect, names) in ONE_LIMIT {
        let gateway_values = [["4"], ["3"], ["3600"]];
        let shown = merged_values(dialect, names, ["100", "3", "3599"]).await;
        assert_eq!(shown, gateway_values);
        let shown = merged_values(dialect, names, ["100", "3", "3601"]).await;
        assert_eq!(shown, [["100"], ["3"], ["3601"]]);
        let shown = merged_values(dialect, names, ["2", "4", "86400"]).await;
        assert_eq!(shown, gateway_values);
    }
}

#[tokio::test]
async fn one_field_that_does_not_parse_replaces_all_three() {
    let unparsable = [
        ["100", "-1", "7"],
        ["100", "many", "7"],
        ["100", "1", "soon"],
        ["100", "1", "-5"],
        ["100", "1", "Wed, 21 Oct 2026 07:28:00 GMT"],
        ["all", "1", "7"],
        ["100", "", "7"],
        ["100", "1, 2", "7"],
        ["100", "+1", "7"],
    ];
    for (dialect, names) in ONE_LIMIT {
        for sent in unparsable {
            let shown = merged_values(dialect, names, sent).await;
            assert_eq!(shown, [["4"], ["3"], ["3600"]], "{sent:?}");
        }
        // The gateway ignores a field with two lines, because it cannot know which of the two numbers is correct.
        let [limit, remaining, reset] = names;
        let sent = [
            (limit, "9"),
            (remaining, "1"),
            (remaining, "2"),
            (reset, "7"),
        ];
        let response = merged(dialect, &sent).await;
        let shown = names.map(|name| lines(&response, name));
        assert_eq!(shown, [["4"], ["3"], ["3600"]]);
        // The gateway ignores the upstream fields if `remaining` is missing, because it compares rate limits by
        // `remaining`.
        let response = merged(dialect, &[(limit, "9"), (reset, "7")]).await;
        let shown = names.map(|name| lines(&response, name));
        assert_eq!(shown, [["4"], ["3"], ["3600"]]);
        // Upstream sends only `remaining`. The gateway does not add `limit` and `reset`, because they would describe
        // another rate limit.
        let response = merged(dialect, &[(remaining, "1")]).await;
        let shown = names.map(|name| lines(&response, name));
        assert_eq!(shown, [vec![], vec!["1".to_owned()], vec![]]);
    }
}

#[tokio::test]
async fn a_replay_has_the_fields_of_the_gateway_only() {
    let upstream = sending(&[
        ("ratelimit-policy", "\"api\";q=9;w=5"),
        ("ratelimit", "\"api\";r=0;t=5"),
        ("ratelimit-limit", "9"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "5"),
        ("x-ratelimit-limit", "9"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "5"),
        ("x-ratelimit-limit-minute", "9"),
        ("x-served-by", "api"),
    ]);
    for dialect in ["draft", "legacy", "x", "off"] {
        let gateway = Gateway::with(&format!(
            "[respond]\nrate_limit = \"{dialect}\"\n[upstream.api]\nservers = [\"{{upstream}}\"]\n\
             [limit.device]\nrate = \"4/h\"\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n\
             idempotency = {{ mode = \"optional\" }}\n"
        ))
        .upstream(&upstream)
        .start();
        let send = || gateway.client().post("/").key("k1").send();
        let (first, replay) = (send().await, send().await);
        assert!(!first.is_replay() && replay.is_replay());
        assert!(first.has("x-ratelimit-limit-minute"));
        assert_eq!(replay.header("x-served-by"), "api");
        let mut shown: Vec<_> = replay
            .headers
            .iter()
            .filter(|(name, _)| name.as_str().contains("ratelimit"))
            .map(|(name, value)| {
                let value = value.to_str().expect("the header value should be ASCII");
                // The last parameter is the time until the next token in seconds. It is replaced by 900, because it
                // decreases during the test.
                let seconds = value
                    .rsplit('=')
                    .next()
                    .expect("rsplit should return at least one part");
                let value = match seconds.parse::<u32>() {
                    Ok(840..=900) => value.replace(seconds, "900"),
                    _ => value.to_owned(),
                };
                format!("{name}: {value}")
            })
            .collect();
        shown.sort_unstable();
        let expected: &[&str] = match dialect {
            "draft" => &[
                "ratelimit-policy: \"device\";q=4;w=3600",
                "ratelimit: \"device\";r=2;t=900",
            ],
            "legacy" => &[
                "ratelimit-limit: 4",
                "ratelimit-remaining: 2",
                "ratelimit-reset: 900",
            ],
            "x" => &[
                "x-ratelimit-limit: 4",
                "x-ratelimit-remaining: 2",
                "x-ratelimit-reset: 900",
            ],
            _ => &[],
        };
        assert_eq!(shown, expected, "{dialect}");
    }
}

#[tokio::test]
async fn browser_code_can_read_the_fields_of_the_configured_dialect() {
    let upstream = sending(&[("ratelimit", "\"api\";r=9;t=5")]);
    let cors = "rate_limit = \"draft-11\"\n[respond.cors]\norigins = [\"https://app.example\"]";
    let gateway = limited(cors, &DEVICE).upstream(&upstream).start();
    let origin = "https://app.example";
    let response = gateway
        .client()
        .get("/")
        .header("Origin", origin)
        .send()
        .await;
    let exposed = response.header("access-control-expose-headers");
    let names: Vec<_> = exposed.split(", ").collect();
    assert!(names.contains(&"RateLimit") && names.contains(&"RateLimit-Policy"));
}
