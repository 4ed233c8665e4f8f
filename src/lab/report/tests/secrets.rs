//! Tests that no format of a report contains a credential or a body, unless the report includes secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::fixture::{SampleRequest, report, scenario, verdict};
use crate::lab::report::document::Document;
use crate::lab::report::{Report, html, junit, markdown, terminal};
use crate::lab::simulated::step;
use crate::lab::verdict::{Rule, Verdict};

const CANARY: &str = "canary-4711-secret";

/// Base64 of `user:canary-4711-secret`.
const BASIC: &str = "dXNlcjpjYW5hcnktNDcxMS1zZWNyZXQ=";

/// Returns a report with the canary in every place that can hold a credential or a body.
fn with_canaries(include_secrets: bool) -> Report {
    let exchange = SampleRequest {
        target: format!(
            "/v1/a?access_token={CANARY}&key={CANARY}&Signature={CANARY}&api%5Fkey={CANARY}&page=2#token={CANARY}"
        ),
        headers: vec![
            ("authorization", "Bearer canary-4711-secret"),
            (
                "proxy-authorization",
                "Basic dXNlcjpjYW5hcnktNDcxMS1zZWNyZXQ=",
            ),
            ("cookie", "theme=dark; id=canary-4711-secret"),
            ("x-api-key", "canary-4711-secret"),
            ("x-session", "canary-4711-secret"),
            ("x-webhook-signature", "canary-4711-secret"),
            (
                "referer",
                "http://user:canary-4711-secret@example.com/?password=canary-4711-secret",
            ),
        ],
        body: "{\"card\": \"canary-4711-secret\"}",
        response_headers: vec![
            ("set-cookie", "id=canary-4711-secret; HttpOnly"),
            ("location", "/cb?code=1#id_token=canary-4711-secret"),
            ("x-auth-token", "canary-4711-secret"),
        ],
        step: "200 header=\"Set-Cookie: id=canary-4711-secret\" body=\"canary-4711-secret\"",
        ..SampleRequest::default()
    };
    let mut run = scenario("canaries", &[exchange]);
    run.steps = vec![step(&format!(
        "503 header=\"X-Api-Key: {CANARY}\" body=\"{CANARY}\""
    ))];
    run.notes = vec![format!("the command printed {CANARY} and {BASIC}")];
    run.failure = Some(format!("could not connect to http://user:{CANARY}@host/"));
    let text = format!("sent Authorization: Bearer {CANARY} to /a?token={CANARY}");
    let mut rule = verdict(Rule::Retries, Verdict::Fail, &text);
    rule.evidence[0].text.clone_from(&text);
    run.judgement.rules = vec![rule];
    Report {
        scenarios: vec![run],
        include_secrets,
        ..report()
    }
}

/// Returns the report in every format.
fn formats(report: &Report) -> [(&'static str, String); 5] {
    let document = Document::of(report);
    [
        // A wide terminal does not break the canary.
        ("terminal", terminal::render(&document, true, 120)),
        ("JSON", document.to_json()),
        ("JUnit", junit::render(&document)),
        ("Markdown", markdown::render(&document)),
        ("HTML", html::render(&document)),
    ]
}

#[test]
fn no_format_contains_a_credential_or_body() {
    assert_eq!(STANDARD.encode(format!("user:{CANARY}")), BASIC);
    let body = blake3::hash(format!("{{\"card\": \"{CANARY}\"}}").as_bytes());
    for (format, text) in formats(&with_canaries(false)) {
        // Parts of the canary are also absent, so that a line break in it does not hide it.
        for secret in ["4711", BASIC] {
            assert!(
                !text.contains(secret),
                "{format} contains {secret}:\n{text}"
            );
        }
        assert!(text.contains("redacted"), "{format}:\n{text}");
        let hash = &body.to_hex()[..16];
        let has_bodies = ["JSON", "HTML"].contains(&format);
        assert_eq!(text.contains(hash), has_bodies, "{format}");
    }
}

#[test]
fn with_secrets_every_format_contains_what_it_shows() {
    for (format, text) in formats(&with_canaries(true)) {
        assert!(text.contains(CANARY), "{format}:\n{text}");
        assert!(!text.contains("[redacted]"), "{format}:\n{text}");
        let has_body = text.contains("{\\\"card\\\": \\\"canary-4711-secret\\\"}");
        assert_eq!(has_body, format == "JSON", "{format}");
    }
}

#[test]
fn idempotency_keys_are_shown() {
    for (format, text) in formats(&with_canaries(false)) {
        if ["JSON", "HTML"].contains(&format) {
            assert!(text.contains("order-1"), "{format}");
        }
    }
}
