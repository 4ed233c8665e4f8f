//! Redaction of credentials in reports.
//!
//! A credential is recognised by the name of its header or query parameter, with the words of the idempotency stage and
//! a few more. Texts of rules and notes can quote a request, so the values of recognised credentials are also replaced
//! in them. A credential in a path or in a header with another name is not recognised.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::Report;
use crate::idempotency::credentials::has_credential_word;
use crate::scenario::step::Step;
use crate::scenario::trace::Attempt;

const REDACTED: &str = "[redacted]";

/// In addition to the words of the idempotency stage.
const WORDS: [&str; 8] = [
    "csrf",
    "xsrf",
    "password",
    "passwd",
    "passphrase",
    "signature",
    "credential",
    "jwt",
];

/// Names of query parameters that are credentials as a whole.
const PARAMETERS: [&str; 5] = ["sig", "pass", "pwd", "code", "otp"];

/// Least length of a credential that is replaced in texts, in bytes. A shorter value, such as `1`, is also a part of
/// other words.
const MIN_LENGTH: usize = 8;

pub(super) struct Redaction {
    include_secrets: bool,
    /// Longest first.
    values: Vec<String>,
    /// Redacted steps, because a report has many requests and few steps.
    steps: RefCell<HashMap<Arc<str>, String>>,
}

impl Redaction {
    pub(super) fn of(report: &Report) -> Self {
        let mut values = BTreeSet::new();
        if !report.include_secrets {
            let runs = report.scenarios.iter();
            for attempt in runs.flat_map(|run| &run.trace.attempts) {
                collect(attempt, &mut values);
            }
        }
        let mut values: Vec<_> = values.into_iter().collect();
        values.retain(|value| value.len() >= MIN_LENGTH);
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self {
            include_secrets: report.include_secrets,
            values,
            steps: RefCell::default(),
        }
    }

    pub(super) fn includes_secrets(&self) -> bool {
        self.include_secrets
    }

    /// Redacts URLs in a text: user information, and query parameters that are credentials.
    pub(super) fn url(&self, text: &str) -> String {
        if self.include_secrets {
            return text.to_owned();
        }
        without_parameters(&without_user_information(text))
    }

    pub(super) fn text(&self, text: &str) -> String {
        let mut text = self.url(text);
        for value in &self.values {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REDACTED);
            }
        }
        text
    }

    pub(super) fn step(&self, step: &Step) -> String {
        let text = &*step.text;
        if self.include_secrets {
            return text.to_owned();
        }
        if let Some(redacted) = self.steps.borrow().get(text) {
            return redacted.clone();
        }
        let (mut redacted, mut end) = (String::new(), 0);
        for (header, place) in &step.contents {
            redacted.push_str(&text[end..place.start]);
            end = place.end;
            match header {
                None => redacted.push('…'),
                Some(name) if is_credential_header(name.as_str()) => {
                    let quote = if text[..end].ends_with('"') { "\"" } else { "" };
                    redacted.extend([" ", REDACTED, quote]);
                }
                Some(_) => redacted.push_str(&text[place.clone()]),
            }
        }
        redacted.push_str(&text[end..]);
        let redacted = self.text(&redacted);
        let mut steps = self.steps.borrow_mut();
        steps.insert(Arc::clone(&step.text), redacted.clone());
        redacted
    }
}

fn is_credential_header(name: &str) -> bool {
    name.eq_ignore_ascii_case("cookie")
        || name.eq_ignore_ascii_case("set-cookie")
        || is_credential_name(name)
}

/// `name` can be percent-encoded.
fn is_credential_parameter(name: &str) -> bool {
    let name = percent_decode_str(name).decode_utf8_lossy();
    PARAMETERS
        .iter()
        .any(|parameter| name.eq_ignore_ascii_case(parameter))
        || is_credential_name(&name.replace('_', "-"))
}

fn is_credential_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    has_credential_word(name.as_bytes())
        || WORDS.iter().any(|word| name.contains(word))
        // An idempotency key is not a credential, and a report without it does not show which requests belong together.
        || name.ends_with("key") && !name.contains("idempotency")
}

fn without_user_information(text: &str) -> String {
    let mut redacted = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (start, after) = rest.split_at(at + 3);
        redacted.push_str(start);
        let end = after
            .find(|character: char| "/?#\"'<>".contains(character) || character.is_whitespace())
            .unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                redacted.push_str(REDACTED);
                &after[at..]
            }
            None => after,
        };
    }
    redacted.push_str(rest);
    redacted
}

/// Parameters in a fragment are also replaced, because OAuth sends tokens in it.
fn without_parameters(text: &str) -> String {
    let mut redacted = String::new();
    let mut rest = text;
    while let Some((name, value)) = next_parameter(rest) {
        redacted.push_str(&rest[..value.start]);
        let is_credential = is_credential_parameter(name) && !value.is_empty();
        redacted.push_str(if is_credential {
            REDACTED
        } else {
            &rest[value.clone()]
        });
        rest = &rest[value.end..];
    }
    redacted.push_str(rest);
    redacted
}

