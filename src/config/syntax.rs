//! Syntax of the configuration file: reports all syntax errors, each with a remedy for the line that contains it.
//!
//! The TOML parser reports what it expected, which often does not name the mistake. For `path = "/v1/\d+"` it expects an
//! escape, and the remedy is single quotes. So the remedy is derived from the text of the line. A corrected line is
//! shown only if it is valid in its section.
//!
//! The lines with errors are removed and the rest of the file is checked too, so that one run reports all errors.

mod line;
mod scan;
mod value;

use std::borrow::Cow;
use std::collections::BTreeSet;

use toml::de::DeTable;

use super::problem::{Findings, Severity};
use super::secrets;
use super::source::Span;

use line::LineMistake;
pub(super) use scan::SourceLine;

/// Maximum number of times that lines with errors are removed. Only the errors of the first time are reported, because
/// the later ones are usually consequences.
const MAX_REMOVALS: usize = 4;

/// Reports the syntax errors of the configuration file, whose text must be the first in the
/// [`SourceMap`](super::source::SourceMap).
///
/// Returns the text that can be parsed. If there are errors, the lines with errors are replaced by spaces. Returns
/// `None` if the rest of the file cannot be parsed either.
pub(super) fn check<'i>(text: &'i str, findings: &mut Findings) -> Option<Cow<'i, str>> {
    if DeTable::parse_recoverable(text).1.is_empty() {
        return Some(Cow::Borrowed(text));
    }
    let lines = scan::lines(text);
    secrets::redact_lines(&lines, findings);
    if let Some(format) = other_format(text) {
        findings.error(&format.span, format.title, format.help);
        return None;
    }
    let values = scan::bracketed_values(&lines);
    let mut removed = BTreeSet::new();
    for value in &values {
        if let Some(mistake) = LineMistake::brackets(&lines, value) {
            report(&mistake, &lines[value.first], findings);
            removed.extend(value.first..value.end);
        }
    }
    for removal in 0..=MAX_REMOVALS {
        let rest = without(&lines, &removed, text, findings);
        let (_, errors) = DeTable::parse_recoverable(&rest);
        if errors.is_empty() {
            return Some(Cow::Owned(rest));
        }
        // Another error can cause the parser to report a key as a duplicate although it is not.
        let is_duplicate = |error: &&toml::de::Error| error.message().contains("duplicate");
        let has_others = !errors.iter().all(|error| is_duplicate(&error));
        for error in errors
            .iter()
            .filter(|error| !has_others || !is_duplicate(error))
        {
            let span = error.span().unwrap_or(0..0);
            let index = lines.partition_point(|line| line.start <= span.start);
            let index = index.saturating_sub(1);
            let is_section_removed = lines[index]
                .header_index
                .is_some_and(|header| removed.contains(&header));
            // A second error on the same line is not reported, because it is usually a consequence of the first.
            if is_section_removed || !removed.insert(index) {
                continue;
            }
            let mut values = values.iter();
            let value = values.find(|value| (value.first..value.end).contains(&index));
            removed.extend(value.into_iter().flat_map(|value| index..value.end));
            if removal == 0 || is_duplicate(&error) {
                report_error(error.message(), &span, &lines[index], findings);
            }
        }
    }
    None
}

/// Reports a syntax error in a line. `message` and `span` are those of the TOML parser.
fn report_error(message: &str, span: &Span, line: &SourceLine<'_>, findings: &mut Findings) {
    let is_repeated = message.contains("duplicate");
    // The search takes long in a file with an error on each of many lines.
    let is_searched = !is_repeated && !findings.is_full(Severity::Error);
    if let Some(mistake) = is_searched.then(|| LineMistake::find(line)).flatten() {
        return report(&mistake, line, findings);
    }
    let help = if is_repeated {
        "a key or section can appear only once: merge both, or rename one of them"
    } else {
        "the file format is TOML: write `key = value` lines below `[section]` headers, with text in quotes"
    };
    findings.error(span, format!("syntax error: {message}"), help);
}

fn report(mistake: &LineMistake, line: &SourceLine<'_>, findings: &mut Findings) {
    let part = line.start + mistake.part.start..line.start + mistake.part.end;
    let is_secret = findings.sources.text(&line.span()) != line.text;
    let title = format!("syntax error: {}", mistake.title(is_secret));
    findings.error(&part, title, mistake.help(is_secret));
}

