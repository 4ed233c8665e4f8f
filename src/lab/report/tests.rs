//! Tests of all report formats with the same report.

mod fixture;
mod needs_readers;
mod secrets;

use serde_json::Value;

use self::fixture::{SampleRequest, report, scenario, verdict};
use super::baseline::{Baseline, BaselineError, Comparison};
use super::document::Document;
use super::*;
use crate::lab::verdict::Rule;

fn json(report: &Report) -> Value {
    serde_json::from_str(&Document::of(report).to_json()).unwrap()
}

/// Returns the document in every format that is made from it.
fn texts(document: &Document) -> [String; 5] {
    [
        terminal::render(document, false, 80),
        junit::render(document),
        markdown::render(document),
        html::render(document),
        document.to_json(),
    ]
}

/// Report with one scenario, whose only rule has this verdict.
fn judged(name: &str, rule: Verdict) -> Report {
    let mut run = scenario(name, &[SampleRequest::default()]);
    run.judgement.rules = vec![verdict(Rule::Backoff, rule, "the delay is constant")];
    Report {
        scenarios: vec![run],
        ..report()
    }
}

#[test]
fn the_json_report_has_the_documented_fields() {
    let json = json(&report());
    assert_eq!(json["schema"], "tidegate-lab/1");
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["client"], "checkout-sdk");
    assert_eq!(json["version"], "2.1.0");
    assert_eq!(json["started"], "2026-10-21T07:28:00.000Z");
    assert_eq!(json["verdict"], "fail");
    assert_eq!(json["redacted"], true);
    let scenario = &json["scenarios"][0];
    assert_eq!(scenario["name"], "rate-limited");
    assert_eq!(scenario["duration_ms"], 9_500.0);
    assert_eq!(scenario["clients"], 2);
    assert_eq!(scenario["requests"], 12);
    assert_eq!(scenario["unrecorded"], 3);
    assert_eq!(scenario["tolerance_ms"], 50.0);
    let rule = &scenario["rules"][0];
    assert_eq!(rule["id"], "retry-after");
    assert_eq!(rule["verdict"], "fail");
    assert_eq!(rule["evidence"][0]["request"], 2);
    let operation = &scenario["operations"][0];
    assert_eq!(operation["client"], "192.0.2.1");
    assert_eq!(operation["key"], "order-1");
    assert_eq!(operation["method"], "POST");
    assert_eq!(operation["target"], "/v1/payments");
    let [first, second] = [0, 1].map(|index| &operation["attempts"][index]);
    assert_eq!(first["request"], 1);
    assert_eq!(first["arrived_ms"], 100.0);
    assert_eq!(first["status"], 429);
    assert_eq!(first["outcome"], "retryable");
    assert_eq!(first["end"], "complete");
    assert_eq!(first["step"], "429 retry-after=2");
    assert_eq!(first["response_ms"], 5.0);
    assert_eq!(first["ended_ms"], 10.0);
    assert_eq!(first["gap_ms"], Value::Null);
    assert_eq!(first["stated_wait_ms"], 2_000.0);
    assert_eq!(first["connection"], 1);
    assert_eq!(first["body"]["length"], 28);
    assert_eq!(first["body"]["hash"].as_str().unwrap().len(), 16);
    assert_eq!(first["body"]["content"], Value::Null);
    assert_eq!(second["gap_ms"], 990.0);
    assert_eq!(second.get("stated_wait_ms"), None);
}

#[test]
fn a_scenario_that_was_not_judged_makes_the_run_inconclusive_unless_a_rule_failed() {
    let mut run = judged("a", Verdict::Pass);
    assert_eq!(run.verdict(), Verdict::Pass);
    let mut second = judged("b", Verdict::Pass).scenarios.remove(0);
    second.failure = Some("the command sent no request".to_owned());
    assert_eq!(second.verdict(), Verdict::NotEnoughData);
    run.scenarios.push(second);
    assert_eq!(run.verdict(), Verdict::NotEnoughData);
    run.scenarios.extend(judged("c", Verdict::Fail).scenarios);
    assert_eq!(run.verdict(), Verdict::Fail);
}

#[test]
fn a_scenario_without_enough_data_does_not_change_the_verdict_of_the_others() {
    let mut run = judged("a", Verdict::Warn);
    run.scenarios
        .extend(judged("b", Verdict::NotEnoughData).scenarios);
    assert_eq!(run.verdict(), Verdict::Warn);
    run.scenarios.remove(0);
    assert_eq!(run.verdict(), Verdict::NotEnoughData);
}

/// Compares a report with the JSON of an earlier one.
fn compared(old: &str, new: &Report) -> Comparison {
    Baseline::parse(old).unwrap().compare(&Document::of(new))
}

#[test]
fn a_worse_verdict_is_a_regression_and_missing_data_is_not() {
    use Verdict::{Fail, NotEnoughData, Pass, Warn};
    for old in [Pass, Warn, Fail, NotEnoughData] {
        let baseline = Document::of(&judged("a", old)).to_json();
        for new in [Pass, Warn, Fail, NotEnoughData] {
            let comparison = compared(&baseline, &judged("a", new));
            let is_regression = matches!((old, new), (Pass, Warn | Fail) | (Warn, Fail));
            let number = usize::from(is_regression);
            assert_eq!(comparison.regressions.len(), number, "{old:?} to {new:?}");
            assert!(comparison.missing.is_empty());
        }
    }
}

