//! The report as text for a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

use textwrap::core::display_width;

use super::document::{Document, DocumentRule, DocumentScenario};
use super::text::{count, duration, verdict_name};
use crate::lab::verdict::Verdict;

/// Least width of a report, in columns. A narrower terminal breaks the lines itself.
const MIN_WIDTH: usize = 60;

const MAX_WIDTH: usize = 120;

/// Width of the labels in the header of a scenario, including the space after them.
const LABEL: usize = 10;

const VERDICT: usize = 8;

struct Page {
    out: String,
    width: usize,
    colour: bool,
}

pub(crate) fn render(document: &Document, colour: bool, width: usize) -> String {
    let mut page = Page {
        out: String::new(),
        width: width.clamp(MIN_WIDTH, MAX_WIDTH),
        colour,
    };
    page.field("Client", &document.client_name());
    for scenario in &document.scenarios {
        page.scenario(scenario);
    }
    if document.scenarios.len() > 1 {
        page.overview(document);
    }
    page.out
}

impl Page {
    fn scenario(&mut self, scenario: &DocumentScenario) {
        self.line("");
        let title = match scenario.summary.as_str() {
            "" => scenario.name.clone(),
            summary => format!("{}: {summary}", scenario.name),
        };
        self.field("Scenario", &title);
        self.field("Steps", &scenario.steps.join(", "));
        self.field("Observed", &observed(scenario));
        for note in &scenario.notes {
            self.field("Note", note);
        }
        if let Some(failure) = &scenario.failure {
            self.field("Problem", failure);
        }
        self.line("");
        let titles = scenario.rules.iter().map(|rule| display_width(rule.title));
        let column = VERDICT + titles.max().unwrap_or(0) + 2;
        // Rules without enough data come last, because they say nothing about the client.
        let has_data = |rule: &&DocumentRule| rule.verdict != Verdict::NotEnoughData;
        let (judged, others): (Vec<_>, Vec<_>) = scenario.rules.iter().partition(has_data);
        // Their reasons are shown only if there is nothing else. The other formats always contain them.
        let with_reasons = judged.is_empty();
        for rule in judged.into_iter().chain(others) {
            self.rule(rule, column, with_reasons);
        }
        if !scenario.rules.is_empty() {
            self.line("");
        }
        let verdict = self.paint(scenario.verdict, verdict_name(scenario.verdict));
        // This line is not wrapped, so that programs can search for it.
        self.line(&format!(
            "{}: {verdict} ({})",
            scenario.name,
            tally(scenario)
        ));
    }

    /// Summaries start at `column`.
    fn rule(&mut self, rule: &DocumentRule, column: usize, with_reasons: bool) {
        let (verdict, summary) = match rule.verdict {
            // These words are too long for the column of the verdicts.
            Verdict::NotEnoughData if !with_reasons || rule.summary.is_empty() => {
                ("–", "not enough data".to_owned())
            }
            Verdict::NotEnoughData => ("–", format!("not enough data: {}", rule.summary)),
            verdict => (verdict.id(), rule.summary.clone()),
        };
        let width = self.width - column;
        let mut start = format!(
            "  {}{}{}{}",
            self.paint(rule.verdict, verdict),
            " ".repeat(VERDICT - 2 - display_width(verdict)),
            rule.title,
            " ".repeat(column - VERDICT - display_width(rule.title)),
        );
        for line in wrapped(&summary, width) {
            self.line(&(start + &line));
            start = " ".repeat(column);
        }
        if matches!(rule.verdict, Verdict::Warn | Verdict::Fail) {
            for evidence in &rule.evidence {
                let lines = wrapped(&evidence.text, self.width - VERDICT - 2);
                for (index, line) in lines.iter().enumerate() {
                    let mark = if index == 0 { "· " } else { "  " };
                    self.line(&format!("{}{mark}{line}", " ".repeat(VERDICT)));
                }
            }
        }
    }

    fn overview(&mut self, document: &Document) {
        let names = document.scenarios.iter();
        let column = names.map(|scenario| display_width(&scenario.name)).max();
        let column = column.unwrap_or(0).min(self.width / 2);
        self.out.push_str("\nOverview\n\n");
        for scenario in &document.scenarios {
            let verdict = verdict_name(scenario.verdict);
            let padding = " ".repeat(column.saturating_sub(display_width(&scenario.name)) + 2);
            let verdict = self.paint(scenario.verdict, &format!("{verdict:15}"));
            let line = format!("{}{padding}{verdict}  {}", scenario.name, tally(scenario));
            self.wrap(&line, 2);
        }
        let total = self.paint(document.verdict, verdict_name(document.verdict));
        let scenarios = count(document.scenarios.len() as u64, "scenario");
        self.line("");
        self.line(&format!("Total: {total} ({scenarios})"));
    }

    fn field(&mut self, label: &str, text: &str) {
        let mut start = format!("{label:LABEL$}");
        for line in wrapped(text, self.width - LABEL) {
            self.line(&(start + &line));
            start = " ".repeat(LABEL);
        }
    }

    fn wrap(&mut self, text: &str, indent: usize) {
        for line in wrapped(text, self.width - indent) {
            self.line(&format!("{}{line}", " ".repeat(indent)));
        }
    }

    fn line(&mut self, line: &str) {
        writeln!(self.out, "{}", line.trim_end()).expect("writing to a string never fails");
    }

    fn paint(&self, verdict: Verdict, text: &str) -> String {
        let code = match verdict {
            Verdict::Pass => "32",
            Verdict::Warn => "33",
            Verdict::Fail => "1;31",
            Verdict::NotEnoughData => "2",
        };
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

pub(super) fn observed(scenario: &DocumentScenario) -> String {
    let mut text = format!(
        "{}, {}, {}, {}",
        count(scenario.operations.len() as u64, "operation"),
        count(scenario.requests, "request"),
        count(scenario.clients, "client"),
        duration(scenario.duration_ms),
    );
    for (number, what) in [
        (scenario.unattributed, "of no single operation"),
        (scenario.unrecorded, "not in the trace"),
    ] {
        if number > 0 {
            write!(text, "; {} {what}", count(number, "request"))
                .expect("writing to a string never fails");
        }
    }
    text
}

pub(super) fn tally(scenario: &DocumentScenario) -> String {
    let counts = [
        (Verdict::Fail, "fail"),
        (Verdict::Warn, "warn"),
        (Verdict::Pass, "pass"),
        (Verdict::NotEnoughData, "without data"),
    ]
    .map(|(verdict, word)| (scenario.count(verdict), word));
    let counts = counts.into_iter().filter(|(number, _)| *number > 0);
    let counts: Vec<_> = counts
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    if counts.is_empty() {
        return "no rules".to_owned();
    }
    counts.join(", ")
}

/// Long words, such as paths, are broken, too. There is always at least one line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let lines = textwrap::wrap(text, width);
    lines.into_iter().map(Cow::into_owned).collect()
}
