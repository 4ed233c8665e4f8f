//! A report with the cases that renderers must handle: retries, lost and unfinished responses, and texts with markup.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode, Version};

use crate::lab::operation::Operation;
use crate::lab::report::{Report, ScenarioResult};
use crate::lab::simulated::step;
use crate::lab::verdict::{Evidence, Judgement, Rule, RuleVerdict, Verdict};
use crate::request::client::ClientId;
use crate::scenario::trace::{Attempt, ObservedBody, ObservedResponse, ResponseEnd, Trace};

/// One request of a fixture. Requests with the same client and key are one operation.
#[derive(Clone, Debug)]
pub(super) struct SampleRequest {
    pub(super) client: u8,
    pub(super) key: Option<String>,
    pub(super) target: String,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) body: &'static str,
    pub(super) arrived_ms: u64,
    pub(super) status: Option<u16>,
    /// `None`: there is no response.
    pub(super) end: Option<ResponseEnd>,
    pub(super) response_headers: Vec<(&'static str, &'static str)>,
    pub(super) step: &'static str,
}

impl Default for SampleRequest {
    fn default() -> Self {
        Self {
            client: 1,
            key: Some("order-1".to_owned()),
            target: "/v1/payments".to_owned(),
            headers: vec![("content-type", "application/json")],
            body: "{\"amount\": 5, \"to\": \"Alice\"}",
            arrived_ms: 0,
            status: Some(503),
            end: Some(ResponseEnd::Complete),
            response_headers: vec![("content-type", "text/plain")],
            step: "503",
        }
    }
}

/// Returns a report with three scenarios.
pub(super) fn report() -> Report {
    let mut limited = scenario("rate-limited", &rate_limited());
    limited.summary = "429 with Retry-After".to_owned();
    limited.trace.untraced = 3;
    limited.notes = vec!["the command exited with status 1".to_owned()];
    let mut early = verdict(
        Rule::RetryAfter,
        Verdict::Fail,
        "retries 1.01 s before the stated time, 1 of 3 retries",
    );
    early.evidence[0].text =
        "429 at 0.105 s states 2 s in Retry-After, retried after 0.990 s".to_owned();
    limited.judgement.rules = vec![
        early,
        verdict(Rule::Retries, Verdict::Pass, "retries 4 of 6 failures"),
        verdict(
            Rule::Jitter,
            Verdict::NotEnoughData,
            "3 operations, 20 needed",
        ),
        verdict(
            Rule::ConnectionReuse,
            Verdict::Warn,
            "opens a connection for each request: 9 connections for 9 requests",
        ),
    ];
    let mut lost = scenario("executed-then-lost", &lost());
    lost.summary = "the request is executed, and its response is lost".to_owned();
    lost.judgement.rules = vec![
        verdict(
            Rule::SameKey,
            Verdict::Warn,
            "GET /a|b?<script>alert(1)</script>&x=`y` [link](http://x) @user #12 ]]> * _ \\",
        ),
        verdict(Rule::Stops, Verdict::Pass, "gives up after 3 requests"),
    ];
    lost.judgement.rules[0].evidence[0].text =
        "<script>alert(1)</script> ]]> | `code` </details> \u{1}\u{fffe}".to_owned();
    let mut silent = scenario("long-wait", &[]);
    silent.summary = "Retry-After of 130 s".to_owned();
    silent.failure = Some("the command was terminated after 60 s".to_owned());
    silent.judgement.rules = Vec::new();
    Report {
        client: "checkout-sdk".to_owned(),
        client_version: Some("2.1.0".to_owned()),
        started: started(),
        scenarios: vec![limited, lost, silent],
        include_secrets: false,
    }
}

fn rate_limited() -> Vec<SampleRequest> {
    let limited = SampleRequest {
        status: Some(429),
        arrived_ms: 100,
        response_headers: vec![("retry-after", "2"), ("content-type", "text/plain")],
        step: "429 retry-after=2",
        ..SampleRequest::default()
    };
    let at = |arrived_ms: u64, exchange: &SampleRequest| SampleRequest {
        arrived_ms,
        ..exchange.clone()
    };
    let keyed = |key: &str, client: u8, exchange: SampleRequest| SampleRequest {
        client,
        key: Some(key.to_owned()),
        ..exchange
    };
    let ok = SampleRequest {
        status: Some(200),
        step: "200",
        ..SampleRequest::default()
    };
    let unavailable = SampleRequest::default();
    let rejected = SampleRequest {
        status: Some(422),
        step: "422",
        ..SampleRequest::default()
    };
    vec![
        at(100, &limited),
        at(1_100, &unavailable),
        at(2_300, &at(2_300, &limited)),
        at(4_400, &ok),
        keyed("order-2", 2, at(300, &limited)),
        keyed("order-2", 2, at(2_450, &unavailable)),
        keyed("order-2", 2, at(6_900, &rejected)),
        keyed("order-3", 2, at(500, &unavailable)),
        keyed("order-3", 2, at(9_400, &limited)),
    ]
}

