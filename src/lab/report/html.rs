//! The report as one HTML file, to share with the author of a client.
//!
//! The page needs no script and loads nothing, which its content security policy enforces. Colours follow the light or
//! dark scheme of the reader. Every colour has a word or shape with the same meaning.

mod axis;
mod lane;
mod timeline;

use std::fmt::{self, Write as _};

use super::document::{Document, DocumentRule, DocumentScenario};
use super::terminal::{observed, tally};
use super::text::{count, escape_markup, verdict_name};
use crate::lab::verdict::Verdict;
use timeline::Timeline;

const STYLE: &str = include_str!("html/style.css");

pub(crate) fn render(document: &Document) -> String {
    let mut out = String::new();
    write(document, &mut out).expect("writing to a string never fails");
    out
}

fn write(document: &Document, out: &mut String) -> fmt::Result {
    let client = escape_markup(&document.client_name());
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Retries of {client}: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>How {client} retries {}</h1>\n<p class=\"muted\">Tested with the Tidegate retry lab on \
         <time datetime=\"{}\">{}</time>.</p>\n</header>",
        verdict_name(document.verdict),
        badge(document.verdict),
        document.started,
        day_and_time(&document.started),
    )?;
    out.push_str(timeline::SHAPES);
    if document.scenarios.len() > 1 {
        write_overview(document, out)?;
    }
    let mut scenarios = document.scenarios.iter();
    let with_legend = scenarios.position(|scenario| !scenario.operations.is_empty());
    for (index, scenario) in document.scenarios.iter().enumerate() {
        write_scenario(scenario, index + 1, with_legend == Some(index), out)?;
    }
    let secrets = if document.redacted {
        "Recognised credentials are redacted. Bodies are shown as length and hash."
    } else {
        "<strong>This report includes credentials and bodies.</strong>"
    };
    writeln!(
        out,
        "<footer><p>Times are measured at the sockets of the gateway. {secrets}</p></footer>\n</body>\n</html>"
    )
}

fn write_overview(document: &Document, out: &mut String) -> fmt::Result {
    out.push_str(
        "<div class=\"overview\">\n<table class=\"rules\">\n<thead><tr><th>Verdict</th><th>Scenario</th>\
         <th>Rules</th></tr></thead>\n<tbody>\n",
    );
    for (index, scenario) in document.scenarios.iter().enumerate() {
        writeln!(
            out,
            "<tr><td>{}</td><td><a href=\"#s{}\">{}</a></td><td>{}</td></tr>",
            badge(scenario.verdict),
            index + 1,
            escape_markup(&scenario.name),
            tally(scenario),
        )?;
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    Ok(())
}

fn write_scenario(
    scenario: &DocumentScenario,
    number: usize,
    with_legend: bool,
    out: &mut String,
) -> fmt::Result {
    writeln!(
        out,
        "<section id=\"s{number}\">\n<h2>{} {}</h2>\n<p>{}</p>",
        escape_markup(&scenario.name),
        badge(scenario.verdict),
        escape_markup(&scenario.summary),
    )?;
    if !scenario.steps.is_empty() {
        out.push_str("<ol class=\"steps\" aria-label=\"Steps of the scenario\">\n");
        for step in &scenario.steps {
            writeln!(out, "<li><code>{}</code></li>", escape_markup(step))?;
        }
        out.push_str("</ol>\n");
    }
    writeln!(out, "<p class=\"muted small\">{}</p>", observed(scenario))?;
    if let Some(failure) = &scenario.failure {
        let failure = escape_markup(failure);
        writeln!(
            out,
            "<p class=\"note fail\"><strong>Not judged:</strong> {failure}</p>"
        )?;
    }
    for note in &scenario.notes {
        writeln!(out, "<p class=\"note\">{}</p>", escape_markup(note))?;
    }
    let timeline = Timeline::of(scenario, number);
    write_rules(scenario, &timeline, out)?;
    timeline.write(with_legend, out)?;
    out.push_str("</section>\n");
    Ok(())
}

/// Writes the rules, worst verdict first. Rules without enough data are folded, because a scenario concerns few rules.
fn write_rules(
    scenario: &DocumentScenario,
    timeline: &Timeline<'_>,
    out: &mut String,
) -> fmt::Result {
    let with = |verdict| {
        scenario
            .rules
            .iter()
            .filter(move |it| it.verdict == verdict)
    };
    let judged: Vec<_> = [Verdict::Fail, Verdict::Warn, Verdict::Pass]
        .into_iter()
        .flat_map(with)
        .collect();
    let others: Vec<_> = with(Verdict::NotEnoughData).collect();
    if !judged.is_empty() {
        out.push_str("<h3>Rules</h3>\n");
        write_rule_table(&judged, timeline, out)?;
    }
    if !others.is_empty() {
        let number = count(others.len() as u64, "rule");
        let summary = format!("{number} without enough data");
        writeln!(out, "<details>\n<summary>{summary}</summary>")?;
        write_rule_table(&others, timeline, out)?;
        out.push_str("</details>\n");
    }
    Ok(())
}

fn write_rule_table(
    rules: &[&DocumentRule],
    timeline: &Timeline<'_>,
    out: &mut String,
) -> fmt::Result {
    out.push_str(
        "<table class=\"rules\">\n<thead><tr><th>Verdict</th><th>Rule</th><th>Result</th></tr></thead>\n<tbody>\n",
    );
    for rule in rules {
        write_rule(rule, timeline, out)?;
    }
    out.push_str("</tbody>\n</table>\n");
    Ok(())
}

fn write_rule(rule: &DocumentRule, timeline: &Timeline<'_>, out: &mut String) -> fmt::Result {
    write!(
        out,
        "<tr><td>{}</td><td>{}</td><td>{}",
        badge(rule.verdict),
        escape_markup(rule.title),
        escape_markup(&rule.summary),
    )?;
    if !rule.evidence.is_empty() {
        out.push_str("\n<ul class=\"evidence\">\n");
        for evidence in &rule.evidence {
            write!(out, "<li>{}", escape_markup(&evidence.text))?;
            if let Some(request) = evidence.request.filter(|it| timeline.shows(*it)) {
                let anchor = timeline.anchor(request);
                write!(out, " (<a href=\"#{anchor}\">request {request}</a>)")?;
            }
            out.push_str("</li>\n");
        }
        out.push_str("</ul>");
    }
    out.push_str("</td></tr>\n");
    Ok(())
}

fn badge(verdict: Verdict) -> String {
    format!(
        "<span class=\"badge {}\">{}</span>",
        verdict.id(),
        verdict_name(verdict)
    )
}

/// Shows an RFC 3339 time as `2026-11-18, 09:30 UTC`.
fn day_and_time(time: &str) -> String {
    match (time.get(..10), time.get(11..16)) {
        (Some(day), Some(time)) => format!("{day}, {time} UTC"),
        _ => time.to_owned(),
    }
}
