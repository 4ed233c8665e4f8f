//! Tests of the rules with traces that are written in the test. `population` has the tests with simulated clients.

mod backoff;
mod keys;
mod load;
mod population;
mod retrying;
mod waiting;

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::*;
use crate::lab::simulated::{attempt, body, client, step, trace_of};
use crate::scenario::trace::{ObservedResponse, ResponseEnd};

/// Remark on failures of requests without a key.
const SEPARATE: &str =
    "if these requests are separate operations, give them different paths, bodies or keys";

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns a GET request of the first client at this time in milliseconds.
fn get(at: u64) -> Attempt {
    attempt(client(1), millis(at), Method::GET, "/orders")
}

/// Returns a POST request of the first client at this time in milliseconds.
fn post(at: u64, key: Option<&str>, text: &str) -> Attempt {
    Attempt {
        method: Method::POST,
        key: key.map(Into::into),
        body: body(text),
        ..get(at)
    }
}

impl Attempt {
    /// Adds a complete response that starts 1 ms after the arrival.
    fn got(self, status: u16) -> Self {
        self.ended(Some(status), ResponseEnd::Complete, 1)
    }

    /// Adds a response that starts and ends this number of milliseconds after the arrival.
    fn ended(mut self, status: Option<u16>, end: ResponseEnd, after: u64) -> Self {
        let time = self.arrived + millis(after);
        self.response = Some(ObservedResponse {
            status: status.map(|status| StatusCode::from_u16(status).unwrap()),
            headers: http::HeaderMap::new(),
            started: time,
            ended: time,
            end,
        });
        self
    }

    /// Adds a header to the response.
    fn header(mut self, name: &str, value: &str) -> Self {
        let response = self.response.as_mut().unwrap();
        let name: HeaderName = name.parse().unwrap();
        response
            .headers
            .append(name, HeaderValue::from_str(value).unwrap());
        self
    }

    /// Adds a header to the request.
    fn sent(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap();
        self.headers
            .append(name, HeaderValue::from_str(value).unwrap());
        self
    }

    fn on(self, connection: u64) -> Self {
        Self { connection, ..self }
    }

    fn by(self, number: u32) -> Self {
        let client = client(number);
        Self { client, ..self }
    }
}

/// Returns the verdict of a rule on these requests of a client that has ended.
fn verdict(rule: Rule, attempts: impl IntoIterator<Item = Attempt>) -> Verdict {
    judged(rule, attempts).verdict
}

/// Returns the result of a rule on these requests of a client that has ended.
fn judged(rule: Rule, attempts: impl IntoIterator<Item = Attempt>) -> RuleVerdict {
    rule_of(
        &judge(&trace_of(attempts.into_iter().collect()), true),
        rule,
    )
}

/// Returns the rules that failed.
fn fails(judgement: &Judgement) -> Vec<&'static str> {
    let fails = judgement
        .rules
        .iter()
        .filter(|rule| rule.verdict == Verdict::Fail);
    fails.map(|rule| rule.rule.id()).collect()
}

fn rule_of(judgement: &Judgement, rule: Rule) -> RuleVerdict {
    let found = judgement.rules.iter().find(|verdict| verdict.rule == rule);
    found.unwrap().clone()
}

#[test]
fn an_empty_trace_is_not_enough_data_for_every_rule() {
    let judgement = judge(&trace_of(Vec::new()), true);
    let rules: Vec<_> = judgement.rules.iter().map(|verdict| verdict.rule).collect();
    assert_eq!(rules, Rule::ALL);
    assert_eq!(judgement.verdict(), Verdict::NotEnoughData);
}

#[test]
fn durations_are_readable() {
    let texts = [0, 250, 999, 1_000, 1_204, 130_000].map(|time| readable(millis(time)));
    assert_eq!(
        texts,
        [
            "0 ms",
            "250 ms",
            "999 ms",
            "1.000 s",
            "1.204 s",
            "130.000 s"
        ]
    );
    assert_eq!(readable(Duration::from_micros(999_600)), "1.000 s");
}

#[test]
fn evidence_is_limited_and_names_attempts() {
    let attempts = (0..9).map(|number| get(number * 1_000).got(400));
    let judged = judged(Rule::Retryable, attempts);
    assert_eq!(
        judged.summary,
        "Retried statuses that a retry cannot change: 400 (8 times)."
    );
    assert_eq!(judged.evidence[0].text, "400 at 1 ms, retried after 999 ms");
    assert_eq!(judged.evidence[0].attempt, Some(1));
    assert_eq!(judged.evidence[1].text, SEPARATE);
    let attempts = (0..9).map(|number| post(number * 1_000, None, "a").got(503));
    assert_eq!(
        self::judged(Rule::UnsafeRetry, attempts).evidence.len(),
        MAX_EVIDENCE
    );
}

#[test]
fn requests_beyond_the_capacity_of_the_trace_mean_that_the_client_has_not_ended() {
    let mut trace = trace_of(vec![get(0).got(400)]);
    assert_eq!(
        rule_of(&judge(&trace, true), Rule::Retryable).verdict,
        Verdict::Pass
    );
    trace.untraced = 1;
    assert_eq!(
        rule_of(&judge(&trace, true), Rule::Retryable).verdict,
        Verdict::NotEnoughData
    );
}
