use super::*;

#[test]
fn a_client_that_never_retries_is_a_warning() {
    let attempts = || [get(0).got(503)];
    assert_eq!(verdict(Rule::Retries, attempts()), Verdict::Warn);
    let running = judge(&trace_of(attempts().into()), false);
    assert_eq!(
        rule_of(&running, Rule::Retries).verdict,
        Verdict::NotEnoughData
    );
    let retried = [get(0).got(503), get(1_000).got(503)];
    let judged = judged(Rule::Retries, retried);
    assert_eq!(
        (judged.verdict, judged.summary.as_str()),
        (Verdict::Pass, "Retried 1 of 2 retryable failures.")
    );
}

#[test]
fn a_failed_post_without_a_key_need_not_be_retried() {
    assert_eq!(
        verdict(Rule::Retries, [post(0, None, "a").got(503)]),
        Verdict::NotEnoughData
    );
    assert_eq!(
        verdict(Rule::Retries, [post(0, Some("k"), "a").got(503)]),
        Verdict::Warn
    );
    assert_eq!(
        verdict(Rule::Retries, [get(0).got(404)]),
        Verdict::NotEnoughData
    );
}

#[test]
fn a_retry_is_judged_by_the_status_before_it() {
    for (status, expected) in [
        (400, Verdict::Fail),
        (401, Verdict::Fail),
        (404, Verdict::Fail),
        (408, Verdict::NotEnoughData),
        (409, Verdict::NotEnoughData),
        (422, Verdict::NotEnoughData),
        (425, Verdict::NotEnoughData),
        (429, Verdict::NotEnoughData),
        (500, Verdict::NotEnoughData),
    ] {
        let attempts = [get(0).got(status), get(1_000).got(200)];
        assert_eq!(verdict(Rule::Retryable, attempts), expected, "{status}");
    }
    assert_eq!(verdict(Rule::Retryable, [get(0).got(400)]), Verdict::Pass);
}

#[test]
fn a_request_with_new_credentials_after_401_is_no_retry() {
    let attempts = [
        get(0).got(401),
        get(1_000).sent("authorization", "Bearer new").got(200),
    ];
    assert_eq!(verdict(Rule::Retryable, attempts), Verdict::Pass);
    for name in ["proxy-authorization", "cookie", "expect", "x-api-key"] {
        let changed = [
            get(0).sent(name, "a=old").got(401),
            get(1_000).sent(name, "a=new").got(200),
        ];
        assert_eq!(verdict(Rule::Retryable, changed), Verdict::Pass, "{name}");
    }
    let other = [
        get(0).sent("x-attempt", "1").got(401),
        get(1_000).sent("x-attempt", "2").got(200),
    ];
    assert_eq!(verdict(Rule::Retryable, other), Verdict::Fail);
}

#[test]
fn a_new_signature_with_the_same_credentials_is_no_correction() {
    let signed = |at, signature| {
        let value = format!(
            "AWS4-HMAC-SHA256 Credential=AKIA/20270115/eu-west-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature={signature}"
        );
        get(at).sent("authorization", &value)
    };
    let attempts = [signed(0, "aa").got(400), signed(1_000, "bb").got(200)];
    assert_eq!(verdict(Rule::Retryable, attempts), Verdict::Fail);
}

#[test]
fn a_truncated_400_is_a_lost_response() {
    let attempts = [
        get(0).ended(Some(400), ResponseEnd::Aborted, 1),
        get(1_000).got(200),
    ];
    assert_eq!(
        verdict(Rule::Retryable, attempts.clone()),
        Verdict::NotEnoughData
    );
    assert_eq!(verdict(Rule::Retries, attempts), Verdict::Pass);
}

#[test]
fn the_evidence_has_one_observation_per_status() {
    let attempts = [
        get(0).got(400),
        get(100).got(404),
        get(200).got(404),
        get(300).got(200),
    ];
    let judged = judged(Rule::Retryable, attempts);
    let summary = "Retried statuses that a retry cannot change: 400 (1 time), 404 (2 times).";
    assert_eq!(judged.summary, summary);
    let requests = judged.evidence.iter().map(|evidence| evidence.attempt);
    assert_eq!(requests.collect::<Vec<_>>(), [Some(1), Some(2), None]);
}