/// File in another format than TOML.
struct OtherFormat {
    span: Span,
    title: &'static str,
    help: String,
}

/// Returns which other format a file has; `None` if it is probably TOML with errors.
fn other_format(text: &str) -> Option<OtherFormat> {
    let content = text.trim_start_matches('\u{feff}').trim_start();
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
    let lines = content.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_yaml = lines.clone().take(2).count() == 2
        && lines
            .all(|line| line == "---" || line.starts_with("- ") || line::yaml_key(line).is_some());
    let first = content
        .lines()
        .find(|line| line::yaml_key(line).is_some())?;
    let start = first.as_ptr().addr() - text.as_ptr().addr();
    let key = first.find(':').map_or(first.len(), |at| at + 1);
    is_yaml.then(|| OtherFormat {
        // Only the key is marked, because the value is possibly a secret.
        span: start..start + key,
        title: "this file is YAML, but a configuration file is TOML",
        help: "write `[server]` instead of `server:`, `listen = \"127.0.0.1:8080\"` instead of `listen: \
               127.0.0.1:8080`, and `[[route]]` above each route"
            .into(),
    })
}

/// Replaces the lines with these indices by spaces, so that the locations of other lines do not change, and records in
/// `findings` what they contain. With the header of a section, the complete section and the sections in it are replaced.
/// Otherwise their keys would belong to another section.
fn without(
    lines: &[SourceLine<'_>],
    removed: &BTreeSet<usize>,
    text: &str,
    findings: &mut Findings,
) -> String {
    let mut rest = String::with_capacity(text.len());
    let mut removed_section: Option<&str> = None;
    for (index, line) in lines.iter().enumerate() {
        rest.push_str(&text[rest.len()..line.start]);
        let is_removed = removed.contains(&index);
        if let Some(header) = &line.header {
            let is_in_removed = removed_section.is_some_and(|section| {
                let inner = header.name.strip_prefix(section);
                inner.is_some_and(|inner| inner.starts_with('.'))
            });
            if is_removed {
                removed_section = Some(&header.name);
            } else if !is_in_removed {
                removed_section = None;
            }
        }
        if is_removed || removed_section.is_some() {
            let key = line.text.trim_start();
            let key = &key[..key.find(['.', '=', ':', ' ', '[']).unwrap_or(key.len())];
            let path = if line.section.is_empty() {
                key
            } else {
                &line.section
            };
            findings.remove_line(path);
            rest.extend(std::iter::repeat_n(' ', line.text.len()));
        } else {
            rest.push_str(line.text);
        }
    }
    rest.push_str(&text[rest.len()..]);
    rest
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
        for header in [
            "[limit.x",
            "limit.x]",
            "[limit x]",
            ",[limit.x]",
            "(limit.x)",
        ] {
            let text = format!("[server]\na = 1\n{header}\nrate = 2\n[log]\r\nb = 3\n");
            let (found, rest) = problems(&text);
            assert_eq!(found.len(), 1, "{found:#?}");
            let rest = rest.expect("the rest is valid");
            let lines: Vec<_> = rest.lines().map(str::trim).collect();
            assert_eq!(lines, ["[server]", "a = 1", "", "", "[log]", "b = 3"]);
            assert_eq!(rest.len(), text.len());
        }
    }

    #[test]
    fn a_list_that_is_not_closed_is_one_error_at_its_start() {
        let text = "[upstream.api]\nservers = [\"http://a:1\"\n\n[limit.d]\nrate = \"1/s\"\n";
        let (found, rest) = problems(text);
        assert_eq!(
            found,
            [
                "2:11 syntax error: the list is not closed / a list ends with `]`: write `servers = [\"http://a:1\"]`"
            ]
        );
        assert!(rest.expect("the rest is valid").contains("[limit.d]"));

        let text =
            "[upstream.api]\nservers = [\n  \"http://a:1\",\n  \"http://b:1\"\nhost = \"server\"\n";
        let (found, rest) = problems(text);
        assert_eq!(
            found,
            ["2:11 syntax error: the list is not closed / a list ends with `]`"]
        );
        assert!(rest.expect("the rest is valid").contains("host = "));

        let (found, _) =
            problems("[server]\ntls = { cert = \"a\", key = \"b\"\n[log]\naccess = true\n");
        assert_eq!(
            found,
            [
                "2:7 syntax error: the inline table is not closed / an inline table ends with `}`: write `tls = { cert \
                 = \"a\", key = \"b\"}`"
            ]
        );
    }

    #[test]
    fn a_value_with_the_wrong_bracket_is_one_error() {
        for (line, corrected) in [
            ("servers = {\"http://a:1\"]", "servers = [\"http://a:1\"]"),
            ("servers = [\"http://a:1\"}", "servers = [\"http://a:1\"]"),
        ] {
            let text =
                format!("[upstream.api]\n{line}\nhost = \"server\"\n[limit.d]\nrate = \"1/s\"\n");
            let (found, rest) = problems(&text);
            assert_eq!(found.len(), 1, "{found:#?}");
            assert!(
                found[0].contains("is closed with the wrong bracket"),
                "{found:#?}"
            );
            assert!(
                found[0].ends_with(&format!("write `{corrected}`")),
                "{found:#?}"
            );
            assert!(rest.expect("the rest is valid").contains("[limit.d]"));
        }
    }

    #[test]
    fn a_mistake_in_one_line_causes_no_error_in_other_lines() {
        for text in [
            "[limit.device\nrate = \"1/s\"\n[[route]]\nname = \"a\"\n[[route]]\nname = \"b\"\n[upstream.a]\n",
            "[limit device]\nrate = \"1/s\"\n[[route]]\nname = \"a\"\n[[route]]\nname = \"b\"\n[upstream.a]\n",
            "[[route]\nname = \"a\"\n[route.idempotency]\nmode = \"optional\"\n[[route]]\nname = \"b\"\n",
            "[[route]]\npath: [\n  \"/a\",\n  \"/b\",\n]\nname = \"a\"\n",
            "[limit.d]\nrate = \"1/s\"\n[limit.d]\nrate = \"2/s\"\n",
        ] {
            let (found, rest) = problems(text);
            assert_eq!(found.len(), 1, "{text}: {found:#?}");
            assert!(rest.is_some(), "{text}");
        }
    }

    #[test]
    fn large_and_deeply_nested_files_are_checked_quickly() {
        let deep = format!("a = {}1{}\n", "{a=".repeat(10_000), "}".repeat(10_000));
        let long_name = format!("[{}]\n{}", "a".repeat(50_000), "x\n".repeat(50_000));
        for text in [
            deep,
            long_name,
            "access = yes\n".repeat(40_000),
            format!("a = {}\n", "[".repeat(100_000)),
            format!("a = \"{}\n", "é".repeat(100_000)),
        ] {
            let started = std::time::Instant::now();
            let (found, _) = problems(&text);
            assert!(!found.is_empty());
            assert!(started.elapsed().as_secs() < 20, "{}", &text[..20]);
        }
    }

    #[test]
    fn a_file_without_text_is_an_error_or_empty() {
        for (text, errors) in [
            ("", 0),
            ("\u{feff}", 0),
            ("\u{feff}\u{feff}", 1),
            ("\r", 1),
            ("\u{0}", 1),
        ] {
            assert_eq!(problems(text).0.len(), errors, "{text:?}");
        }
    }

    #[test]
    fn the_column_is_the_same_with_other_line_ends() {
        let text = "[server]\nidle_timeout = \"75s\nworkers = 1\n";
        let unix = problems(text).0;
        let windows = problems(&text.replace('\n', "\r\n")).0;
        assert_eq!(unix, windows);
        assert!(unix[0].starts_with("2:16 "), "{unix:?}");
    }

    #[test]
    fn a_file_in_another_format_is_one_error() {
        for (text, format) in [
            (
                "server:\n  listen: 127.0.0.1:80\nroute:\n  - name: a\n    path: /\n",
                "YAML",
            ),
            ("---\n# comment\nlog:\n  format: json\n", "YAML"),
            ("\u{feff}log:\n  format: json\n", "YAML"),
            ("\n{\n  \"server\": {}\n}\n", "JSON"),
            ("\u{feff}{\n  \"server\": {}\n}\n", "JSON"),
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
