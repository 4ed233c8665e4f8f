//! Timeline of the operations of a scenario, as SVG: a lane per operation, a mark per request.
//!
//! Horizontal positions are percentages, and sizes of marks and texts are pixels. So the timeline fits the width of a
//! phone, and its texts stay readable. A table has all values as text.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::axis::Axis;
use super::lane::{self, ended, outcome, shown};
use crate::lab::report::document::{DocumentOperation, DocumentScenario};
use crate::lab::report::text::{count, duration, escape_markup};
use crate::lab::verdict::Verdict;

/// Maximum number of operations in the timeline of a scenario.
const MAX_OPERATIONS: usize = 50;

/// Number of operations that are visible at once. The reader can open the others.
const VISIBLE_OPERATIONS: usize = 10;

/// Shapes of the marks, each around the origin.
pub(super) const SHAPES: &str = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>\n\
    <g id=\"success\"><circle r=\"7\" class=\"success\"/><path d=\"M-3 .2 L-.8 2.5 L3.2 -2.2\" class=\"check\"/></g>\n\
    <rect id=\"retryable\" x=\"-6\" y=\"-6\" width=\"12\" height=\"12\" rx=\"2\" class=\"retryable\"/>\n\
    <path id=\"final\" d=\"M0 -8 L8 0 L0 8 L-8 0 Z\" class=\"final\"/>\n\
    <path id=\"lost\" d=\"M-5 -5 L5 5 M-5 5 L5 -5\" class=\"lost\"/>\n\
    <circle id=\"open\" r=\"6\" class=\"open\"/>\n</defs></svg>\n";

const LEGEND: [(&str, &str); 5] = [
    ("success", "success"),
    ("retryable", "failure that a retry can repair"),
    ("final", "failure that a retry cannot repair"),
    ("lost", "response lost or cut off"),
    ("open", "client closed, or no response yet"),
];

pub(super) struct Timeline<'a> {
    scenario: &'a DocumentScenario,
    /// Number of the scenario in the report, which makes the anchors unique.
    number: usize,
    /// Indices of the operations.
    drawn: Vec<usize>,
    requests: BTreeSet<u64>,
    axis: Axis,
}

impl<'a> Timeline<'a> {
    /// Operations with evidence against the client come first.
    pub(super) fn of(scenario: &'a DocumentScenario, number: usize) -> Self {
        let against = scenario.rules.iter();
        let against = against.filter(|rule| matches!(rule.verdict, Verdict::Warn | Verdict::Fail));
        let against: BTreeSet<_> = against
            .flat_map(|rule| &rule.evidence)
            .filter_map(|evidence| evidence.request)
            .collect();
        let has_evidence = |operation: &DocumentOperation| {
            let mut attempts = operation.attempts.iter();
            attempts.any(|attempt| against.contains(&attempt.request))
        };
        let operations = &scenario.operations;
        let (first, second): (Vec<_>, Vec<_>) =
            (0..operations.len()).partition(|index| has_evidence(&operations[*index]));
        let mut drawn: Vec<_> = first
            .into_iter()
            .chain(second)
            .take(MAX_OPERATIONS)
            .collect();
        drawn.sort_unstable();
        let attempts = drawn.iter().flat_map(|index| shown(&operations[*index]));
        let requests = attempts.clone().map(|attempt| attempt.request).collect();
        let last = attempts.clone().map(ended).fold(0.0, f64::max);
        // A wait that no request follows extends the axis, but at most to twice the time of the requests.
        let due = attempts.filter_map(lane::due).fold(last, f64::max);
        Self {
            scenario,
            number,
            drawn,
            requests,
            axis: Axis::until(due.min(last * 2.0)),
        }
    }

    pub(super) fn shows(&self, request: u64) -> bool {
        self.requests.contains(&request)
    }

    pub(super) fn anchor(&self, request: u64) -> String {
        format!("s{}-r{request}", self.number)
    }

    pub(super) fn write(&self, with_legend: bool, out: &mut String) -> fmt::Result {
        if self.drawn.is_empty() {
            return Ok(());
        }
        out.push_str("<h3>Timeline</h3>\n<figure>\n");
        if with_legend {
            write_legend(out)?;
        }
        self.axis.write(out)?;
        let visible = self.drawn.len().min(VISIBLE_OPERATIONS);
        let (visible, folded) = self.drawn.split_at(visible);
        self.write_lanes(visible, out)?;
        if !folded.is_empty() {
            let more = count(folded.len() as u64, "more operation");
            writeln!(out, "<details>\n<summary>{more}</summary>")?;
            self.write_lanes(folded, out)?;
            out.push_str("</details>\n");
        }
        let left_out = self.scenario.operations.len() - self.drawn.len();
        if left_out > 0 {
            writeln!(
                out,
                "<figcaption>{} of {} are drawn. The JSON report has all of them.</figcaption>",
                self.drawn.len(),
                count(self.scenario.operations.len() as u64, "operation"),
            )?;
        }
        out.push_str("</figure>\n");
        self.write_table(out)
    }

    fn write_lanes(&self, operations: &[usize], out: &mut String) -> fmt::Result {
        for index in operations {
            let operation = &self.scenario.operations[*index];
            let anchor = |request| self.anchor(request);
            lane::write(operation, *index + 1, &self.axis, anchor, out)?;
        }
        Ok(())
    }

    fn write_table(&self, out: &mut String) -> fmt::Result {
        out.push_str(
            "<details>\n<summary>Requests as a table</summary>\n<div class=\"scroll\">\n<table>\n<thead><tr>\
             <th>Operation</th><th>Request</th><th>Time</th><th>Response</th><th>After</th><th>Stated wait</th>\
             <th>Gap before</th><th>Step</th><th>Connection</th><th>Body</th></tr></thead>\n<tbody>\n",
        );
        let optional = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), duration);
        for index in &self.drawn {
            for attempt in shown(&self.scenario.operations[*index]) {
                writeln!(
                    out,
                    "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                     <td><code>{}</code></td><td>{}</td><td>{} B, <code>{}</code></td></tr>",
                    index + 1,
                    attempt.request,
                    duration(attempt.arrived_ms),
                    outcome(attempt),
                    optional(attempt.response_ms),
                    optional(attempt.stated_wait_ms),
                    optional(attempt.gap_ms),
                    escape_markup(attempt.step.as_deref().unwrap_or("–")),
                    attempt.connection,
                    attempt.body.length,
                    attempt.body.hash,
                )?;
            }
        }
        out.push_str("</tbody>\n</table>\n</div>\n</details>\n");
        Ok(())
    }
}

fn write_legend(out: &mut String) -> fmt::Result {
    out.push_str("<ul class=\"legend\">\n");
    for (shape, meaning) in LEGEND {
        writeln!(
            out,
            "<li><svg width=\"16\" height=\"16\" aria-hidden=\"true\"><use href=\"#{shape}\" x=\"8\" y=\"8\"/></svg>\
             {meaning}</li>"
        )?;
    }
    out.push_str(
        "<li><svg width=\"24\" height=\"16\" aria-hidden=\"true\"><rect y=\"6\" width=\"23\" height=\"4\" \
         class=\"wait\"/><line x1=\"23\" x2=\"23\" y1=\"0\" y2=\"16\" class=\"due\"/></svg>time that the response \
         states</li>\n</ul>\n",
    );
    Ok(())
}