#[test]
fn a_final_409_or_422_must_not_be_retried() {
    let after = |first: Attempt| verdict(Rule::FinalResponse, [first, get(1_000).got(200)]);
    assert_eq!(after(get(0).got(422)), Verdict::Fail);
    assert_eq!(
        after(get(0).got(422).header("x-should-retry", "true")),
        Verdict::Fail
    );
    for name in ["x-should-retry", "stripe-should-retry"] {
        assert_eq!(after(get(0).got(409).header(name, "false")), Verdict::Fail);
        assert_eq!(
            after(get(0).got(409).header(name, "true")),
            Verdict::NotEnoughData
        );
    }
    assert_eq!(
        after(get(0).got(409).header("retry-after", "1")),
        Verdict::NotEnoughData
    );
    let contradictory = get(0).got(409).header("x-should-retry", "false");
    assert_eq!(
        after(contradictory.header("retry-after", "1")),
        Verdict::Fail
    );
    assert_eq!(after(get(0).got(409)), Verdict::Warn);
    assert_eq!(
        verdict(Rule::FinalResponse, [get(0).got(409)]),
        Verdict::Pass
    );
}

#[test]
fn more_than_20_attempts_fail_if_the_client_still_retries_and_are_otherwise_a_warning() {
    let attempts = |number| (0..number).map(|index| get(index * 1_000).got(503));
    assert_eq!(verdict(Rule::Stops, attempts(101)), Verdict::Fail);
    assert_eq!(verdict(Rule::Stops, attempts(100)), Verdict::Warn);
    assert_eq!(verdict(Rule::Stops, attempts(21)), Verdict::Warn);
    assert_eq!(verdict(Rule::Stops, attempts(20)), Verdict::Pass);
    assert_eq!(verdict(Rule::Stops, attempts(1)), Verdict::NotEnoughData);
    let endless = judge(&trace_of(attempts(21).collect()), false);
    let stops = rule_of(&endless, Rule::Stops);
    assert_eq!(stops.verdict, Verdict::Fail);
    assert_eq!(
        stops.evidence[0].text,
        "21 attempts in 20.000 s, last outcome: 503"
    );
    assert_eq!(stops.evidence[1].text, SEPARATE);
    let late = || attempts(101).chain([get(101_000).got(200)]).collect();
    for has_ended in [false, true] {
        let judgement = judge(&trace_of(late()), has_ended);
        assert_eq!(rule_of(&judgement, Rule::Stops).verdict, Verdict::Warn);
    }
    let running = judge(&trace_of(attempts(20).collect()), false);
    assert_eq!(
        rule_of(&running, Rule::Stops).verdict,
        Verdict::NotEnoughData
    );
    let succeeded = attempts(3).chain([get(9_000).got(200)]);
    assert_eq!(verdict(Rule::Stops, succeeded), Verdict::NotEnoughData);
}

#[test]
fn the_summary_of_stops_has_the_attempts_and_the_total_time() {
    let second = |at, status| get(at).by(2).got(status);
    let attempts = [
        get(0).got(503),
        second(10, 503),
        get(1_000).got(503),
        get(3_000).got(503),
        second(4_010, 503),
    ];
    let summary = judged(Rule::Stops, attempts).summary;
    assert_eq!(
        summary,
        "Gave up after 2 to 3 attempts and 3.000 s to 4.000 s (2 operations)."
    );
}

#[test]
fn a_client_need_not_read_a_successful_response_to_its_end() {
    let closed = get(0).ended(Some(200), ResponseEnd::ClientClosed, 1);
    assert_eq!(verdict(Rule::Retries, [closed]), Verdict::NotEnoughData);
    assert_eq!(verdict(Rule::Retries, [get(0)]), Verdict::Warn);
}