fn lost() -> Vec<SampleRequest> {
    let first = SampleRequest {
        key: None,
        target: "/v1/search?q=<script>alert(1)</script>|x&page=2".to_owned(),
        status: None,
        end: Some(ResponseEnd::Aborted),
        response_headers: Vec::new(),
        step: "executed-then-lost",
        ..SampleRequest::default()
    };
    let cut = SampleRequest {
        arrived_ms: 700,
        status: Some(200),
        step: "truncate after=10KiB",
        ..first.clone()
    };
    let closed = SampleRequest {
        arrived_ms: 2_000,
        end: Some(ResponseEnd::ClientClosed),
        step: "stall 10s",
        ..first.clone()
    };
    let unfinished = SampleRequest {
        arrived_ms: 4_500,
        end: None,
        ..first.clone()
    };
    let long = SampleRequest {
        key: Some("k".repeat(120)),
        target: format!("/v1/{}", "very-long-segment/".repeat(15)),
        arrived_ms: 20,
        ..SampleRequest::default()
    };
    // The labels of requests in quick succession must not overlap.
    let quick = [60, 140].map(|arrived_ms| SampleRequest {
        arrived_ms,
        ..long.clone()
    });
    let mut requests = vec![first, cut, closed, unfinished, long];
    requests.extend(quick);
    requests
}

/// Returns a rule with one observation as evidence.
pub(super) fn verdict(rule: Rule, verdict: Verdict, summary: &str) -> RuleVerdict {
    RuleVerdict {
        rule,
        verdict,
        summary: summary.to_owned(),
        evidence: vec![Evidence {
            attempt: Some(1),
            text: "503 at 1.105 s, retried after 1.19 s".to_owned(),
        }],
    }
}

/// Returns a scenario with these requests.
pub(super) fn scenario(name: &str, exchanges: &[SampleRequest]) -> ScenarioResult {
    let mut operations: Vec<(Option<String>, Operation)> = Vec::new();
    for (index, exchange) in exchanges.iter().enumerate() {
        let client = client(exchange.client);
        let same = operations
            .iter_mut()
            .find(|(key, operation)| *key == exchange.key && operation.client == client);
        match same {
            Some((_, operation)) => operation.attempts.push(index),
            None => operations.push((
                exchange.key.clone(),
                Operation {
                    client,
                    attempts: vec![index],
                },
            )),
        }
    }
    ScenarioResult {
        name: name.to_owned(),
        summary: "one line".to_owned(),
        steps: ["429 retry-after=2", "503"].map(step).to_vec(),
        duration: Duration::from_millis(9_500),
        trace: Trace {
            started: started(),
            attempts: exchanges
                .iter()
                .zip(1..)
                .map(|(exchange, connection)| attempt(exchange, connection))
                .collect(),
            untraced: 0,
            timer_delay: Duration::from_millis(1),
        },
        judgement: Judgement {
            rules: Vec::new(),
            operations: operations.into_iter().map(|(_, it)| it).collect(),
            unattributed: Vec::new(),
            tolerance: Duration::from_millis(50),
        },
        notes: Vec::new(),
        failure: None,
    }
}

fn attempt(exchange: &SampleRequest, connection: u64) -> Attempt {
    let arrived = Duration::from_millis(exchange.arrived_ms);
    Attempt {
        client: client(exchange.client),
        connection,
        version: Version::HTTP_11,
        method: Method::POST,
        target: exchange.target.clone(),
        test: None,
        headers: headers(&exchange.headers),
        key: exchange.key.clone(),
        body: ObservedBody {
            is_partial: false,
            length: exchange.body.len() as u64,
            hash: *blake3::hash(exchange.body.as_bytes()).as_bytes(),
            content: Some(Bytes::from_static(exchange.body.as_bytes())),
        },
        arrived,
        step: Some(step(exchange.step)),
        response: exchange.end.map(|end| ObservedResponse {
            status: exchange
                .status
                .map(|status| StatusCode::from_u16(status).unwrap()),
            headers: headers(&exchange.response_headers),
            started: arrived + Duration::from_millis(5),
            ended: arrived + Duration::from_millis(10),
            end,
        }),
    }
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let lines = lines.iter();
    lines
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

fn client(number: u8) -> ClientId {
    ClientId::of([192, 0, 2, number].into(), 64)
}

/// Wednesday, 21 October 2026, 07:28:00 UTC.
fn started() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_mins(29_876_128)
}
