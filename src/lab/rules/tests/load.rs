use super::*;

/// Returns two attempts each of clients that fail within 10 ms. `delay` is the delay of a client in milliseconds.
fn outage(clients: u32, delay: impl Fn(u64) -> u64) -> Vec<Attempt> {
    let attempts = (0..clients).flat_map(|number| {
        let failed_at = u64::from(number) % 10;
        let first = get(failed_at).by(number).got(503);
        let next = get(failed_at + 1 + delay(number.into()))
            .by(number)
            .got(200);
        [first, next]
    });
    let mut attempts: Vec<_> = attempts.collect();
    attempts.sort_by_key(|attempt| attempt.arrived);
    attempts
}

#[test]
fn clients_that_retry_together_are_a_warning() {
    let judged = judged(Rule::Synchrony, outage(20, |_| 1_000));
    assert_eq!(judged.verdict, Verdict::Warn);
    assert!(
        judged.summary.starts_with("20 of 20 clients"),
        "{}",
        judged.summary
    );
    assert_eq!(
        verdict(Rule::Synchrony, outage(20, |number| 1_000 + 50 * number)),
        Verdict::Pass
    );
    // Delays of 40 s differ by up to 1 s, which is less than 5 %.
    assert_eq!(
        verdict(Rule::Synchrony, outage(20, |number| 40_000 + 50 * number)),
        Verdict::Warn
    );
}

#[test]
fn synchrony_needs_ten_clients_that_fail_together() {
    assert_eq!(
        verdict(Rule::Synchrony, outage(9, |_| 1_000)),
        Verdict::NotEnoughData
    );
    assert_eq!(
        verdict(Rule::Synchrony, outage(10, |_| 1_000)),
        Verdict::Warn
    );
    let apart = (0..20).flat_map(|number| {
        let failed_at = 100 * u64::from(number);
        let first = get(failed_at).by(number).got(503);
        [first, get(failed_at + 1_000).by(number).got(200)]
    });
    let mut apart: Vec<_> = apart.collect();
    apart.sort_by_key(|attempt| attempt.arrived);
    assert_eq!(verdict(Rule::Synchrony, apart), Verdict::NotEnoughData);
}

#[test]
fn more_than_ten_requests_per_operation_are_a_warning() {
    let attempts = |number| (0..number).map(|index| get(index * 1_000).got(503));
    assert_eq!(verdict(Rule::Amplification, attempts(10)), Verdict::Pass);
    let judged = judged(Rule::Amplification, attempts(11));
    assert_eq!(judged.verdict, Verdict::Warn);
    assert_eq!(
        judged.summary,
        "11.00 requests per operation on average, 11 in the longest (11 requests, 1 operation)."
    );
}

#[test]
fn requests_without_failures_do_not_show_the_amplification() {
    let succeeded = (0..20).map(|index| get(index * 1_000).got(200));
    assert_eq!(
        verdict(Rule::Amplification, succeeded),
        Verdict::NotEnoughData
    );
    let failed = (0..2).map(|index| get(index * 1_000).got(503));
    assert_eq!(verdict(Rule::Amplification, failed), Verdict::Pass);
    // The failed requests are concurrent, so that they belong to no operation.
    let concurrent = [
        get(0).on(1).got(503),
        get(20).on(2).got(503),
        get(40).on(1).got(503),
        post(1_000, None, "a").got(200),
    ];
    assert_eq!(
        verdict(Rule::Amplification, concurrent),
        Verdict::NotEnoughData
    );
}

#[test]
fn a_retry_on_a_new_connection_is_a_warning_if_none_reuses_one() {
    let first = || get(0).on(1).got(503);
    let reused = [first(), get(1_000).on(1).got(200)];
    assert_eq!(verdict(Rule::ConnectionReuse, reused), Verdict::Pass);
    let opened = [first(), get(1_000).on(2).got(200)];
    assert_eq!(verdict(Rule::ConnectionReuse, opened), Verdict::Warn);
    let mixed = [
        first(),
        get(1_000).on(2).got(503),
        get(3_000).on(2).got(200),
    ];
    assert_eq!(verdict(Rule::ConnectionReuse, mixed), Verdict::Pass);
}

#[test]
fn a_closed_connection_cannot_be_reused() {
    let after = |first: Attempt| verdict(Rule::ConnectionReuse, [first, get(1_000).on(2).got(200)]);
    let closed = [
        get(0)
            .on(1)
            .got(503)
            .header("connection", "keep-alive, Close"),
        get(0).on(1).got(503).sent("connection", "close"),
        get(0).on(1).ended(Some(503), ResponseEnd::Aborted, 1),
        Attempt {
            version: http::Version::HTTP_10,
            ..get(0).on(1).got(503)
        },
    ];
    for first in closed {
        assert_eq!(after(first), Verdict::NotEnoughData);
    }
    let idle = [get(0).on(1).got(503), get(31_000).on(2).got(200)];
    assert_eq!(verdict(Rule::ConnectionReuse, idle), Verdict::NotEnoughData);
}
