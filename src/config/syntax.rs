//! Syntax of the configuration file: reports all syntax errors, each with a remedy for the line that contains it.
//!
//! The TOML parser says what it expected, which often does not name the mistake. For `path = "/v1/\d+"` it expects an
//! escape, and the remedy is single quotes. So the remedy is derived from the text of the line. A corrected line is
//! shown only if it is valid TOML.
//!
//! The lines with errors are removed and the rest of the file is checked too, so that one run reports all errors.

mod line;

use std::borrow::Cow;
use std::collections::BTreeSet;

use toml::de::DeTable;

use super::problem::Findings;
use super::secrets;
use super::source::Span;

use line::LineMistake;

/// Reports the syntax errors of the configuration file, whose text must be the first in the
/// [`SourceMap`](super::source::SourceMap).
///
/// Returns the text that can be parsed. If there are errors, the lines with errors are replaced by spaces. Returns
/// `None` if the rest of the file cannot be parsed either.
pub(super) fn check<'i>(text: &'i str, findings: &mut Findings) -> Option<Cow<'i, str>> {
    let (_, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Some(Cow::Borrowed(text));
    }
    secrets::redact_unparsed(text, findings);
    if let Some(format) = other_format(text) {
        findings.error(&format.span, format.title, format.help);
        return None;
    }
    let mut lines = BTreeSet::new();
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        // A second error on the same line is not reported, because it is usually a consequence of the first.
        if lines.insert(line_span(text, span.start).start) {
            report(error.message(), &span, findings);
        }
    }
    let rest = without_lines(text, &lines, findings);
    let (_, errors) = DeTable::parse_recoverable(&rest);
    errors.is_empty().then_some(Cow::Owned(rest))
}

/// Reports a syntax error. `message` and `span` are those of the TOML parser.
fn report(message: &str, span: &Span, findings: &mut Findings) {
    let location = findings.sources.location(span);
    let start = span.start - location.range.start.min(span.start);
    // The text in `location` contains no secrets.
    match LineMistake::find(&location.text, location.range.start) {
        Some(mistake) => {
            let part = start + mistake.part.start..start + mistake.part.end;
            let title = format!("syntax error: {}", mistake.title);
            findings.error(&part, title, mistake.help);
        }
        None => {
            findings.error(span, format!("syntax error: {message}"), remedy(message));
        }
    }
}

fn remedy(message: &str) -> &'static str {
    if message.contains("duplicate") {
        "a key or section can appear only once: merge both, or rename one of them"
    } else {
        "the file format is TOML: write `key = value` lines below `[section]` headers, with text in quotes"
    }
}

/// File in another format than TOML.
struct OtherFormat {
    span: Span,
    title: &'static str,
    help: String,
}

/// Returns which other format a file has; `None` if it is probably TOML with errors.
fn other_format(text: &str) -> Option<OtherFormat> {
    let content = text.trim_start();
    if content.starts_with('{') {
        let start = text.len() - content.len();
        return Some(OtherFormat {
            span: start..start + 1,
            title: "this file is JSON, but a configuration file is TOML",
            help: "write `[server]` instead of `\"server\": {`, and `listen = \"127.0.0.1:8080\"` instead of \
                   `\"listen\": \"127.0.0.1:8080\"`"
                .into(),
        });
    }
    let lines = text.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_yaml = lines.clone().take(2).count() == 2
        && lines
            .all(|line| line == "---" || line.starts_with("- ") || line::yaml_key(line).is_some());
    let first = text.lines().find(|line| line::yaml_key(line).is_some())?;
    let start = first.as_ptr().addr() - text.as_ptr().addr();
    is_yaml.then(|| OtherFormat {
        span: start..start + first.len(),
        title: "this file is YAML, but a configuration file is TOML",
        help: "write `[server]` instead of `server:`, `listen = \"127.0.0.1:8080\"` instead of `listen: \
               127.0.0.1:8080`, and `[[route]]` above each route"
            .into(),
    })
}

/// Returns the range of the line that contains the byte at `at`, without its end.
fn line_span(text: &str, at: usize) -> Span {
    let at = text.floor_char_boundary(at);
    let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    start..end
}

/// Replaces the lines that start at these offsets by spaces, so that the locations of other lines do not change. If a
/// line is the header of a section, the complete section is replaced. Otherwise its keys would belong to the previous
/// section.
fn without_lines(text: &str, starts: &BTreeSet<usize>, findings: &mut Findings) -> String {
    let mut rest = String::with_capacity(text.len());
    let mut section = String::new();
    let mut is_section_removed = false;
    for line in text.split_inclusive('\n') {
        let is_removed = starts.contains(&rest.len());
        if line.trim_start().starts_with('[') {
            is_section_removed = is_removed;
            section = section_path(line, is_removed);
        }
        if is_removed || is_section_removed {
            findings.remove_line(&section);
            let content = line.trim_end_matches(['\r', '\n']);
            rest.extend(std::iter::repeat_n(' ', content.len()));
            rest.push_str(&line[content.len()..]);
        } else {
            rest.push_str(line);
        }
    }
    rest
}

/// Returns the path of the section with this header, such as `limit.device`. If the header is invalid, its name can be
/// wrong, so only the first part is returned.
fn section_path(header: &str, is_invalid: bool) -> String {
    let name = header.trim().trim_start_matches('[');
    let name = name.split([']', '#']).next().unwrap_or(name);
    let name: String = name.chars().filter(|c| !"\"' \t".contains(*c)).collect();
    match name.split_once('.') {
        Some((first, _)) if is_invalid => first.to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> (Vec<String>, Option<String>) {
        let mut findings = Findings::default();
        findings.sources.add("test.toml", text);
        let rest = check(text, &mut findings).map(Cow::into_owned);
        let shown = findings.into_problems().into_iter();
        let shown = shown.map(|p| format!("{}:{} {} / {}", p.line, p.column, p.title, p.help));
        (shown.collect(), rest)
    }

    #[test]
    fn all_syntax_errors_of_a_file_are_reported() {
        let (found, rest) = problems("a = \nb = 1\nc = ]\n");
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(
            found[0].starts_with("1:") && found[1].starts_with("3:"),
            "{found:#?}"
        );
        assert_eq!(rest.as_deref(), Some("    \nb = 1\n     \n"));
    }

    #[test]
    fn the_section_of_an_invalid_header_is_removed() {
        let (_, rest) = problems("[server]\na = 1\n[limit.x\nrate = 2\n[log]\nb = 3\n");
        let rest = rest.expect("the rest is valid");
        let lines: Vec<_> = rest.lines().map(str::trim).collect();
        assert_eq!(lines, ["[server]", "a = 1", "", "", "[log]", "b = 3"]);
        assert_eq!(
            rest.len(),
            "[server]\na = 1\n[limit.x\nrate = 2\n[log]\nb = 3\n".len()
        );
    }

    #[test]
    fn a_file_in_another_format_is_one_error() {
        for (text, format) in [
            (
                "server:\n  listen: 127.0.0.1:80\nroute:\n  - name: a\n    path: /\n",
                "YAML",
            ),
            ("---\n# comment\nlog:\n  format: json\n", "YAML"),
            ("\n{\n  \"server\": {}\n}\n", "JSON"),
        ] {
            let (found, rest) = problems(text);
            assert_eq!(found.len(), 1, "{found:#?}");
            assert!(found[0].contains(format), "{found:#?}");
            assert_eq!(rest, None);
        }
        let (found, _) = problems("listen: 80\n[server]\n");
        assert!(!found[0].contains("YAML"), "{found:#?}");
    }
}
