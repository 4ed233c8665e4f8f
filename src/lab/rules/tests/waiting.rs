use super::*;

/// Returns the verdict on a 429 with these headers, retried `gap` milliseconds after the start of the response.
fn after(headers: &[(&str, &str)], gap: u64) -> Verdict {
    verdict(Rule::RetryAfter, retried(headers, gap))
}

fn retried(headers: &[(&str, &str)], gap: u64) -> [Attempt; 2] {
    let limited = headers
        .iter()
        .fold(get(0).got(429), |attempt, (name, value)| {
            attempt.header(name, value)
        });
    [limited, get(gap + 1).got(200)]
}

/// Returns the date this number of whole seconds after the start of the trace, which is 300 ms after a whole second.
fn date(seconds: u64) -> String {
    httpdate::fmt_http_date(trace_of(Vec::new()).started + Duration::from_secs(seconds))
}

#[test]
fn a_retry_is_early_if_it_arrives_more_than_50_ms_before_the_stated_time() {
    let headers = [("retry-after", "2")];
    assert_eq!(after(&headers, 1_949), Verdict::Fail);
    assert_eq!(after(&headers, 1_950), Verdict::Pass);
    assert_eq!(after(&headers, 9_000), Verdict::Pass);
}

#[test]
fn slow_timers_of_the_gateway_extend_the_tolerance_to_at_most_200_ms() {
    for (timer_delay, gap, expected) in [
        (120, 1_880, Verdict::Pass),
        (120, 1_879, Verdict::Fail),
        (900, 1_800, Verdict::Pass),
        (900, 1_799, Verdict::Fail),
    ] {
        let mut trace = trace_of(retried(&[("retry-after", "2")], gap).into());
        trace.timer_delay = millis(timer_delay);
        let judgement = judge(&trace, true);
        let verdict = rule_of(&judgement, Rule::RetryAfter).verdict;
        assert_eq!(verdict, expected, "{timer_delay} {gap}");
    }
}

#[test]
fn a_date_is_compared_with_the_system_time_of_the_response() {
    // The date is 1.7 s after the start of the trace, and the response starts 1 ms after it.
    let date = date(2);
    let headers = [("retry-after", date.as_str())];
    assert_eq!(after(&headers, 1_648), Verdict::Fail);
    assert_eq!(after(&headers, 1_649), Verdict::Pass);
    let summary = judged(Rule::RetryAfter, retried(&headers, 1_700)).summary;
    assert!(summary.contains("date"), "{summary}");
}

#[test]
fn the_shortest_of_several_stated_times_counts_and_the_obeyed_form_is_reported() {
    let headers = [("retry-after", "1"), ("retry-after-ms", "250")];
    assert_eq!(after(&headers, 199), Verdict::Fail);
    let summary = |gap| judged(Rule::RetryAfter, retried(&headers, gap)).summary;
    assert!(summary(260).contains("(form of the header: milliseconds)"));
    assert!(summary(1_001).contains("(form of the header: seconds)"));
    assert_eq!(
        after(&[("x-amz-retry-after", "1500")], 1_400),
        Verdict::Fail
    );
    assert_eq!(
        after(&[("x-amz-retry-after", "1500")], 1_500),
        Verdict::Pass
    );
}

#[test]
fn invalid_headers_and_past_dates_state_nothing() {
    let past = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH);
    for value in ["-1", "1.5", "soon", "", "0", &past] {
        let verdict = after(&[("retry-after", value)], 1);
        assert_eq!(verdict, Verdict::NotEnoughData, "{value}");
    }
    for value in ["-250", "250.", ".5", "2.5.0", "1e3", "x"] {
        let verdict = after(&[("retry-after-ms", value)], 1);
        assert_eq!(verdict, Verdict::NotEnoughData, "{value}");
    }
}

#[test]
fn milliseconds_can_have_decimals() {
    let headers = [("retry-after-ms", "1200.5")];
    assert_eq!(after(&headers, 1_150), Verdict::Fail);
    assert_eq!(after(&headers, 1_151), Verdict::Pass);
}

