use http::Version;

use super::*;

#[test]
fn a_retry_with_the_same_key_and_body_passes() {
    let attempts = [
        post(0, Some("k"), "a").got(503),
        post(1_000, Some("k"), "a").got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, attempts.clone()), Verdict::Pass);
    assert_eq!(verdict(Rule::SameBody, attempts.clone()), Verdict::Pass);
    assert_eq!(verdict(Rule::NewKey, attempts), Verdict::NotEnoughData);
}

#[test]
fn a_retry_with_another_key_or_none_fails() {
    for key in [Some("other"), None] {
        let attempts = [limited(Some("k")), post(1_001, key, "a").got(200)];
        assert_eq!(verdict(Rule::SameKey, attempts), Verdict::Fail, "{key:?}");
    }
    let lost = |at, key| post(at, Some(key), "a").ended(None, ResponseEnd::Aborted, 1);
    let attempts = [
        lost(0, "1"),
        lost(100, "2"),
        post(300, Some("3"), "a").got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, attempts), Verdict::Fail);
}

/// Returns a POST request that is rejected and can be retried after one second.
fn limited(key: Option<&str>) -> Attempt {
    post(0, key, "a").got(429).header("retry-after", "1")
}

#[test]
fn identical_operations_that_all_fail_change_keys_only_if_their_gaps_show_retries() {
    let failed = |times: &[u64]| {
        let keys = times.iter().map(ToString::to_string);
        let attempts = times.iter().zip(keys);
        let attempts = attempts.map(|(at, key)| post(*at, Some(&key), "a").got(503));
        verdict(Rule::SameKey, attempts.collect::<Vec<_>>())
    };
    assert_eq!(failed(&[0, 100, 300]), Verdict::Fail);
    assert_eq!(failed(&[0, 1_000]), Verdict::NotEnoughData);
    assert_eq!(failed(&[0, 1_000, 2_000, 3_000]), Verdict::NotEnoughData);
    assert_eq!(failed(&[0, 1_000, 2_200, 5_000]), Verdict::NotEnoughData);
    assert_eq!(failed(&[0, 40, 120]), Verdict::NotEnoughData);
    for (at, expected) in [
        (901, Verdict::Fail),
        (1_101, Verdict::Fail),
        (1_102, Verdict::NotEnoughData),
    ] {
        let attempts = [limited(Some("1")), post(at, Some("2"), "a").got(503)];
        assert_eq!(verdict(Rule::SameKey, attempts), expected, "{at}");
    }
}

#[test]
fn a_client_that_gave_up_can_start_again_with_a_new_key() {
    let attempts = [
        post(0, Some("k"), "a").got(503),
        post(1_000, Some("k"), "a").got(503),
        post(3_000, Some("other"), "a").got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, attempts), Verdict::Pass);
}

#[test]
fn identical_operations_of_a_client_without_retries_do_not_change_keys() {
    // The third operation follows a failure no later than the second follows a success.
    let attempts = [
        post(0, Some("1"), "a").got(200),
        post(1_000, Some("2"), "a").got(503),
        post(2_000, Some("3"), "a").got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, attempts), Verdict::NotEnoughData);
    let concurrent = [
        post(0, Some("1"), "a").ended(Some(503), ResponseEnd::Complete, 500),
        post(100, Some("2"), "a").got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, concurrent), Verdict::NotEnoughData);
    let of_others = [
        post(0, Some("1"), "a").got(503),
        post(1_000, Some("2"), "a").by(2).got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, of_others), Verdict::NotEnoughData);
}

#[test]
fn a_changed_key_is_found_between_identical_operations() {
    let attempts = [
        post(0, Some("1"), "a").got(200),
        post(10, Some("2"), "a").got(503),
        post(1_010, Some("3"), "a").got(200),
        post(1_020, Some("4"), "a").got(200),
    ];
    assert_eq!(verdict(Rule::SameKey, attempts), Verdict::Fail);
}

#[test]
fn another_body_or_target_under_one_key_fails() {
    let first = || post(0, Some("k"), "a").got(503);
    let changed = [first(), post(1_000, Some("k"), "ab").got(200)];
    let judged = judged(Rule::SameBody, changed);
    assert_eq!(judged.verdict, Verdict::Fail);
    assert_eq!(
        judged.evidence[0].text,
        "503 at 1 ms, retried with another body (2 B instead of 1 B)"
    );
    let moved = Attempt {
        target: "/other".into(),
        ..post(1_000, Some("k"), "a").got(200)
    };
    assert_eq!(verdict(Rule::SameBody, [first(), moved]), Verdict::Fail);
}

