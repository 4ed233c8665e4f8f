//! Tests of the order of the members of `RateLimit` on a 429: rate limits that reject the request are first, longest
//! wait first.

use super::limited;
use crate::support::{ClientResponse, RefusingPort, Upstream};

/// Member of `RateLimit`: its name, the remaining tokens (`r`) and the wait in seconds (`t`).
type Member = (String, u64, u64);

fn members(response: &ClientResponse) -> Vec<Member> {
    let field = response.header("ratelimit");
    let member = |text: &str| -> Option<Member> {
        let (name, rest) = text.strip_prefix('"')?.split_once("\";r=")?;
        let (r, t) = rest.split_once(";t=")?;
        Some((name.to_owned(), r.parse().ok()?, t.parse().ok()?))
    };
    field
        .split(", ")
        .map(|text| {
            member(text)
                .unwrap_or_else(|| panic!("cannot parse the member {text} of RateLimit: {field}"))
        })
        .collect()
}

fn names(response: &ClientResponse) -> Vec<String> {
    members(response)
        .into_iter()
        .map(|(name, ..)| name)
        .collect()
}

/// Sends one request that these rate limits admit and one that they reject. Returns the rejection.
async fn rejected(respond: &str, limits: &[(&str, &str)]) -> ClientResponse {
    let upstream = Upstream::replying(200);
    let gateway = limited(respond, limits).upstream(&upstream).start();
    let client = gateway.client();
    assert_eq!(client.get("/").send().await.status, 200);
    let rejected = client.get("/").send().await;
    assert_eq!(rejected.status, 429);
    rejected
}

#[tokio::test]
async fn of_two_exhausted_limits_the_one_with_the_longer_wait_comes_first() {
    for respond in ["", "rate_limit = \"draft\"", "rate_limit = \"draft-11\""] {
        let limits = [("fast", "rate = \"1/m\""), ("slow", "rate = \"1/h\"")];
        let rejected = rejected(respond, &limits).await;
        assert_eq!(names(&rejected), ["slow", "fast"]);
        let [(_, _, slow), (_, _, fast)] = &members(&rejected)[..] else {
            panic!("RateLimit should have two members")
        };
        assert_eq!(*slow, rejected.retry_after());
        assert!((3_500..=3_600).contains(slow) && (30..=60).contains(fast));
        let policy = "\"fast\";q=1;w=60, \"slow\";q=1;w=3600";
        assert_eq!(rejected.header("ratelimit-policy"), policy);
    }
}

#[tokio::test]
async fn limits_that_did_not_reject_follow_in_route_order() {
    let limits = [
        ("wide", "rate = \"100/h\""),
        ("minute", "rate = \"1/m\""),
        ("watching", "rate = \"1/d\"\nmode = \"shadow\""),
        ("day", "rate = \"1/d\""),
        ("wider", "rate = \"200/h\""),
        ("hour", "rate = \"1/h\""),
    ];
    let rejected = rejected("", &limits).await;
    assert_eq!(names(&rejected), ["day", "hour", "minute", "wide", "wider"]);
    let members = members(&rejected);
    assert_eq!(members[0].2, rejected.retry_after());
    let tokens_left: Vec<_> = members
        .iter()
        .map(|&(_, tokens_left, _)| tokens_left)
        .collect();
    assert_eq!(tokens_left, [0, 0, 0, 99, 199]);
    let policy = rejected.header("ratelimit-policy");
    let policies: Vec<_> = policy
        .split(", ")
        .map(|policy_member| &policy_member[..4])
        .collect();
    assert_eq!(policies, ["\"wid", "\"min", "\"day", "\"wid", "\"hou"]);
}

#[tokio::test]
async fn limits_with_the_same_wait_keep_route_order() {
    let limits = [("b", "rate = \"1/h\""), ("a", "rate = \"1/h\"")];
    let rejected = rejected("", &limits).await;
    assert_eq!(names(&rejected), ["b", "a"]);
    assert_eq!(rejected.json()["violated-policies"][0], "b");
    let detail = rejected.json()["detail"].to_string();
    assert!(detail.contains("'b'"), "{detail}");
}

/// A rate limit with `on_exceed = "delay"` assigns each request a time slot and delays the request until this slot. It
/// rejects the request if the slot is more than `max_delay` away. In this test, the slot is 2 h away and `max_delay` is
/// 30 min, so the wait is 1.5 h (5,400 s).
#[tokio::test]
async fn the_wait_of_a_delaying_limit_is_the_time_until_its_slot_is_within_max_delay() {
    let delaying = "rate = \"1/2h\"\nburst = 0\non_exceed = \"delay\"\nmax_delay = \"30m\"";
    let limits = [("fast", "rate = \"1/h\""), ("outflow", delaying)];
    let response = rejected("", &limits).await;
    assert_eq!(names(&response), ["outflow", "fast"]);
    let wait = members(&response)[0].2;
    assert_eq!(wait, response.retry_after());
    assert!((5_300..=5_400).contains(&wait), "{wait}");
    assert_eq!(response.json()["violated-policies"][1], "fast");

    // This `outflow` would only delay the request and not reject it, because the time slot of the request is within
    // `max_delay`. The member `outflow` is thus not first in `RateLimit`.
    let delaying = "rate = \"1/2h\"\nburst = 0\non_exceed = \"delay\"\nmax_delay = \"3h\"";
    let limits = [("outflow", delaying), ("fast", "rate = \"1/h\"")];
    let response = rejected("", &limits).await;
    assert_eq!(names(&response), ["fast", "outflow"]);
    assert_eq!(members(&response)[0].2, response.retry_after());
    assert!(members(&response)[1].2 > 7_000);
    assert_eq!(
        response.json()["violated-policies"],
        serde_json::json!(["fast"])
    );
}

#[tokio::test]
async fn a_problem_document_lists_the_limits_that_rejected_the_request() {
    let limits = [
        ("fast", "rate = \"1/m\""),
        ("wide", "rate = \"9/m\""),
        ("watching", "rate = \"1/d\"\nmode = \"shadow\""),
        ("slow", "rate = \"1/h\""),
    ];
    for respond in ["", "rate_limit = \"x\"", "rate_limit = \"off\""] {
        let rejected = rejected(respond, &limits).await;
        let violated = &rejected.json()["violated-policies"];
        assert_eq!(*violated, serde_json::json!(["slow", "fast"]), "{respond}");
    }
}

#[tokio::test]
async fn only_a_json_body_lists_the_limits() {
    let upstream = Upstream::replying(200);
    let limits = [("fast", "rate = \"1/m\""), ("slow", "rate = \"1/h\"")];
    let gateway = limited("", &limits).upstream(&upstream).start();
    let client = gateway.client();
    assert_eq!(client.get("/").send().await.status, 200);
    for accept in ["text/html", "text/plain"] {
        let rejected = client.get("/").header("Accept", accept).send().await;
        assert_eq!(rejected.status, 429);
        let text = rejected.text();
        assert!(
            text.contains("slow") && !text.contains("fast") && !text.contains("violated"),
            "{text}"
        );
    }
    // Problem documents for other reasons than a rate limit have no `violated-policies`.
    let gateway = crate::support::Gateway::proxying("")
        .upstream_url(&RefusingPort::permanent_url())
        .start();
    let unavailable = gateway.client().get("/").send().await;
    assert_eq!(unavailable.status, 502);
    assert!(unavailable.json().get("violated-policies").is_none());
}