#[test]
fn the_evidence_of_an_early_retry_has_the_header_the_stated_time_and_the_gap() {
    let judged = judged(Rule::RetryAfter, retried(&[("retry-after", "2")], 1_000));
    assert_eq!(
        judged.summary,
        "1 of 1 retry arrived before the stated time, up to 1.000 s early."
    );
    assert_eq!(
        judged.evidence[0].text,
        "429 at 1 ms, Retry-After (seconds) states 2.000 s, retried after 1.000 s (1.000 s early)"
    );
    assert_eq!(judged.evidence[0].attempt, Some(1));
    assert_eq!(judged.evidence[1].text, SEPARATE);
    let keyed = retried(&[("retry-after", "2")], 1_000).map(|attempt| Attempt {
        key: Some("k".into()),
        ..attempt
    });
    assert_eq!(super::judged(Rule::RetryAfter, keyed).evidence.len(), 1);
}

/// Returns the requests of ten threads that each get a 429 and retry after the stated second. They start `interval`
/// milliseconds apart. `connection` is the connection of an attempt of a thread.
fn threads(interval: u64, connection: impl Fn(u64, u64) -> u64) -> Vec<Attempt> {
    let attempts = (0..10).flat_map(|thread| {
        let start = thread * interval;
        let limited = get(start).on(connection(thread, 0)).got(429);
        let retry = get(start + 1_002).on(connection(thread, 1)).got(200);
        [limited.header("retry-after", "1"), retry]
    });
    let mut attempts: Vec<_> = attempts.collect();
    attempts.sort_by_key(|attempt| attempt.arrived);
    attempts
}

#[test]
fn threads_that_send_the_same_request_and_wait_for_the_stated_time_fail_no_rule() {
    let no_fails = [""; 0];
    for interval in [2, 20, 95] {
        let reused = threads(interval, |thread, _| thread);
        assert_eq!(fails(&judge(&trace_of(reused.clone()), true)), no_fails);
        // The first requests of odd threads succeed.
        let mut mixed = reused;
        mixed.retain(|attempt| attempt.connection % 2 == 0 || attempt.arrived < millis(1_000));
        for attempt in &mut mixed {
            if attempt.connection % 2 == 1 {
                let response = attempt.response.as_mut().unwrap();
                response.status = Some(StatusCode::OK);
            }
        }
        assert_eq!(fails(&judge(&trace_of(mixed), true)), no_fails);
    }
    let opened = threads(2, |thread, attempt| 10 * attempt + thread);
    assert_eq!(fails(&judge(&trace_of(opened), true)), no_fails);
}

#[test]
fn a_stated_time_binds_only_a_client_that_received_it() {
    let limited = get(0)
        .ended(Some(429), ResponseEnd::ClientClosed, 1)
        .header("retry-after", "2");
    let attempts = [limited, get(500).got(200)];
    assert_eq!(verdict(Rule::RetryAfter, attempts), Verdict::NotEnoughData);
}

#[test]
fn a_stated_minute_or_more_is_judged_separately() {
    let long = [("retry-after", "60")];
    assert_eq!(after(&long, 1_000), Verdict::NotEnoughData);
    let judged_long = |gap| judged(Rule::LongRetryAfter, retried(&long, gap));
    let early = judged_long(30_000);
    assert_eq!(early.verdict, Verdict::Fail);
    assert!(
        early.summary.contains("30.000 s. This is its apparent cap"),
        "{}",
        early.summary
    );
    let waits = judged_long(60_000);
    assert_eq!(
        (waits.verdict, waits.summary.as_str()),
        (Verdict::Pass, "Waits for the stated time of 60.000 s.")
    );
    let short = retried(&[("retry-after", "59")], 59_000);
    assert_eq!(verdict(Rule::LongRetryAfter, short), Verdict::NotEnoughData);
}

#[test]
fn giving_up_on_a_long_wait_passes_only_if_the_client_has_ended() {
    let [limited, _] = retried(&[("retry-after", "130")], 0);
    let trace = trace_of(vec![limited]);
    let judged = |has_ended| rule_of(&judge(&trace, has_ended), Rule::LongRetryAfter);
    assert_eq!(judged(true).verdict, Verdict::Pass);
    assert!(judged(true).summary.starts_with("Gives up"));
    assert_eq!(judged(false).verdict, Verdict::NotEnoughData);
}