#[test]
fn a_body_that_the_gateway_did_not_read_to_its_end_is_not_compared() {
    let rejected = post(0, Some("k"), "a").sent("content-length", "2").got(429);
    let attempts = [
        rejected,
        post(1_000, Some("k"), "ab")
            .sent("content-length", "2")
            .got(200),
    ];
    assert_eq!(verdict(Rule::SameBody, attempts), Verdict::NotEnoughData);
}

#[test]
fn multipart_bodies_with_different_boundaries_are_not_compared() {
    let sent = |at, boundary: &str, text, status| {
        let value = format!("multipart/form-data; boundary={boundary}");
        let attempt = post(at, Some("k"), text).sent("content-type", &value);
        attempt.got(status)
    };
    let first = || sent(0, "x", "--x", 503);
    let other = [first(), sent(1_000, "y", "--y", 200)];
    assert_eq!(verdict(Rule::SameBody, other), Verdict::NotEnoughData);
    let same = [first(), sent(1_000, "x", "--z", 200)];
    assert_eq!(verdict(Rule::SameBody, same), Verdict::Fail);
    let moved = Attempt {
        target: "/other".into(),
        ..sent(1_000, "y", "--y", 200)
    };
    assert_eq!(verdict(Rule::SameBody, [first(), moved]), Verdict::Fail);
}

#[test]
fn a_key_must_not_be_used_again_after_success() {
    let first = || post(0, Some("k"), "a").got(200);
    let again = |key, text| [first(), post(1_000, Some(key), text).got(200)];
    assert_eq!(verdict(Rule::NewKey, again("k", "b")), Verdict::Fail);
    assert_eq!(verdict(Rule::NewKey, again("k", "a")), Verdict::Warn);
    assert_eq!(verdict(Rule::NewKey, again("other", "a")), Verdict::Pass);
    assert_eq!(
        verdict(Rule::SameBody, again("k", "b")),
        Verdict::NotEnoughData
    );
    let of_others = [first(), post(1_000, Some("k"), "b").by(2).got(200)];
    assert_eq!(verdict(Rule::NewKey, of_others), Verdict::Pass);
}

#[test]
fn a_post_or_patch_must_not_be_repeated_without_a_key() {
    let first = || post(0, None, "a").got(503);
    let repeated = [first(), post(1_000, None, "a").got(200)];
    let judged = judged(Rule::UnsafeRetry, repeated);
    assert_eq!(judged.verdict, Verdict::Fail);
    assert_eq!(
        judged.evidence[0].text,
        "503 at 1 ms, POST /orders repeated after 999 ms without a key"
    );
    assert_eq!(verdict(Rule::UnsafeRetry, [first()]), Verdict::Pass);
    assert_eq!(
        verdict(Rule::UnsafeRetry, [get(0).got(503), get(1_000).got(200)]),
        Verdict::NotEnoughData
    );
    let other = [first(), post(1_000, None, "b").got(200)];
    assert_eq!(verdict(Rule::UnsafeRetry, other), Verdict::Pass);
}

#[test]
fn a_post_can_be_repeated_with_new_credentials_or_after_a_response_that_shows_no_execution() {
    let again = |first: Attempt| {
        let retry = post(1_000, None, "a").sent("authorization", "Bearer new");
        let retry = Attempt {
            version: first.version,
            ..retry.got(200)
        };
        verdict(Rule::UnsafeRetry, [first, retry])
    };
    let old = || post(0, None, "a").sent("authorization", "Bearer old");
    assert_eq!(again(old().got(429)), Verdict::NotEnoughData);
    let same = || post(0, None, "a").sent("authorization", "Bearer new");
    assert_eq!(again(same().got(429)), Verdict::Fail);
    assert_eq!(again(same().got(400)), Verdict::NotEnoughData);
    let reset = |text: &str, version, end| Attempt {
        step: Some(step(text)),
        version,
        ..same().ended(None, end, 1)
    };
    let aborted = |step, version| again(reset(step, version, ResponseEnd::Aborted));
    let refused = "delay 1ms + refused-stream times=2";
    assert_eq!(aborted(refused, Version::HTTP_2), Verdict::NotEnoughData);
    assert_eq!(aborted(refused, Version::HTTP_11), Verdict::Fail);
    assert_eq!(aborted("reset", Version::HTTP_2), Verdict::Fail);
    let closed = reset(refused, Version::HTTP_2, ResponseEnd::ClientClosed);
    assert_eq!(again(closed), Verdict::Fail);
}

