//! The report as GitHub-flavoured Markdown, for a comment on a pull request.
//!
//! The evidence is an HTML block in `<details>`. Inside an HTML block there is no Markdown, so its texts need only the
//! escapes of HTML. It has no empty lines, because an empty line ends an HTML block.

use std::fmt::{self, Write as _};

use super::document::{Document, DocumentRule, DocumentScenario};
use super::terminal::{observed, tally};
use super::text::{count, escape_markup, verdict_name};
use crate::lab::verdict::Verdict;

pub(crate) fn render(document: &Document) -> String {
    let mut out = String::new();
    write(document, &mut out).expect("writing to a string never fails");
    out
}

fn write(document: &Document, out: &mut String) -> fmt::Result {
    let client = escape(&document.client_name());
    writeln!(
        out,
        "### Retry lab: {client}: {}",
        labelled(document.verdict)
    )?;
    if document.scenarios.len() > 1 {
        writeln!(out, "\n| scenario | verdict | rules |\n|---|---|---|")?;
        for scenario in &document.scenarios {
            writeln!(
                out,
                "| {} | {} | {} |",
                escape(&scenario.name),
                labelled(scenario.verdict),
                tally(scenario)
            )?;
        }
    }
    for scenario in &document.scenarios {
        write_scenario(scenario, out)?;
    }
    Ok(())
}

fn write_scenario(scenario: &DocumentScenario, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n#### {}: {}\n\nObserved: {}.",
        escape(&scenario.name),
        labelled(scenario.verdict),
        observed(scenario),
    )?;
    if !scenario.summary.is_empty() {
        writeln!(out, "\nScenario: {}", escape(&scenario.summary))?;
    }
    if let Some(failure) = &scenario.failure {
        writeln!(out, "\n**Not judged:** {}", escape(failure))?;
    }
    for note in &scenario.notes {
        writeln!(out, "\nNote: {}", escape(note))?;
    }
    let has_data = |rule: &&DocumentRule| rule.verdict != Verdict::NotEnoughData;
    if scenario.rules.iter().any(|rule| has_data(&rule)) {
        writeln!(out, "\n| verdict | rule | result |\n|---|---|---|")?;
    }
    for rule in scenario.rules.iter().filter(has_data) {
        writeln!(
            out,
            "| {} | {} | {} |",
            labelled(rule.verdict),
            escape(rule.title),
            escape(&rule.summary)
        )?;
    }
    let without = scenario.rules.iter().filter(|rule| !has_data(rule));
    let without: Vec<_> = without.map(|rule| rule.title).collect();
    if !without.is_empty() {
        writeln!(out, "\nNot enough data: {}.", without.join(", "))?;
    }
    write_evidence(scenario, out)
}

fn write_evidence(scenario: &DocumentScenario, out: &mut String) -> fmt::Result {
    let rules = scenario.rules.iter();
    let rules: Vec<_> = rules
        .filter(|rule| matches!(rule.verdict, Verdict::Warn | Verdict::Fail))
        .filter(|rule| !rule.evidence.is_empty())
        .collect();
    if rules.is_empty() {
        return Ok(());
    }
    let number = count(rules.len() as u64, "rule");
    writeln!(
        out,
        "\n<details>\n<summary>Evidence for {number}</summary>\n<ul>"
    )?;
    for rule in rules {
        writeln!(out, "<li>{}\n<ul>", escape_markup(rule.title))?;
        for evidence in &rule.evidence {
            // GitHub creates no mentions and no links inside `code`.
            writeln!(
                out,
                "<li><code>{}</code></li>",
                escape_markup(&evidence.text)
            )?;
        }
        writeln!(out, "</ul></li>")?;
    }
    writeln!(out, "</ul>\n</details>")
}

fn labelled(verdict: Verdict) -> String {
    let symbol = match verdict {
        Verdict::Pass => "✅",
        Verdict::Warn => "⚠️",
        Verdict::Fail => "❌",
        Verdict::NotEnoughData => "➖",
    };
    format!("{symbol} {}", verdict_name(verdict))
}

/// Escapes a text inside a paragraph or a table cell, but not at the start of a line. An empty comment after `@` and
/// `#` prevents that GitHub notifies a user or links an issue.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push_str("@<!-- -->"),
            '#' => out.push_str("\\#<!-- -->"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '(' | ')' | '|' | '~' | '!' | '$' => {
                out.push('\\');
                out.push(character);
            }
            character => out.push(character),
        }
    }
    out
}
