//! Syntax errors of the configuration file, as the TOML parser reports them, with a help for frequent mistakes.
//!
//! A file with a syntax error is not checked further, because text that the parser did not understand would cause
//! wrong errors about missing and unknown keys. The help depends only on the parser's message. Guessing the correct
//! line takes more code than the checks of all values.
//!
//! The messages of the parser contain no text of the file, and [`Findings::syntax_error`] hides the values in the
//! line.

use toml::Spanned;
use toml::de::DeTable;

use super::problem::Findings;

/// Returns `None` after errors.
pub(super) fn parse<'i>(text: &'i str, findings: &mut Findings) -> Option<Spanned<DeTable<'i>>> {
    let (table, mut errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Some(table);
    }
    if report_other_format(text, findings) {
        return None;
    }
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    let mut reported_until = 0;
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        // Further errors in a line are usually consequences of its first.
        if span.start < reported_until {
            continue;
        }
        let message = error.message();
        findings.syntax_error(&span, format!("syntax error: {message}"), help(message));
        // After a mistake in a bracket, a key or the end of a string, the parser reads other lines as a part of the same
        // value.
        let parts = [
            "array",
            "table",
            "key",
            "invalid basic string",
            "invalid literal string",
        ];
        if parts.iter().any(|part| message.contains(part)) {
            break;
        }
        let mut rest = text.bytes().skip(span.start);
        let line_end = rest.position(|byte| byte == b'\n');
        reported_until = line_end.map_or(usize::MAX, |length| span.start + length + 1);
    }
    None
}

fn help(message: &str) -> &'static str {
    match message.split(", expected").next().unwrap_or(message) {
        "missing escaped value" => {
            "in double quotes, `\\` starts an escape: write a regular expression in single quotes, as in \
             `path = '/users/\\d+'`"
        }
        "invalid basic string" | "invalid literal string" => {
            "end a string with the quote that it starts with, on the same line"
        }
        "key with no value" => "write `key = value`, with `=` after the key",
        "invalid unquoted key" => {
            "write `key = value`, with `=` after the key; a key that contains other characters than letters, digits, \
             `-` and `_` is written in quotes"
        }
        "unclosed array table" => "write two brackets on both sides, as in `[[route]]`",
        "unclosed table" => {
            "write a section in brackets, with dots between the parts of its name, as in `[limit.device]`"
        }
        "duplicate key" => {
            "a key or section can appear only once: merge both, or rename one of them; each route starts with \
             `[[route]]`"
        }
        "unexpected key or value" => {
            "write one key per line; after the value, only a `#` comment can follow"
        }
        other if other.contains("array") => {
            "separate the entries of a list by commas, and close the list with `]`; the mistake can be on an earlier \
             line"
        }
        other if other.contains("inline table") || other.contains("key-value pairs") => {
            "write an inline table as `{ key = value, key = value }`"
        }
        _ => {
            "the file format is TOML: write text in straight quotes, as in `listen = \"127.0.0.1:8080\"`, and \
             numbers, `true` and `false` without quotes"
        }
    }
}

/// Returns `false` if the file is probably TOML.
fn report_other_format(text: &str, findings: &mut Findings) -> bool {
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let Some(first) = lines.clone().find(is_content) else {
        return false;
    };
    let (format, help) = if first.starts_with('{') {
        (
            "JSON",
            "write `[server]` instead of `\"server\": {`, and `listen = \"127.0.0.1:8080\"` instead of \
             `\"listen\": \"127.0.0.1:8080\"`",
        )
    } else if first == "---" || first.ends_with(':') {
        (
            "YAML",
            "write `[server]` instead of `server:`, `listen = \"127.0.0.1:8080\"` instead of \
             `listen: 127.0.0.1:8080`, and `[[route]]` above each route",
        )
    } else {
        return false;
    };
    let start = text.find(first).unwrap_or(0);
    let title = format!("this file is {format}, but a configuration file is TOML");
    findings.syntax_error(&(start..start + first.len()), title, help);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        findings.sources.add("test.toml", text);
        let is_valid = parse(text, &mut findings).is_some();
        let shown = findings.into_problems().into_iter();
        let shown = shown.map(|p| format!("{}:{} {} / {}", p.line, p.column, p.title, p.help));
        let shown: Vec<_> = shown.collect();
        assert_eq!(is_valid, shown.is_empty(), "{shown:#?}");
        shown
    }

    #[test]
    fn a_mistake_in_one_line_causes_no_error_in_other_lines() {
        for text in [
            "[limit.device\nrate = \"1/s\"\n[[route]]\nname = \"a\"\n[[route]]\nname = \"b\"\n[upstream.a]\n",
            "[limit device]\nrate = \"1/s\"\n[[route]]\nname = \"a\"\n[[route]]\nname = \"b\"\n[upstream.a]\n",
            "[[route]\nname = \"a\"\n[route.idempotency]\nmode = \"optional\"\n[[route]]\nname = \"b\"\n",
            "[[route]]\npath: [\n  \"/a\",\n  \"/b\",\n]\nname = \"a\"\n",
            "[limit.d]\nrate = \"1/s\"\n[limit.d]\nrate = \"2/s\"\n",
            "servers = [\n  \"http://a:1\",\n  \"http://b:1\"\nhost = \"server\"\n[log]\naccess = true\n",
            "tls = { cert = \"a\", key = \"b\"\n[log]\naccess = true\n",
            "methods = [GET, POST]\n",
            "headers = { Authorization = \"x\n[log]\naccess = true\n",
            "headers = { Authorization = 'x\n[log]\naccess = true\n",
        ] {
            assert_eq!(problems(text).len(), 1, "{text}: {:#?}", problems(text));
        }
    }

    #[test]
    fn mistakes_in_several_lines_are_reported_together() {
        let found = problems("key = client\nrate = 10/s\n\npath = \"/\\d\"\n");
        let lines: Vec<_> = found.iter().map(|problem| &problem[..2]).collect();
        assert_eq!(lines, ["1:", "2:", "4:"], "{found:#?}");
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
            assert!(!problems(&text).is_empty());
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
            assert_eq!(problems(text).len(), errors, "{text:?}");
        }
    }

    #[test]
    fn a_file_in_another_format_is_one_error() {
        for (text, format) in [
            ("---\n# comment\nlog:\n  format: json\n", "YAML"),
            ("\u{feff}log:\n  format: json\n", "YAML"),
            ("\n{\n  \"server\": {}\n}\n", "JSON"),
            ("\u{feff}{\n  \"server\": {}\n}\n", "JSON"),
        ] {
            let found = problems(text);
            assert_eq!(found.len(), 1, "{found:#?}");
            assert!(found[0].contains(format), "{found:#?}");
        }
        assert!(!problems("listen: 80\n[server]\n")[0].contains("YAML"));
    }
}