#[test]
fn a_post_can_be_repeated_after_a_refused_stream_if_a_tab_follows_the_action() {
    let refused = Attempt {
        step: Some(step("refused-stream\ttimes=2")),
        version: Version::HTTP_2,
        ..post(0, None, "a").ended(None, ResponseEnd::Aborted, 1)
    };
    let repeated = [refused, post(1_000, None, "a").got(200)];
    assert_eq!(verdict(Rule::UnsafeRetry, repeated), Verdict::NotEnoughData);
}

#[test]
fn a_post_after_a_timeout_of_the_client_is_a_repetition() {
    let attempts = [post(0, None, "a"), post(1_000, None, "a").got(200)];
    let judged = judged(Rule::UnsafeRetry, attempts);
    assert_eq!(judged.verdict, Verdict::Fail);
    assert_eq!(
        judged.evidence[0].text,
        "no complete response at 0 ms, POST /orders repeated after 1.000 s without a key"
    );
}

#[test]
fn the_time_of_a_failure_is_the_arrival_if_the_client_stopped_waiting() {
    let closed = post(100, None, "a").ended(Some(200), ResponseEnd::ClientClosed, 9_000);
    let attempts = [closed, post(1_100, None, "a").got(200)];
    assert_eq!(
        judged(Rule::UnsafeRetry, attempts).evidence[0].text,
        "no complete response at 100 ms, POST /orders repeated after 1.000 s without a key"
    );
}

#[test]
fn another_key_after_a_final_response_or_without_a_body_is_a_new_operation() {
    let again = |text, status| {
        let attempts = [
            post(0, Some("1"), text).got(status),
            post(1_000, Some("2"), text).got(status),
            post(3_000, Some("3"), text).got(200),
        ];
        verdict(Rule::SameKey, attempts)
    };
    assert_eq!(again("a", 503), Verdict::Fail);
    assert_eq!(again("a", 400), Verdict::NotEnoughData);
    assert_eq!(again("", 503), Verdict::NotEnoughData);
}

#[test]
fn identical_operations_without_a_pause_do_not_change_keys() {
    let attempts = [0, 5, 10].map(|at| post(at, Some(&at.to_string()), "a").got(503));
    assert_eq!(verdict(Rule::SameKey, attempts), Verdict::NotEnoughData);
}

#[test]
fn evidence_contains_neither_queries_nor_keys() {
    let secret = |at, key: Option<&str>, target: &str, status| Attempt {
        target: target.into(),
        ..post(at, key, "a").got(status)
    };
    let attempts = [
        secret(0, Some("secret-key"), "/a?token=secret", 503),
        secret(1_000, Some("secret-key"), "/a?token=secret-2", 200),
        secret(2_000, Some("secret-key"), "/b?token=secret", 200),
        secret(3_000, None, "/c?token=secret", 503),
        secret(4_000, None, "/c?token=secret", 503),
        secret(5_000, Some("secret-key-2"), "/d?token=secret", 503),
        secret(6_000, Some("secret-key-2"), "/d?token=secret", 503),
    ];
    let judgement = judge(&trace_of(attempts.into()), true);
    let texts = judgement.rules.iter().flat_map(|rule| &rule.evidence);
    let texts: Vec<_> = texts.map(|evidence| evidence.text.as_str()).collect();
    assert!(
        texts.iter().any(|text| text.contains("another query")),
        "{texts:?}"
    );
    assert!(
        texts
            .iter()
            .any(|text| text.contains("POST /b instead of POST /a")),
        "{texts:?}"
    );
    assert!(
        texts.iter().any(|text| text.contains("POST /c repeated")),
        "{texts:?}"
    );
    assert!(
        !texts.iter().any(|text| text.contains("secret")),
        "{texts:?}"
    );
}
