//! The requests of a trace as an HTTP Archive (HAR 1.2), for tools that show requests on a time line.
//!
//! Each scenario is a page. Fields that start with an underscore are extensions, as the specification allows. The trace
//! has no bodies of responses, and the time to send a request is a part of the time to wait.

use std::time::SystemTime;

use http::{HeaderMap, Version, header};
use serde_json::{Value, json};

use super::document::{ms, short_hash};
use super::redact::Redaction;
use super::{Report, ScenarioResult};
use crate::scenario::trace::{Attempt, ObservedResponse, ResponseEnd};

/// Renders the requests of a report as HAR.
pub(crate) fn render(report: &Report) -> String {
    let redaction = Redaction::of(report);
    let mut pages = Vec::new();
    let mut entries = Vec::new();
    for (index, run) in report.scenarios.iter().enumerate() {
        let page = format!("scenario-{}", index + 1);
        pages.push(json!({
            "startedDateTime": time(run.trace.started),
            "id": page,
            "title": run.name,
            "pageTimings": { "onLoad": ms(run.duration) },
        }));
        let attempts = run.trace.attempts.iter();
        entries.extend(attempts.map(|attempt| entry(attempt, run, &page, &redaction)));
    }
    let archive = json!({ "log": {
        "version": "1.2",
        "creator": { "name": "tidegate lab", "version": env!("CARGO_PKG_VERSION") },
        "pages": pages,
        "entries": entries,
    }});
    let archive = serde_json::to_string_pretty(&archive);
    archive.expect("the archive has only string keys and finite numbers") + "\n"
}

fn entry(attempt: &Attempt, run: &ScenarioResult, page: &str, redaction: &Redaction) -> Value {
    let response = attempt.response.as_ref();
    let started = response.map_or(attempt.arrived, |response| response.started);
    let ended = response.map_or(attempt.arrived, |response| response.ended);
    let wait = started.saturating_sub(attempt.arrived);
    let receive = ended.saturating_sub(started);
    let mut entry = json!({
        "pageref": page,
        "startedDateTime": time(run.trace.started + attempt.arrived),
        "time": ms(wait + receive),
        "request": request(attempt, &run.url, redaction),
        "response": reply(attempt, redaction),
        "cache": {},
        "timings": { "send": 0, "wait": ms(wait), "receive": ms(receive) },
        "connection": attempt.connection.to_string(),
        "_client": attempt.client.to_string(),
    });
    if let Some(step) = &attempt.step {
        entry["_step"] = redaction.step(step).into();
    }
    entry
}

fn request(attempt: &Attempt, url: &str, redaction: &Redaction) -> Value {
    let target = redaction.url(&attempt.target);
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let parameters = query.split('&').filter(|pair| !pair.is_empty());
    let parameters = parameters.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        json!({ "name": name, "value": value })
    });
    let mut request = json!({
        "method": attempt.method.as_str(),
        "url": format!("{}{target}", redaction.url(url)),
        "httpVersion": version(attempt.version),
        "cookies": [],
        "headers": headers(&attempt.headers, redaction),
        "queryString": parameters.collect::<Vec<_>>(),
        "headersSize": -1,
        "bodySize": attempt.body.length,
    });
    if attempt.body.length > 0 {
        request["postData"] = body(attempt, redaction);
    }
    request
}

/// Returns the body of a request. Without its content, a comment has the hash.
fn body(attempt: &Attempt, redaction: &Redaction) -> Value {
    let content = attempt.body.content.as_deref();
    let content = content.filter(|_| redaction.includes_secrets());
    json!({
        "mimeType": mime_type(&attempt.headers),
        "text": content.map(String::from_utf8_lossy).unwrap_or_default(),
        "comment": format!("{} bytes, hash {}", attempt.body.length, short_hash(&attempt.body)),
    })
}

/// Returns the response to a request. Its status is 0 if the client received none.
fn reply(attempt: &Attempt, redaction: &Redaction) -> Value {
    let none = HeaderMap::new();
    let response = attempt.response.as_ref();
    let status = response.and_then(|response| response.status);
    let fields = response.map_or(&none, |response| &response.headers);
    let sent = response.map_or(0, |response| response.sent);
    let location = fields.get(header::LOCATION);
    let location = location.map(|location| redaction.header(&header::LOCATION, location));
    let mut reply = json!({
        "status": status.map_or(0, |status| status.as_u16()),
        "statusText": status.and_then(|status| status.canonical_reason()).unwrap_or_default(),
        "httpVersion": version(attempt.version),
        "cookies": [],
        "headers": headers(fields, redaction),
        "content": { "size": sent, "mimeType": mime_type(fields) },
        "redirectURL": location.unwrap_or_default(),
        "headersSize": -1,
        "bodySize": sent,
    });
    if let Some(error) = error(response) {
        reply["_error"] = error.into();
    }
    reply
}

/// Returns why a response is incomplete; `None` if it is complete.
fn error(response: Option<&ObservedResponse>) -> Option<&'static str> {
    let Some(response) = response else {
        return Some("no response before the end of the trace");
    };
    match response.end {
        ResponseEnd::Complete => None,
        ResponseEnd::Aborted if response.status.is_none() => {
            Some("the gateway closed the connection or stream without a response")
        }
        ResponseEnd::Aborted => Some("the gateway aborted the response"),
        ResponseEnd::ClientClosed => {
            Some("the client closed the connection or stream before the end of the response")
        }
    }
}

fn headers(headers: &HeaderMap, redaction: &Redaction) -> Vec<Value> {
    let lines = headers.iter();
    lines
        .map(|(name, value)| json!({ "name": name.as_str(), "value": redaction.header(name, value) }))
        .collect()
}

fn mime_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    value.map_or_else(String::new, |value| {
        String::from_utf8_lossy(value.as_bytes()).into_owned()
    })
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}
