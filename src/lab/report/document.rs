//! The document of a report: its content as data, redacted and in units for programs.
//!
//! The document is the JSON report and the input of the other renderers. Field names are stable within a schema
//! version. All texts are printable lines ([`printable`]), and all times are milliseconds with a resolution of 1 µs.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::redact::Redaction;
use super::text::printable;
use super::{Report, ScenarioResult};
use crate::lab::operation::Operation;
use crate::lab::outcome::Outcome;
use crate::lab::stated::stated_wait;
use crate::lab::verdict::{RuleVerdict, Verdict};
use crate::scenario::trace::{Attempt, ObservedBody, ResponseEnd, Trace};

/// Name of the schema. A change that a reader of an older document cannot handle gets a new name and version.
pub(super) const SCHEMA: &str = "tidegate-lab/1";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    pub(super) schema: &'static str,
    pub(super) schema_version: u32,
    pub(super) client: String,
    pub(super) version: Option<String>,
    /// RFC 3339, in UTC.
    pub(super) started: String,
    pub(super) verdict: Verdict,
    pub(super) redacted: bool,
    pub(super) scenarios: Vec<DocumentScenario>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DocumentScenario {
    pub(super) name: String,
    pub(super) summary: String,
    pub(super) steps: Vec<String>,
    pub(super) duration_ms: f64,
    pub(super) verdict: Verdict,
    pub(super) notes: Vec<String>,
    pub(super) failure: Option<String>,
    pub(super) clients: u64,
    /// Includes the requests that are not in the trace.
    pub(super) requests: u64,
    /// Not in the trace, because it was full.
    pub(super) unrecorded: u64,
    /// In the trace, but in no operation.
    pub(super) unattributed: u64,
    pub(super) tolerance_ms: f64,
    pub(super) rules: Vec<DocumentRule>,
    pub(super) operations: Vec<DocumentOperation>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DocumentRule {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) verdict: Verdict,
    pub(super) summary: String,
    pub(super) evidence: Vec<DocumentEvidence>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DocumentEvidence {
    /// From 1.
    pub(super) request: Option<u64>,
    pub(super) text: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DocumentOperation {
    pub(super) client: String,
    pub(super) key: Option<String>,
    pub(super) method: String,
    pub(super) target: String,
    pub(super) attempts: Vec<DocumentAttempt>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DocumentAttempt {
    /// From 1.
    pub(super) request: u64,
    pub(super) arrived_ms: f64,
    pub(super) status: Option<u16>,
    pub(super) outcome: &'static str,
    /// `None` if there was no response.
    pub(super) end: Option<&'static str>,
    pub(super) step: Option<String>,
    pub(super) response_ms: Option<f64>,
    pub(super) ended_ms: Option<f64>,
    /// From the end of the previous response of the operation; without one, from the previous request.
    pub(super) gap_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stated_wait_ms: Option<f64>,
    pub(super) connection: u64,
    pub(super) body: DocumentBody,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DocumentBody {
    pub(super) length: u64,
    /// The first 64 bits as hexadecimal digits, which is enough to compare the bodies of a report.
    pub(super) hash: String,
    /// Only if the report includes secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
}

impl Document {
    pub(crate) fn of(report: &Report) -> Self {
        let redaction = Redaction::of(report);
        let runs = report.scenarios.iter();
        Self {
            schema: SCHEMA,
            schema_version: 1,
            client: printable(&report.client),
            version: report.client_version.as_deref().map(printable),
            started: humantime::format_rfc3339_millis(report.started).to_string(),
            verdict: report.verdict(),
            redacted: !report.include_secrets,
            scenarios: runs.map(|run| scenario(run, &redaction)).collect(),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("the document has only string keys and finite numbers") + "\n"
    }

    pub(super) fn client_name(&self) -> String {
        match &self.version {
            Some(version) => format!("{} {version}", self.client),
            None => self.client.clone(),
        }
    }
}

impl DocumentScenario {
    pub(super) fn count(&self, verdict: Verdict) -> u64 {
        let rules = self.rules.iter();
        rules.filter(|rule| rule.verdict == verdict).count() as u64
    }
}

fn scenario(run: &ScenarioResult, redaction: &Redaction) -> DocumentScenario {
    let Trace {
        attempts, untraced, ..
    } = &run.trace;
    let clients: HashSet<_> = attempts.iter().map(|attempt| attempt.client).collect();
    let text = |text: &String| printable(&redaction.text(text));
    let operations = run.judgement.operations.iter();
    DocumentScenario {
        name: printable(&run.name),
        summary: text(&run.summary),
        steps: run
            .steps
            .iter()
            .map(|step| printable(&redaction.step(step)))
            .collect(),
        duration_ms: ms(run.duration),
        verdict: run.verdict(),
        notes: run.notes.iter().map(text).collect(),
        failure: run.failure.as_ref().map(text),
        clients: clients.len() as u64,
        requests: attempts.len() as u64 + untraced,
        unrecorded: *untraced,
        unattributed: run.judgement.unattributed.len() as u64,
        tolerance_ms: ms(run.judgement.tolerance),
        rules: run
            .judgement
            .rules
            .iter()
            .map(|rule| rule_verdict(rule, redaction))
            .collect(),
        operations: operations
            .filter_map(|operation| document_operation(operation, &run.trace, redaction))
            .collect(),
    }
}

fn rule_verdict(rule: &RuleVerdict, redaction: &Redaction) -> DocumentRule {
    let evidence = rule.evidence.iter().map(|evidence| DocumentEvidence {
        request: evidence.attempt.map(request_number),
        text: printable(&redaction.text(&evidence.text)),
    });
    DocumentRule {
        id: rule.rule.id(),
        title: rule.rule.title(),
        verdict: rule.verdict,
        summary: printable(&redaction.text(&rule.summary)),
        evidence: evidence.collect(),
    }
}

fn document_operation(
    operation: &Operation,
    trace: &Trace,
    redaction: &Redaction,
) -> Option<DocumentOperation> {
    let first = &trace.attempts[*operation.attempts.first()?];
    let mut previous = None;
    let attempts = operation.attempts.iter().map(|index| {
        let attempt = &trace.attempts[*index];
        let mut converted = document_attempt(attempt, trace.started, redaction);
        converted.request = request_number(*index);
        converted.gap_ms = previous.replace(attempt).map(|previous: &Attempt| {
            let ended = previous.response.as_ref();
            let ended = ended.map_or(previous.arrived, |response| response.ended);
            ms(attempt.arrived.saturating_sub(ended))
        });
        converted
    });
    let attempts = attempts.collect();
    Some(DocumentOperation {
        client: operation.client.to_string(),
        key: first.key.as_deref().map(printable),
        method: printable(first.method.as_str()),
        target: printable(&redaction.url(&first.target)),
        attempts,
    })
}

fn document_attempt(
    attempt: &Attempt,
    started: SystemTime,
    redaction: &Redaction,
) -> DocumentAttempt {
    let response = attempt.response.as_ref();
    let since = |time: Duration| ms(time.saturating_sub(attempt.arrived));
    DocumentAttempt {
        request: 0,
        arrived_ms: ms(attempt.arrived),
        status: response.and_then(|response| Some(response.status?.as_u16())),
        outcome: match Outcome::of(attempt) {
            Outcome::Success => "success",
            Outcome::Retryable(_) => "retryable",
            Outcome::Final(_) => "final",
            Outcome::Lost => "lost",
        },
        end: response.map(|response| match response.end {
            ResponseEnd::Complete => "complete",
            ResponseEnd::Aborted => "aborted",
            ResponseEnd::ClientClosed => "client-closed",
        }),
        step: attempt
            .step
            .as_deref()
            .map(|step| printable(&redaction.step(step))),
        response_ms: response.map(|response| since(response.started)),
        ended_ms: response.map(|response| since(response.ended)),
        gap_ms: None,
        stated_wait_ms: response.and_then(|response| stated_wait(response, started).map(ms)),
        connection: attempt.connection,
        body: body(&attempt.body, redaction),
    }
}

fn body(body: &ObservedBody, redaction: &Redaction) -> DocumentBody {
    let content = body.content.as_deref();
    let content = content.filter(|_| redaction.includes_secrets());
    DocumentBody {
        length: body.length,
        hash: short_hash(body),
        content: content.map(|content| printable(&String::from_utf8_lossy(content))),
    }
}

fn short_hash(body: &ObservedBody) -> String {
    body.hash[..8].iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string never fails");
        hex
    })
}

fn request_number(index: usize) -> u64 {
    index as u64 + 1
}

/// At most three decimals, so that JSON has no rounding noise.
fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}
