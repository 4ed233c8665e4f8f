//! Timeline of the operations of a scenario, as SVG: a lane per operation, a mark per request.
//!
//! Horizontal positions are percentages, and sizes of marks and texts are pixels. So the timeline fits the width of a
//! phone, and its texts stay readable. Labels are left out where they would overlap. A table has all values as text.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::{duration, escape_markup};
use crate::lab::report::document::{DocumentAttempt, DocumentOperation, DocumentScenario};
use crate::lab::report::text::count;
use crate::lab::verdict::Verdict;

/// Maximum number of operations in the timeline of a scenario.
const MAX_OPERATIONS: usize = 50;

/// Number of operations that are visible at once. The reader can open the others.
const VISIBLE_OPERATIONS: usize = 10;

/// Maximum number of requests in a lane, so that a client that never stops does not make the page too large.
const MAX_ATTEMPTS: usize = 100;

/// Shapes of the marks, each around the origin.
pub(super) const SHAPES: &str = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>\n\
    <g id=\"ok\"><circle r=\"7\" class=\"ok\"/><path d=\"M-3 .2 L-.8 2.5 L3.2 -2.2\" class=\"check\"/></g>\n\
    <rect id=\"retryable\" x=\"-6\" y=\"-6\" width=\"12\" height=\"12\" rx=\"2\" class=\"retryable\"/>\n\
    <path id=\"final\" d=\"M0 -8 L8 0 L0 8 L-8 0 Z\" class=\"final\"/>\n\
    <path id=\"lost\" d=\"M-5 -5 L5 5 M-5 5 L5 -5\" class=\"lost\"/>\n\
    <circle id=\"open\" r=\"6\" class=\"open\"/>\n</defs></svg>\n";

/// Shapes with their meaning, for the legend.
const LEGEND: [(&str, &str); 5] = [
    ("ok", "success"),
    ("retryable", "failure that a retry can repair"),
    ("final", "failure that a retry cannot repair"),
    ("lost", "response lost or cut off"),
    ("open", "client left, or no response yet"),
];

/// Vertical position of the marks in a lane, in pixels.
const MARKS: u32 = 26;

/// Timeline of a scenario.
pub(super) struct Timeline<'a> {
    scenario: &'a DocumentScenario,
    /// Number of the scenario in the report, which makes the anchors unique.
    number: usize,
    /// Indices of the operations that are drawn.
    drawn: Vec<usize>,
    /// Numbers of the requests that are drawn.
    requests: BTreeSet<u64>,
    /// Time at the right end of the axis.
    end_ms: f64,
}