/// Returns the name of the first query parameter in a text, and the range of its value.
fn next_parameter(text: &str) -> Option<(&str, std::ops::Range<usize>)> {
    let ends = |character: char| "?&;#\"'<>".contains(character) || character.is_whitespace();
    let mut start = 0;
    loop {
        start += text[start..].find(['?', '&', ';', '#'])? + 1;
        let length = text[start..].find(ends).unwrap_or(text.len() - start);
        if let Some(equals) = text[start..start + length].find('=') {
            let value = start + equals + 1;
            return Some((&text[start..start + equals], value..start + length));
        }
    }
}

fn collect(attempt: &Attempt, values: &mut BTreeSet<String>) {
    let mut rest = attempt.target.as_str();
    while let Some((name, value)) = next_parameter(rest) {
        if is_credential_parameter(name) {
            let raw = &rest[value.clone()];
            values.insert(percent_decode_str(raw).decode_utf8_lossy().into_owned());
            values.insert(raw.to_owned());
        }
        rest = &rest[value.end..];
    }
    collect_headers(&attempt.headers, values);
    if let Some(response) = &attempt.response {
        collect_headers(&response.headers, values);
    }
}

fn collect_headers(headers: &HeaderMap, values: &mut BTreeSet<String>) {
    for (name, value) in headers {
        if !is_credential_header(name.as_str()) {
            continue;
        }
        let value = String::from_utf8_lossy(value.as_bytes());
        let name = name.as_str();
        if name == "cookie" || name == "set-cookie" {
            let pairs = value.split(';').filter_map(|pair| pair.split_once('='));
            // The pairs after the first one of `Set-Cookie` are attributes, such as `Path=/`.
            let count = if name == "cookie" { usize::MAX } else { 1 };
            values.extend(pairs.take(count).map(|(_, value)| value.trim().to_owned()));
        }
        if let Some((scheme, credential)) = value.split_once(' ') {
            values.insert(credential.trim().to_owned());
            let is_basic = scheme.eq_ignore_ascii_case("basic");
            let decoded = STANDARD.decode(credential.trim()).ok().filter(|_| is_basic);
            let decoded = decoded.and_then(|decoded| String::from_utf8(decoded).ok());
            if let Some((_, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) {
                values.insert(password.to_owned());
            }
        }
        values.insert(value.into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::simulated::step as parse_step;

    fn redaction(include_secrets: bool) -> Redaction {
        Redaction {
            include_secrets,
            values: vec!["correct horse".to_owned()],
            steps: RefCell::default(),
        }
    }

    #[test]
    fn credentials_in_urls_are_redacted_and_other_parts_are_not() {
        for (text, expected) in [
            ("/a?b=1&c", "/a?b=1&c"),
            ("/a?token=x&b=1", "/a?token=[redacted]&b=1"),
            ("/a?b=1;API_KEY=x#y", "/a?b=1;API_KEY=[redacted]#y"),
            ("/a?key=x", "/a?key=[redacted]"),
            ("/a?idempotency_key=x", "/a?idempotency_key=x"),
            ("/a?ap%69%5fkey=x", "/a?ap%69%5fkey=[redacted]"),
            ("/a?sig=a%2Bb%3D", "/a?sig=[redacted]"),
            ("/a?token=x=y", "/a?token=[redacted]"),
            ("/a?x?token=y", "/a?x?token=[redacted]"),
            ("/cb#access_token=x", "/cb#access_token=[redacted]"),
            ("http://u:p@h/?q=a@b", "http://[redacted]@h/?q=a@b"),
            ("http://h/a@b", "http://h/a@b"),
            (
                "GET /a?token=x, then \"/b?secret=y\"",
                "GET /a?token=[redacted] then \"/b?secret=[redacted]\"",
            ),
        ] {
            assert_eq!(redaction(false).url(text), expected);
            assert_eq!(redaction(true).url(text), text);
        }
    }

    #[test]
    fn header_names_decide_which_values_are_redacted() {
        for name in [
            "authorization",
            "proxy-authorization",
            "cookie",
            "set-cookie",
            "x-api-key",
            "apikey",
            "x-amz-security-token",
            "x-session-id",
            "client-secret",
            "x-password",
            "x-hub-signature-256",
            "ocp-apim-subscription-key",
        ] {
            assert!(is_credential_header(name), "{name}");
        }
        for name in [
            "idempotency-key",
            "x-idempotency-key",
            "content-type",
            "retry-after",
            "x-request-id",
            "host",
        ] {
            assert!(!is_credential_header(name), "{name}");
        }
    }

    #[test]
    fn steps_show_neither_bodies_nor_credentials() {
        for (step, expected) in [
            (
                r#"delay 1s + 200 header="Set-Cookie: id=\"x y\"; a" header="X-A: b c" body="a: \"x y\"" times=2"#,
                r#"delay 1s + 200 header="Set-Cookie: [redacted]" header="X-A: b c" body=… times=2"#,
            ),
            (
                "200 header=X-Api-Key:abc body=abc",
                "200 header=X-Api-Key: [redacted] body=…",
            ),
            ("429 retry-after=2", "429 retry-after=2"),
        ] {
            let parsed = parse_step(step);
            assert_eq!(redaction(false).step(&parsed), expected);
            assert_eq!(redaction(true).step(&parsed), step);
        }
    }

    #[test]
    fn values_of_credentials_are_redacted_in_texts() {
        let text = "the client sent correct horse twice";
        assert_eq!(
            redaction(false).text(text),
            "the client sent [redacted] twice"
        );
    }
}
