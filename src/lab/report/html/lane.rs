//! One lane of a timeline: the requests of an operation.
//!
//! Labels are omitted where they would overlap, on a narrow screen earlier than on a wide one.

use std::fmt::{self, Write as _};

use super::axis::Axis;
use crate::lab::report::document::{DocumentAttempt, DocumentOperation};
use crate::lab::report::text::{count, duration, escape_markup};

/// Maximum number of requests in a lane, so that a client that never stops does not make the page too large.
const MAX_ATTEMPTS: usize = 100;

/// Vertical position of the marks, in pixels.
const MARKS: u32 = 26;

/// `number` is the number of the operation in the scenario, and `anchor` returns the id of a request.
pub(super) fn write(
    operation: &DocumentOperation,
    number: usize,
    axis: &Axis,
    anchor: impl Fn(u64) -> String,
    out: &mut String,
) -> fmt::Result {
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
        number,
        escape_markup(&operation.method),
        escape_markup(&operation.target),
    )?;
    for tick in axis.ticks() {
        let x = axis.x(tick);
        writeln!(
            out,
            "<line x1=\"{x}%\" x2=\"{x}%\" y1=\"0\" y2=\"58\" class=\"tick\"/>"
        )?;
    }
    let attempts: Vec<_> = shown(operation).collect();
    // Bars come before marks, because SVG draws later elements on top.
    for (position, attempt) in attempts.iter().enumerate() {
        write_bars(axis, attempt, attempts.get(position + 1).copied(), out)?;
    }
    let mut labelled = f64::NEG_INFINITY;
    for attempt in attempts {
        write_mark(axis, attempt, &anchor(attempt.request), &mut labelled, out)?;
    }
    out.push_str("</svg></div>\n</div>\n");
    Ok(())
}

/// Writes the time in flight of a request, the time that its response states, and the gap to the next request.
fn write_bars(
    axis: &Axis,
    attempt: &DocumentAttempt,
    next: Option<&DocumentAttempt>,
    out: &mut String,
) -> fmt::Result {
    let (arrived, ended) = (attempt.arrived_ms, ended(attempt));
    writeln!(
        out,
        "<rect x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"8\" class=\"flight\"/>",
        axis.x(arrived),
        MARKS - 4,
        axis.width(arrived, ended),
    )?;
    if let Some(next) = next.filter(|next| next.arrived_ms > ended) {
        writeln!(
            out,
            "<line x1=\"{}%\" x2=\"{}%\" y1=\"{MARKS}\" y2=\"{MARKS}\" class=\"gap\"/>",
            axis.x(ended),
            axis.x(next.arrived_ms),
        )?;
    }
    if let Some(due) = due(attempt) {
        let start = arrived + attempt.response_ms.unwrap_or(0.0);
        writeln!(
            out,
            "<rect x=\"{}%\" y=\"37\" width=\"{}%\" height=\"4\" class=\"wait\"/>",
            axis.x(start),
            axis.width(start, due),
        )?;
        if due <= axis.end_ms() {
            let x = axis.x(due);
            writeln!(
                out,
                "<line x1=\"{x}%\" x2=\"{x}%\" y1=\"17\" y2=\"43\" class=\"due\"/>"
            )?;
        }
    }
    write_gap_label(axis, attempt, next, out)
}

/// A part that needs more space than the gap has is omitted.
fn write_gap_label(
    axis: &Axis,
    attempt: &DocumentAttempt,
    next: Option<&DocumentAttempt>,
    out: &mut String,
) -> fmt::Result {
    let start = ended(attempt);
    let end = next.map_or(axis.end_ms(), |next| next.arrived_ms);
    let space = axis.width(start, end);
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
    let middle = axis.x(f64::midpoint(start, end.max(start)));
    writeln!(
        out,
        "<text x=\"{middle}%\" y=\"54\" text-anchor=\"middle\">{text}</text>"
    )
}

/// `labelled` is the position of the last mark with a label.
fn write_mark(
    axis: &Axis,
    attempt: &DocumentAttempt,
    anchor: &str,
    labelled: &mut f64,
    out: &mut String,
) -> fmt::Result {
    let x = axis.x(attempt.arrived_ms);
    let space = x - *labelled;
    writeln!(
        out,
        "<g id=\"{}\"><title>{}</title><use href=\"#{}\" x=\"{x}%\" y=\"{MARKS}\"/>",
        anchor,
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

pub(super) fn shown(
    operation: &DocumentOperation,
) -> impl Iterator<Item = &DocumentAttempt> + Clone {
    operation.attempts.iter().take(MAX_ATTEMPTS)
}

pub(super) fn ended(attempt: &DocumentAttempt) -> f64 {
    attempt.arrived_ms + attempt.ended_ms.unwrap_or(0.0)
}

pub(super) fn due(attempt: &DocumentAttempt) -> Option<f64> {
    Some(attempt.arrived_ms + attempt.response_ms? + attempt.stated_wait_ms?)
}

fn shape(attempt: &DocumentAttempt) -> &'static str {
    match attempt.end {
        Some("complete" | "aborted") => attempt.outcome,
        _ => "open",
    }
}

pub(super) fn outcome(attempt: &DocumentAttempt) -> String {
    match (attempt.end, attempt.status) {
        (Some("complete"), Some(status)) => status.to_string(),
        (Some("client-closed"), _) => "closed".to_owned(),
        (None, _) => "none".to_owned(),
        (_, Some(status)) => format!("{status} cut"),
        _ => "lost".to_owned(),
    }
}

fn described(attempt: &DocumentAttempt) -> String {
    format!(
        "Request {} at {}: {}",
        attempt.request,
        duration(attempt.arrived_ms),
        outcome(attempt)
    )
}

fn result(operation: &DocumentOperation) -> Option<String> {
    let (first, last) = (operation.attempts.first()?, operation.attempts.last()?);
    let time = duration(ended(last) - first.arrived_ms);
    Some(format!("{} after {time}", outcome(last)))
}

/// A label with less than `wide` percent of the width is not written. On a narrow screen, a label with less than
/// `narrow` percent is hidden.
fn label_class(space: f64, wide: f64, narrow: f64) -> Option<&'static str> {
    match space {
        _ if space >= narrow => Some(""),
        _ if space >= wide => Some(" wide"),
        _ => None,
    }
}