impl<'a> Timeline<'a> {
    /// Selects the operations to draw: those with evidence against the client, then the first ones.
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
        let end_ms = attempts
            .map(|attempt| due(attempt).unwrap_or(0.0))
            .fold(last, f64::max)
            .min(last * 2.0)
            .max(1.0);
        Self {
            scenario,
            number,
            drawn,
            requests,
            end_ms,
        }
    }

    /// Whether a request is drawn.
    pub(super) fn shows(&self, request: u64) -> bool {
        self.requests.contains(&request)
    }

    /// Returns the id of the mark of a request.
    pub(super) fn anchor(&self, request: u64) -> String {
        format!("s{}-r{request}", self.number)
    }

    /// Writes the timeline, and a table with the same requests.
    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        if self.drawn.is_empty() {
            return Ok(());
        }
        out.push_str("<h3>Timeline</h3>\n<figure>\n<ul class=\"legend\">\n");
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
             states</li>\n</ul>\n<div class=\"plot axis\">\n",
        );
        self.write_axis(out)?;
        out.push_str("</div>\n");
        let (visible, folded) = self
            .drawn
            .split_at(self.drawn.len().min(VISIBLE_OPERATIONS));
        for index in visible {
            self.write_lane(*index, out)?;
        }
        if !folded.is_empty() {
            let more = count(folded.len() as u64, "more operation");
            writeln!(out, "<details>\n<summary>{more}</summary>")?;
            for index in folded {
                self.write_lane(*index, out)?;
            }
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

    fn write_axis(&self, out: &mut String) -> fmt::Result {
        out.push_str("<svg height=\"24\" role=\"img\" aria-label=\"Time axis in seconds\">\n");
        for tick in ticks(self.end_ms) {
            let x = self.x(tick);
            let label = seconds(tick);
            writeln!(
                out,
                "<line x1=\"{x}%\" x2=\"{x}%\" y1=\"18\" y2=\"24\" class=\"tick\"/>\
                 <text x=\"{x}%\" y=\"13\" text-anchor=\"middle\">{label}</text>"
            )?;
        }
        out.push_str("</svg>\n");
        Ok(())
    }

    fn write_lane(&self, index: usize, out: &mut String) -> fmt::Result {
        let operation = &self.scenario.operations[index];
        let mut facts = vec![format!("client {}", operation.client)];
        if let Some(key) = &operation.key {
            facts.insert(0, format!("key {key}"));
        }
        facts.push(count(operation.attempts.len() as u64, "request"));
        facts.extend(result(operation));
        let left_out = operation.attempts.len().saturating_sub(MAX_ATTEMPTS);
        if left_out > 0 {
            facts.push(format!("the last {left_out} are not drawn"));
        }
        let facts = escape_markup(&facts.join(" · "));
        writeln!(
            out,
            "<div class=\"lane\">\n<p><strong>{}. {}</strong> <code>{}</code> <span class=\"muted\">{facts}</span></p>\n\
             <div class=\"plot\"><svg height=\"58\" role=\"group\" aria-label=\"Operation {0}\">",
            index + 1,
            escape_markup(&operation.method),
            escape_markup(&operation.target),
        )?;
        for tick in ticks(self.end_ms) {
            let x = self.x(tick);
            writeln!(
                out,
                "<line x1=\"{x}%\" x2=\"{x}%\" y1=\"0\" y2=\"58\" class=\"tick\"/>"
            )?;
        }
        let attempts: Vec<_> = shown(operation).collect();
        // Bars come before marks, because SVG draws later elements on top.
        for (position, attempt) in attempts.iter().enumerate() {
            self.write_bars(attempt, attempts.get(position + 1).copied(), out)?;
        }
        let mut labelled = f64::NEG_INFINITY;
        for attempt in attempts {
            self.write_mark(attempt, &mut labelled, out)?;
        }
        out.push_str("</svg></div>\n</div>\n");
        Ok(())
    }

    /// Writes the time in flight of a request, the time that its response states, and the gap to the next request.
    fn write_bars(
        &self,
        attempt: &DocumentAttempt,
        next: Option<&DocumentAttempt>,
        out: &mut String,
    ) -> fmt::Result {
        let (arrived, ended) = (attempt.arrived_ms, ended(attempt));
        writeln!(
            out,
            "<rect x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"8\" class=\"flight\"/>",
            self.x(arrived),
            MARKS - 4,
            self.width(arrived, ended),
        )?;
        if let Some(next) = next.filter(|next| next.arrived_ms > ended) {
            writeln!(
                out,
                "<line x1=\"{}%\" x2=\"{}%\" y1=\"{MARKS}\" y2=\"{MARKS}\" class=\"gap\"/>",
                self.x(ended),
                self.x(next.arrived_ms),
            )?;
        }
        if let Some(due) = due(attempt) {
            let start = arrived + attempt.response_ms.unwrap_or(0.0);
            writeln!(
                out,
                "<rect x=\"{}%\" y=\"37\" width=\"{}%\" height=\"4\" class=\"wait\"/>",
                self.x(start),
                self.width(start, due),
            )?;
            if due <= self.end_ms {
                let x = self.x(due);
                writeln!(
                    out,
                    "<line x1=\"{x}%\" x2=\"{x}%\" y1=\"14\" y2=\"43\" class=\"due\"/>"
                )?;
            }
        }
        self.write_gap_label(attempt, next, out)
    }

    /// Writes the length of the gap, and the stated time. A part that needs more space than the gap has is left out.
    fn write_gap_label(
        &self,
        attempt: &DocumentAttempt,
        next: Option<&DocumentAttempt>,
        out: &mut String,
    ) -> fmt::Result {
        let start = ended(attempt);
        let end = next.map_or(self.end_ms, |next| next.arrived_ms);
        let space = self.width(start, end);
        let gap = next.and_then(|next| next.gap_ms).map(duration);
        let stated = attempt.stated_wait_ms.map(duration);
        let short = label_class(space, 5.0, 13.0);
        let long = label_class(space, 15.0, 44.0);
        let text = match (gap, stated, short, long) {
            (Some(gap), Some(stated), Some(short), Some(long)) => format!(
                "<tspan class=\"length{short}\">{gap}</tspan><tspan class=\"stated{long}\"> of {stated} stated</tspan>"
            ),
            (Some(gap), _, Some(short), _) => {
                format!("<tspan class=\"length{short}\">{gap}</tspan>")
            }
            (None, Some(stated), _, Some(long)) => {
                format!("<tspan class=\"stated{long}\">{stated} stated</tspan>")
            }
            _ => return Ok(()),
        };
        let middle = self.x(f64::midpoint(start, end.max(start)));
        writeln!(
            out,
            "<text x=\"{middle}%\" y=\"54\" text-anchor=\"middle\">{text}</text>"
        )
    }

    /// Writes the mark of a request. `labelled` is the position of the last mark with a label.
    fn write_mark(
        &self,
        attempt: &DocumentAttempt,
        labelled: &mut f64,
        out: &mut String,
    ) -> fmt::Result {
        let x = self.x(attempt.arrived_ms);
        let space = x - *labelled;
        writeln!(
            out,
            "<g id=\"{}\"><title>{}</title><use href=\"#{}\" x=\"{x}%\" y=\"{MARKS}\"/>",
            self.anchor(attempt.request),
            escape_markup(&described(attempt)),
            shape(attempt),
        )?;
        if let Some(class) = label_class(space, 4.0, 11.0) {
            *labelled = x;
            writeln!(
                out,
                "<text x=\"{x}%\" y=\"13\" text-anchor=\"middle\" class=\"status{class}\">{}</text>",
                outcome(attempt)
            )?;
        }
        out.push_str("</g>\n");
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

    /// Returns the horizontal position of a time, in percent.
    fn x(&self, ms: f64) -> f64 {
        let percent = (ms / self.end_ms * 100.0).clamp(0.0, 100.0);
        (percent * 1_000.0).round() / 1_000.0
    }

    /// Returns the width of an interval, in percent.
    fn width(&self, start_ms: f64, end_ms: f64) -> f64 {
        let percent = (self.x(end_ms) - self.x(start_ms)).max(0.0);
        (percent * 1_000.0).round() / 1_000.0
    }
}

/// Returns the attempts of an operation that are drawn.
fn shown(operation: &DocumentOperation) -> impl Iterator<Item = &DocumentAttempt> + Clone {
    operation.attempts.iter().take(MAX_ATTEMPTS)
}

/// Returns the time of the end of the response, or of the request if there is no response.
fn ended(attempt: &DocumentAttempt) -> f64 {
    attempt.arrived_ms + attempt.ended_ms.unwrap_or(0.0)
}

/// Returns the time until which the response asks the client to wait.
fn due(attempt: &DocumentAttempt) -> Option<f64> {
    Some(attempt.arrived_ms + attempt.response_ms? + attempt.stated_wait_ms?)
}

fn shape(attempt: &DocumentAttempt) -> &'static str {
    match (attempt.end, attempt.status) {
        (Some("complete"), Some(..400)) => "ok",
        (Some("complete"), Some(408 | 425 | 429 | 500..)) => "retryable",
        (Some("complete"), Some(_)) => "final",
        (Some("client-closed") | None, _) => "open",
        _ => "lost",
    }
}