#[test]
fn a_regression_names_the_scenario_the_rule_and_both_verdicts() {
    let mut old = judged("a", Verdict::Pass);
    old.scenarios
        .extend(judged("gone", Verdict::Pass).scenarios);
    // A later release can add fields and rules.
    let mut baseline = json(&old);
    baseline["new_field"] = 1.into();
    let rules = baseline["scenarios"][0]["rules"].as_array_mut().unwrap();
    rules.push(serde_json::json!({ "id": "new-rule", "verdict": "pass" }));
    let comparison = compared(&baseline.to_string(), &judged("a", Verdict::Fail));
    assert_eq!(
        comparison.regressions[0].to_string(),
        "a: backoff was pass and is fail: the delay is constant"
    );
    assert_eq!(
        (comparison.missing, comparison.compared),
        (vec!["gone".to_owned()], 1)
    );
}

#[test]
fn an_unusable_baseline_is_an_error_with_its_reason() {
    let good = Document::of(&report()).to_json();
    assert!(Baseline::parse(&good).is_ok());
    // Every proper prefix is truncated. The last two bytes are the closing brace and a line break.
    let end = good.len() - 2;
    for end in [1, 10, end / 2, end] {
        let error = Baseline::parse(&good[..end]).unwrap_err();
        assert!(matches!(error, BaselineError::Truncated), "{end}: {error}");
    }
    let other = good.replace("tidegate-lab/1", "tidegate-lab/2");
    let error = Baseline::parse(&other).unwrap_err();
    assert!(matches!(error, BaselineError::Schema(found) if found == "tidegate-lab/2"));
    let verdict = good.replace("\"not-enough-data\"", "\"maybe\"");
    for text in ["", "not JSON", "[]", "{}", "{\"schema\": 1}", &verdict] {
        let error = Baseline::parse(text).unwrap_err();
        assert!(
            matches!(error, BaselineError::Malformed(_)),
            "{text}: {error}"
        );
    }
}

#[test]
fn the_terminal_report_fits_in_80_columns() {
    let document = Document::of(&report());
    for width in [60, 80, 120] {
        let text = terminal::render(&document, false, width);
        for line in text.lines() {
            let columns = textwrap::core::display_width(line);
            assert!(columns <= width, "{columns} columns: {line}");
            assert!(!line.ends_with(' '), "{line:?}");
        }
        assert!(!text.contains('\x1b'));
    }
    let text = terminal::render(&document, false, 80);
    println!("{text}");
    for part in [
        "Client    checkout-sdk 2.1.0",
        "Scenario  rate-limited: 429 with Retry-After",
        "Observed  3 operations, 12 requests, 2 clients, 9.5 s",
        "  fail  waits for the stated time",
        "        · 429 at 0.105 s states 2 s in Retry-After",
        "not enough data\n",
        "rate-limited: fail (1 fail, 1 warn, 1 pass, 1 without data)",
        "Overview",
        "Total: fail (3 scenarios)",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn colours_do_not_change_the_text_of_the_terminal_report() {
    let document = Document::of(&report());
    let coloured = terminal::render(&document, true, 80);
    assert!(coloured.contains("\x1b[1;31mfail\x1b[0m"));
    let mut plain = String::new();
    let mut parts = coloured.split('\x1b');
    plain.push_str(parts.next().unwrap());
    for part in parts {
        plain.push_str(part.split_once('m').unwrap().1);
    }
    assert_eq!(plain, terminal::render(&document, false, 80));
}

#[test]
fn no_format_passes_on_control_characters_of_a_request() {
    let mut report = report();
    let run = &mut report.scenarios[0];
    run.judgement.rules[0].summary = "\u{1b}[2J\u{9b}31m\u{202e}\u{0}\u{ffff}".to_owned();
    let document = Document::of(&report);
    for text in texts(&document) {
        let allowed = |character: char| character == '\n' || !character.is_control();
        assert!(text.chars().all(allowed));
        assert!(!text.contains(['\u{202e}', '\u{ffff}']));
    }
}

#[test]
fn the_page_draws_at_most_50_operations_and_says_how_many_there_are() {
    let exchanges: Vec<_> = (0..130)
        .map(|number| SampleRequest {
            key: Some(format!("k{number}")),
            arrived_ms: number * 10,
            ..SampleRequest::default()
        })
        .collect();
    let mut run = scenario("many", &exchanges);
    run.judgement.rules = vec![verdict(Rule::Stops, Verdict::Fail, "never stops")];
    run.judgement.rules[0].evidence[0].attempt = Some(129);
    let report = Report {
        scenarios: vec![run],
        ..report()
    };
    let page = html::render(&Document::of(&report));
    assert_eq!(page.matches("class=\"lane\"").count(), 50);
    assert!(page.contains("50 of 130 operations are drawn."));
    // The operation with evidence is drawn, although it is the last one.
    assert!(page.contains("<a href=\"#s1-r130\">request 130</a>"));
    assert!(page.contains("<g id=\"s1-r130\">"));
    assert!(!page.contains("<g id=\"s1-r100\">"));
}

#[test]
fn a_run_without_requests_has_a_report_in_every_format() {
    let mut run = scenario("silent", &[]);
    run.judgement.rules = Vec::new();
    run.failure = Some("the command sent no request".to_owned());
    let report = Report {
        scenarios: vec![run],
        ..report()
    };
    let document = Document::of(&report);
    for text in texts(&document) {
        assert!(text.contains("the command sent no request"), "{text}");
    }
}
