use std::num::NonZeroU32;
use std::slice;
use std::time::Duration;

use proptest::prelude::*;
use smallvec::smallvec;

use super::super::{RATE_LIMIT, RATE_LIMIT_POLICY, policy, write};
use super::*;
use crate::respond::Dialect;
use crate::throttle::Limit;
use crate::throttle::rate_limit::tests::route_limit;
use crate::throttle::{BucketReading, ChargeOutcome, Decision, Quota};

fn limits(names: &[&str]) -> Vec<RouteLimit> {
    let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3).unwrap();
    let limit = |name: &&str| route_limit(Limit::per_client(name, quota));
    names.iter().map(limit).collect()
}

/// Returns `RateLimit-Policy` and `RateLimit` after the gateway has merged the members of `limits` into them.
fn merge(limits: &[RouteLimit], policies: &[String], states: &[String]) -> [String; 2] {
    let mut headers = HeaderMap::new();
    for (name, lines) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, states)] {
        for line in lines {
            headers.append(name.clone(), HeaderValue::from_str(line).unwrap());
        }
    }
    let reading = BucketReading {
        remaining: 2,
        next: Duration::from_secs(1),
        rejects: false,
    };
    let decision = Decision {
        outcome: ChargeOutcome::Admitted {
            delay: Duration::ZERO,
        },
        readings: smallvec![reading; limits.len()],
    };
    let (policy, clock) = (policy(limits), Clock::real());
    write(
        &mut headers,
        Dialect::Draft,
        limits,
        &policy,
        &decision,
        &clock,
    );
    [RATE_LIMIT_POLICY, RATE_LIMIT].map(|name| {
        assert_eq!(headers.get_all(&name).iter().count(), 1);
        headers[&name].to_str().unwrap().to_owned()
    })
}

/// Parses the value of a `RateLimit` header and returns the names of its members.
fn names(field: &str) -> Vec<String> {
    let list: List = sfv::Parser::new(field).parse().unwrap();
    let name = |entry: &ListEntry| match entry {
        ListEntry::Item(item) => item.bare_item.as_string().unwrap().as_str().to_owned(),
        ListEntry::InnerList(_) => panic!("an inner list in {field}"),
    };
    list.iter().map(name).collect()
}

/// Generates a list member that the upstream sends. Its name is often the name of a rate limit of the gateway.
fn member() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        "(tidegate\\.){0,3}(device|hourly)",
        "[a-z ,;=]{0,8}",
        Just("say \\\"hi\\\"".to_owned()),
    ];
    let parameters = "(;[ ]?[a-z][a-z0-9_*.-]{0,3}(=(-?[0-9]{1,9}|[a-z]{1,4}|\"[ -!#-Z]{0,3}\"|\\?1|:YQ==:))?){0,3}";
    (name, parameters).prop_map(|(name, parameters)| format!("\"{name}\"{parameters}"))
}

/// Generates a header line: mostly valid members, sometimes an empty line, sometimes random text.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::collection::vec(member(), 1..4).prop_map(|members| members.join(",\t")),
        1 => Just(String::new()),
        1 => "[ -~]{0,12}",
    ]
}

proptest! {
    #[test]
    fn a_merged_field_parses_and_contains_the_members_of_upstream_and_gateway(
        policies in prop::collection::vec(line(), 0..3),
        states in prop::collection::vec(line(), 0..3),
    ) {
        let limits = limits(&["device", "hourly", "tidegate.device"]);
        let merged = merge(&limits, &policies, &states);
        let mut from_upstream = BTreeSet::new();
        let mut own = Vec::new();
        for (lines, field) in [&policies, &states].into_iter().zip(&merged) {
            let sent = RateLimitField::parse(
                &lines.iter().map(|line| line.parse().unwrap()).collect::<Vec<_>>(),
            );
            // The merged header starts with the bytes of the upstream, followed by the members of the gateway.
            let sent = str::from_utf8(&sent.line).unwrap();
            prop_assert!(field.starts_with(sent));
            let mut names = names(field);
            own.push(names.split_off(names.len() - limits.len()));
            from_upstream.extend(names);
        }
        // The gateway uses the same limit names in both headers, and each name only once.
        prop_assert_eq!(&own[0], &own[1]);
        for (index, name) in own[0].iter().enumerate() {
            prop_assert!(!from_upstream.contains(name) && !own[0][..index].contains(name));
            let base = name.trim_start_matches(PREFIX);
            prop_assert_eq!(base, limits[index].name.trim_start_matches(PREFIX));
            if !from_upstream.contains(&*limits[index].name) {
                prop_assert_eq!(name, &*limits[index].name);
            }
        }
    }

    #[test]
    fn only_digits_parse_as_a_number_and_a_unix_time_becomes_a_delta(text in "[ -~]{0,12}", seconds in 0_u64..2_000_000_000) {
        let clock = Clock::virtual_from(UNIX_EPOCH + Duration::from_millis(1_500_000_000_900));
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        prop_assert_eq!(parse_digits(&text).is_some(), digits);
        let expected = if seconds > LONGEST_DELTA { seconds.saturating_sub(1_500_000_000) } else { seconds };
        prop_assert_eq!(parse_reset(&seconds.to_string(), &clock), Some(expected));
    }
}

#[test]
fn a_field_of_ten_thousand_members_is_merged() {
    let members: Vec<_> = (0..10_000).map(|name| format!("\"{name:x}\"")).collect();
    let line = members.join(",");
    assert!(line.len() > 64 * 1024);
    let [_, merged] = merge(&limits(&["a", "hourly"]), &[], slice::from_ref(&line));
    let own = "\"tidegate.a\";r=2;t=1, \"hourly\";r=2;t=1";
    assert_eq!(merged, format!("{line}, {own}"));
}

#[test]
fn a_reset_is_rounded_up_and_bounded() {
    let clock = Clock::virtual_from(UNIX_EPOCH + Duration::from_mins(25_000_000));
    let cases = [
        ("0", Some(0)),
        ("1.0", Some(1)),
        ("1.001", Some(2)),
        ("1500000007.25", Some(8)),
        ("1499999999", Some(0)),
        ("1000000000", Some(1_000_000_000)),
        ("18446744073709551615", Some(LONGEST_RESET)),
        ("18446744073709551616", None),
        ("", None),
        (".5", None),
        ("1.", None),
        ("1.5s", None),
        ("-1", None),
        (" 1", None),
    ];
    for (text, seconds) in cases {
        assert_eq!(parse_reset(text, &clock), seconds, "{text}");
    }
}