/// Returns the response of an attempt in few characters.
fn outcome(attempt: &DocumentAttempt) -> String {
    match (attempt.end, attempt.status) {
        (Some("complete"), Some(status)) => status.to_string(),
        (Some("client-closed"), _) => "left".to_owned(),
        (None, _) => "none".to_owned(),
        (_, Some(status)) => format!("{status} cut"),
        _ => "lost".to_owned(),
    }
}

/// Returns all facts about an attempt, for the tooltip of its mark.
fn described(attempt: &DocumentAttempt) -> String {
    let mut facts = vec![match (attempt.end, attempt.status) {
        (Some("complete"), Some(status)) => status.to_string(),
        (Some("client-closed"), _) => "the client closed before the end of the response".to_owned(),
        (None, _) => "no response".to_owned(),
        (_, Some(status)) => format!("{status}, cut off"),
        _ => "connection closed without a response".to_owned(),
    }];
    facts.extend(
        attempt
            .response_ms
            .map(|ms| format!("after {}", duration(ms))),
    );
    facts.extend(
        attempt
            .stated_wait_ms
            .map(|ms| format!("states a wait of {}", duration(ms))),
    );
    facts.extend(attempt.step.as_ref().map(|step| format!("step {step}")));
    facts.push(format!("connection {}", attempt.connection));
    format!(
        "Request {} at {}: {}",
        attempt.request,
        duration(attempt.arrived_ms),
        facts.join(", ")
    )
}

/// Returns how an operation ended.
fn result(operation: &DocumentOperation) -> Option<String> {
    let (first, last) = (operation.attempts.first()?, operation.attempts.last()?);
    let time = duration(ended(last) - first.arrived_ms);
    Some(format!("{} after {time}", outcome(last)))
}

/// Returns the class of a label that has `space` percent of the width. On a narrow screen, a label with less than
/// `narrow` percent is hidden. A label with less than `wide` percent is not written.
fn label_class(space: f64, wide: f64, narrow: f64) -> Option<&'static str> {
    match space {
        _ if space >= narrow => Some(""),
        _ if space >= wide => Some(" wide"),
        _ => None,
    }
}

/// Returns the times of the ticks of an axis: at most 7, at round numbers.
fn ticks(end_ms: f64) -> impl Iterator<Item = f64> {
    let step = round_step(end_ms / 6.0);
    (0_u32..)
        .map(move |index| f64::from(index) * step)
        .take_while(move |tick| *tick <= end_ms)
}

/// Returns the least of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

/// Returns the label of a tick, in seconds.
fn seconds(ms: f64) -> String {
    let text = format!("{:.4}", ms / 1_000.0);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_at_round_numbers() {
        let labels = |end_ms| ticks(end_ms).map(seconds).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(7_300.0), "0 s 2 s 4 s 6 s");
        assert_eq!(labels(60_000.0), "0 s 10 s 20 s 30 s 40 s 50 s 60 s");
        assert_eq!(
            labels(1.0),
            "0 s 0.0002 s 0.0004 s 0.0006 s 0.0008 s 0.001 s"
        );
        assert_eq!(labels(140_000.0), "0 s 50 s 100 s");
    }
}
