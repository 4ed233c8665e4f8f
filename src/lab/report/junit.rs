//! The report as JUnit XML, for CI systems: a test suite per scenario, and a test case per rule.
//!
//! A warning is a passed test with output, because the exit code of the lab is also 0. A scenario that could not be
//! judged has a test case with an error.

use std::fmt::{self, Write as _};

use super::document::{Document, DocumentRule, DocumentScenario};
use super::terminal::observed;
use super::text::escape_markup;
use crate::lab::verdict::Verdict;

pub(crate) fn render(document: &Document) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    write(document, &mut out).expect("writing to a string never fails");
    out
}

fn write(document: &Document, out: &mut String) -> fmt::Result {
    let scenarios = &document.scenarios;
    let time: f64 = scenarios.iter().map(|scenario| scenario.duration_ms).sum();
    writeln!(
        out,
        "<testsuites name=\"{}\" {} time=\"{:.3}\">",
        escape_markup(&format!("tidegate lab: {}", document.client_name())),
        counts(scenarios),
        time / 1_000.0,
    )?;
    for scenario in scenarios {
        writeln!(
            out,
            "  <testsuite name=\"{}\" {} time=\"{:.3}\" timestamp=\"{}\">",
            escape_markup(&scenario.name),
            counts(std::slice::from_ref(scenario)),
            scenario.duration_ms / 1_000.0,
            // The schema of JUnit allows neither fractions of a second nor a time zone.
            document.started.get(..19).unwrap_or_default(),
        )?;
        let class = escape_markup(&format!("{}.{}", document.client, scenario.name));
        for rule in &scenario.rules {
            write_rule(rule, &class, out)?;
        }
        if let Some(failure) = &scenario.failure {
            writeln!(
                out,
                "    <testcase name=\"judged\" classname=\"{class}\" time=\"0\">\n      \
                 <error message=\"{}\"/>\n    </testcase>",
                escape_markup(failure),
            )?;
        }
        let mut lines = vec![observed(scenario)];
        lines.extend_from_slice(&scenario.notes);
        writeln!(
            out,
            "    <system-out>{}</system-out>\n  </testsuite>",
            escape_markup(&lines.join("\n"))
        )?;
    }
    writeln!(out, "</testsuites>")
}

fn write_rule(rule: &DocumentRule, class: &str, out: &mut String) -> fmt::Result {
    let name = escape_markup(&format!("{}: {}", rule.id, rule.title));
    let summary = escape_markup(&rule.summary);
    let evidence = rule.evidence.iter().map(|evidence| evidence.text.as_str());
    let lines: Vec<_> = [rule.summary.as_str()]
        .into_iter()
        .chain(evidence)
        .collect();
    let lines = escape_markup(&lines.join("\n"));
    write!(
        out,
        "    <testcase name=\"{name}\" classname=\"{class}\" time=\"0\""
    )?;
    match rule.verdict {
        Verdict::Pass => return writeln!(out, "/>"),
        Verdict::Warn => write!(out, ">\n      <system-out>warning: {lines}</system-out>")?,
        Verdict::Fail => write!(
            out,
            ">\n      <failure type=\"{}\" message=\"{summary}\">{lines}</failure>",
            rule.id
        )?,
        Verdict::NotEnoughData => write!(
            out,
            ">\n      <skipped message=\"not enough data: {summary}\"/>"
        )?,
    }
    writeln!(out, "\n    </testcase>")
}

fn counts(scenarios: &[DocumentScenario]) -> String {
    let sum = |number: fn(&DocumentScenario) -> u64| scenarios.iter().map(number).sum::<u64>();
    let errors = sum(|scenario| u64::from(scenario.failure.is_some()));
    format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{errors}\" skipped=\"{}\"",
        sum(|scenario| scenario.rules.len() as u64) + errors,
        sum(|scenario| scenario.count(Verdict::Fail)),
        sum(|scenario| scenario.count(Verdict::NotEnoughData)),
    )
}
