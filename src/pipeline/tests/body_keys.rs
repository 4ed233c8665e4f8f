//! Tests of idempotency keys in a member of a JSON body (`body_field`).

use super::*;

const JSON: &str = "content-type: application/json";

fn pay(lines: &str) -> Builder {
    with_lines(get("/pay").method(Method::POST), lines)
}

#[tokio::test]
async fn a_key_in_the_member_counts_like_one_in_the_header() {
    let chain = Chain::new(&keyed("body_field = \"idempotency_key\""));
    let cases: [(&str, &str, usize); 16] = [
        (JSON, r#"{"amount":1, "idempotency_key":"k1"}"#, 1),
        (JSON, r#"{"amount":1, "idempotency_key":"k1"}"#, 1),
        (
            "content-type: Application/JSON; charset=utf-8",
            r#"{"amount":1, "idempotency_key":"k1"}"#,
            1,
        ),
        (JSON, r#"{"amount":1, "idempotency_key":"k2"}"#, 2),
        (
            "content-type: application/json | idempotency-key: \"k 3\"",
            r#"{"idempotency_key":"k 3"}"#,
            3,
        ),
        (JSON, r#"{"idempotency_key":"k 3"}"#, 3),
        (
            "content-type: application/json | idempotency-key: k4",
            "[1]",
            4,
        ),
        (
            "content-type: application/json | idempotency-key: k4",
            "[1]",
            4,
        ),
        // Requests without a key: a member of another object, other media types, and bodies without the member.
        (JSON, r#"{"job":{"idempotency_key":"k1"}}"#, 5),
        ("content-type: text/plain", r#"{"idempotency_key":"k1"}"#, 6),
        (
            "content-type: application/vnd.api+json",
            r#"{"idempotency_key":"k1"}"#,
            7,
        ),
        ("", r#"{"idempotency_key":"k1"}"#, 8),
        (JSON, "", 9),
        (JSON, " [ 1, 2 ]\r\n", 10),
        (JSON, "null", 11),
        (JSON, "{}", 12),
    ];
    for (lines, body, expected) in cases {
        let before = chain.executions();
        let response = chain.send_body(pay(lines), body).await;
        response.assert_created(expected);
        assert_eq!(response.is_replay(), expected <= before, "{body}");
        if expected > before {
            assert_eq!(chain.received.lock()[before].1, body);
        }
    }
    let put = pay(JSON).method(Method::PUT);
    let put = chain.send_body(put, r#"{"idempotency_key":"k1"}"#).await;
    put.assert_created(13);
    assert_eq!(chain.records().await.completed, 4);
    let reused = r#"{"amount":2, "idempotency_key":"k1"}"#;
    let reused = chain.send_body(pay(JSON), reused).await;
    reused.assert_problem(422, "idempotency-key-reused");
}

#[tokio::test]
async fn a_body_without_a_valid_key_is_rejected_and_claims_nothing() {
    let chain = Chain::new(&keyed("body_field = \"idempotency_key\""));
    let long = format!(r#"{{"idempotency_key":"{}"}}"#, "k".repeat(256));
    let cases: [(&[u8], &str); 8] = [
        (
            br#"{"idempotency_key":"k1","\u0069dempotency\u005fkey":"k2"}"#,
            "more than once",
        ),
        (br#"{"idempotency_key":17}"#, "not a JSON string"),
        (br#"{"idempotency_key":["k1"]}"#, "not a JSON string"),
        (br#"{"idempotency_key":""}"#, "empty"),
        (br#"{"idempotency_key":"a\tb"}"#, "ASCII"),
        (long.as_bytes(), "longer than 255"),
        (b"{\"idempotency_key\":\"k1\"", "not valid JSON"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "compressed"),
    ];
    for (body, reason) in cases {
        let rejected = chain.send_body(pay(JSON), body.to_vec()).await;
        rejected.assert_problem(400, "idempotency-key-invalid");
        let detail = rejected.problem()["detail"].to_string();
        assert!(detail.contains(reason), "{detail}");
        assert!(detail.contains("'idempotency_key'"), "{detail}");
    }
    let differing = pay(JSON).header("idempotency-key", "k2");
    let differing = chain.send_body(differing, r#"{"idempotency_key":"k1"}"#);
    let differing = differing.await;
    differing.assert_problem(400, "idempotency-key-invalid");
    let detail = differing.problem()["detail"].to_string();
    assert!(detail.contains("differs"), "{detail}");
    assert_eq!(chain.executions(), 0);
    assert_eq!(chain.records().await, RecordCounts::default());
}

#[tokio::test]
async fn a_required_key_can_be_in_either_source() {
    let rule = keyed("body_field = \"idempotency_key\", scope = \"client\"");
    let chain = Chain::new(&rule.replace("optional", "required"));
    for (lines, body) in [
        ("", ""),
        ("", r#"{"idempotency_key":"k1"}"#),
        (JSON, ""),
        (JSON, r#"{"Idempotency_key":"k1"}"#),
        (JSON, "[]"),
    ] {
        let rejected = chain.send_body(pay(lines), body).await;
        rejected.assert_problem(400, "idempotency-key-missing");
        let detail = rejected.problem()["detail"].to_string();
        for source in ["'idempotency-key'", "'idempotency_key'"] {
            assert!(detail.contains(source), "{detail}");
        }
    }
    let in_body = chain.send_body(pay(JSON), r#"{"idempotency_key":"k1"}"#);
    in_body.await.assert_created(1);
    let in_header = chain.send_body(pay(JSON).header("idempotency-key", "k2"), "{}");
    in_header.await.assert_created(2);
    assert_eq!(chain.shared.metrics[0].routes[0].keyed.invalid.get(), 5);
}

#[tokio::test]
async fn max_request_bounds_bodies_that_are_searched_or_compared() {
    let rule = "max_request = \"1KiB\", body_field = \"idempotency_key\"";
    let chain = Chain::new(&keyed(rule));
    let large = "x".repeat(1025);
    for request in [pay(JSON), post("k1")] {
        let rejected = chain.send_body(request, large.clone()).await;
        rejected.assert_problem(413, "payload-too-large");
        assert_eq!(rejected.header("x-should-retry"), Some("false"));
        let detail = rejected.problem()["detail"].to_string();
        assert!(detail.contains("1024"), "{detail}");
    }
    assert_eq!(chain.records().await, RecordCounts::default());
    let largest = || chain.send_body(post("k1"), "x".repeat(1024));
    largest().await.assert_created(1);
    assert!(largest().await.is_replay());
    chain.send_body(pay(""), large).await.assert_created(2);
}
