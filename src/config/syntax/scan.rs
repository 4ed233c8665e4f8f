//! Lines of a file that is not valid TOML: their sections, and their values in brackets.

use std::rc::Rc;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::super::schema::SCHEMA;
use super::super::source::Span;

/// Line of a configuration file.
#[derive(Clone, Debug)]
pub(in super::super) struct SourceLine<'t> {
    /// Offset of the line in the file, in bytes.
    pub(in super::super) start: usize,
    /// Text without the end of the line.
    pub(in super::super) text: &'t str,
    /// Path of the section that contains the line, such as `limit.device` or `route[0]`. It is empty before the first
    /// header. For a header with a mistake, it is the first part of the path, because the other parts can be wrong.
    pub(in super::super) section: Rc<str>,
    /// Header, if the line is probably the header of a section.
    pub(in super::super) header: Option<Rc<Header>>,
    /// Index of the line with the header of the section; `None` before the first header.
    pub(super) header_index: Option<usize>,
}

impl SourceLine<'_> {
    pub(in super::super) fn span(&self) -> Span {
        self.start..self.start + self.text.len()
    }

    /// Returns the key that the line sets with `=`.
    pub(in super::super) fn key(&self) -> Option<&str> {
        let (key, _) = self.text.split_once('=')?;
        let key = key.trim();
        super::line::is_bare_key(key).then_some(key)
    }
}

/// Header of a section, such as `[limit.device]` or `[[route]]`, which can have mistakes.
#[derive(Debug)]
pub(in super::super) struct Header {
    /// Parts of the name, separated by dots.
    pub(super) name: String,
    /// Whether the header has no mistake.
    pub(in super::super) is_valid: bool,
}

/// Value in brackets that starts on a line.
pub(super) struct BracketedValue {
    /// Index of the line on which the value starts.
    pub(super) first: usize,
    /// Index of the first line that does not belong to the value.
    pub(super) end: usize,
    /// Brackets that are not closed, from the outermost.
    pub(super) open: Vec<char>,
    /// Position of the outermost bracket in its line.
    pub(super) at: usize,
    /// Position in the last line of a bracket of the wrong type that closes the value.
    pub(super) wrong_end: Option<usize>,
}

/// Splits a file into lines. A byte order mark is not part of the first line.
pub(super) fn lines(text: &str) -> Vec<SourceLine<'_>> {
    let content = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut start = text.len() - content.len();
    let mut section: Rc<str> = "".into();
    let mut header_index = None;
    let mut routes: usize = 0;
    let mut lines = Vec::new();
    for line in content.split_inclusive('\n') {
        let text = line.trim_end_matches(['\r', '\n']);
        let header = header(text).map(Rc::new);
        if let Some(header) = &header {
            header_index = Some(lines.len());
            let name = header.name.as_str();
            routes += usize::from(name == "route");
            let route = format!("route[{}]", routes.saturating_sub(1));
            section = match name.strip_prefix("route.") {
                Some(table) if header.is_valid => format!("{route}.{table}").into(),
                _ if first_part(name) == "route" => route.into(),
                _ if header.is_valid => name.into(),
                _ => first_part(name).into(),
            };
        }
        lines.push(SourceLine {
            start,
            text,
            section: Rc::clone(&section),
            header,
            header_index,
        });
        start += line.len();
    }
    lines
}

/// Returns the part of a name before the first dot.
pub(super) fn first_part(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns the schema of a section of the configuration.
pub(super) fn section_schema(name: &str) -> Option<&'static Value> {
    SCHEMA["properties"].get(first_part(name))
}

/// Returns the header in a line; `None` if the line is probably not a header. A line that does not start with a bracket
/// is a header only if it contains a bracket and the name of a section.
fn header(line: &str) -> Option<Header> {
    let content = without_comment(line).trim();
    let name = content.trim_matches(|c: char| !c.is_alphanumeric());
    let before = &content[..content.find(name).filter(|_| !name.is_empty())?];
    let after = &content[before.len() + name.len()..];
    // A list can continue on a line that starts with a bracket and a value.
    let is_value =
        before.contains(['"', '\'', '{']) || name.starts_with(|c: char| c.is_ascii_digit());
    if content.contains(" = ") || is_value {
        return None;
    }
    if before.starts_with('[')
        && let Some(name) = path_of_header(content)
    {
        let is_valid = true;
        return Some(Header { name, is_valid });
    }
    let is_bare = |c: &char| c.is_alphanumeric() || "_-".contains(*c);
    let parts = name.split(|c: char| c == '.' || c.is_whitespace());
    let parts = parts.map(|part| part.chars().filter(is_bare).collect::<String>());
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    let name = parts.join(".");
    let has_bracket = before.contains(['[', '(']) || after.contains([']', ')']);
    let is_header = before.starts_with('[') || (has_bracket && section_schema(&name).is_some());
    is_header.then_some(Header {
        name,
        is_valid: false,
    })
}

/// Returns a line without its comment. A `#` in quotes does not start a comment.
pub(super) fn without_comment(line: &str) -> &str {
    let mut scanner = Scanner::default();
    let end = scanner.scan(line);
    &line[..end]
}

/// Returns the path of the section with a valid header; `None` if the header is not valid TOML.
fn path_of_header(header: &str) -> Option<String> {
    let (table, errors) = DeTable::parse_recoverable(header);
    if !errors.is_empty() {
        return None;
    }
    let mut path = Vec::new();
    let mut table = table.get_ref();
    while let Some((key, value)) = table.iter().next() {
        path.push(key.get_ref().to_string());
        let inner = match value.get_ref() {
            DeValue::Array(items) => items.first()?.get_ref(),
            inner => inner,
        };
        let DeValue::Table(inner) = inner else {
            return None;
        };
        table = inner;
    }
    Some(path.join("."))
}

/// Returns the values in brackets, except those that are closed correctly on their line. A value ends before the next
/// header or key, even if it is not closed.
pub(super) fn bracketed_values(lines: &[SourceLine<'_>]) -> Vec<BracketedValue> {
    let mut values = Vec::new();
    let mut first = 0;
    while first < lines.len() {
        let mut scanner = Scanner::default();
        let mut end = first + 1;
        if lines[first].header.is_none() {
            scanner.scan(lines[first].text);
        }
        let at = scanner.opened_at;
        while scanner.is_inside() && end < lines.len() && !ends_value(&scanner, &lines[end]) {
            scanner.scan(lines[end].text);
            end += 1;
        }
        let is_string = scanner.multiline.is_some();
        let is_closed = scanner.open.is_empty() && scanner.wrong_end.is_none();
        if !is_string && (!is_closed || end > first + 1) {
            values.push(BracketedValue {
                first,
                end,
                open: scanner.open,
                at,
                wrong_end: scanner.wrong_end,
            });
        }
        first = end;
    }
    values
}

/// Whether a line cannot be part of the value that is being scanned: it is a header, or a key directly in a list.
fn ends_value(scanner: &Scanner, line: &SourceLine<'_>) -> bool {
    let is_section = || {
        let header = line.header.as_deref();
        header.is_some_and(|header| header.is_valid && section_schema(&header.name).is_some())
    };
    let is_list = scanner.open.last() == Some(&'[');
    scanner.multiline.is_none() && (is_section() || (is_list && line.key().is_some()))
}

/// State of a scan for brackets and multi-line strings.
#[derive(Default)]
struct Scanner {
    /// Brackets that are open.
    open: Vec<char>,
    /// Position of the outermost open bracket in its line.
    opened_at: usize,
    /// Position of a bracket of the wrong type that closes a value.
    wrong_end: Option<usize>,
    /// Quotes of the multi-line string that is open.
    multiline: Option<&'static str>,
}

impl Scanner {
    fn is_inside(&self) -> bool {
        !self.open.is_empty() || self.multiline.is_some()
    }

    /// Scans a line. Returns the position of its comment, or its length.
    fn scan(&mut self, line: &str) -> usize {
        let mut at = 0;
        while let Some(c) = line[at..].chars().next() {
            let rest = &line[at..];
            if let Some(quotes) = self.multiline {
                match rest.find(quotes) {
                    Some(end) => at += end + quotes.len(),
                    None => return line.len(),
                }
                self.multiline = None;
                continue;
            }
            let quotes = ["\"\"\"", "'''"].into_iter().find(|q| rest.starts_with(q));
            if let Some(quotes) = quotes {
                self.multiline = Some(quotes);
                at += quotes.len();
                continue;
            }
            match c {
                '#' => return at,
                '"' | '\'' => {
                    at += string_end(rest).unwrap_or(rest.len());
                    continue;
                }
                '[' | '{' => {
                    if self.open.is_empty() {
                        self.opened_at = at;
                    }
                    self.open.push(c);
                }
                ']' | '}' => {
                    let opened = self.open.pop();
                    if opened.is_some_and(|opened| closing(opened) != c) {
                        self.wrong_end = Some(at);
                    }
                }
                _ => {}
            }
            at += c.len_utf8();
        }
        line.len()
    }
}

/// Returns the bracket that closes an open bracket.
pub(super) fn closing(open: char) -> char {
    if open == '{' { '}' } else { ']' }
}

/// Returns the length of the string that a text starts with, including its quotes. Returns `None` if the string is not
/// closed.
pub(super) fn string_end(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next()?;
    while let Some((at, c)) = chars.next() {
        if c == '\\' && quote == '"' {
            chars.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_with_mistakes_are_recognised() {
        for (line, name, is_valid) in [
            ("[server]", "server", true),
            ("  [limit.device] # comment", "limit.device", true),
            ("[[route]]", "route", true),
            ("[other]", "other", true),
            ("[[route]", "route", false),
            ("[limit device]", "limit.device", false),
            ("[ log ]", "log", true),
            ("log]", "log", false),
            (";[log]", "log", false),
            ("(log)", "log", false),
            ("/[log]", "log", false),
            ("[log]\\", "log", false),
            ("[l,og]", "log", false),
            ("[limit.d:evice]", "limit.device", false),
            ("[limit.\"a b\"]", "limit.a b", true),
        ] {
            let header = header(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                (header.name.as_str(), header.is_valid),
                (name, is_valid),
                "{line}"
            );
        }
        for line in [
            "",
            "]",
            "[\"a\" 1],",
            "['a'],",
            "[{ url = \"x\" }],",
            "[1, 2]",
            "listen = [1]",
            "log",
            "other]",
            "[#]",
        ] {
            assert!(header(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_hash_in_quotes_does_not_start_a_comment() {
        assert_eq!(without_comment("a = 1 # b"), "a = 1 ");
        assert_eq!(without_comment("a = \"#\" # b"), "a = \"#\" ");
        assert_eq!(without_comment("a = \"\\\"#\" # b"), "a = \"\\\"#\" ");
        assert_eq!(without_comment("a = '#'"), "a = '#'");
    }

    #[test]
    fn only_values_without_an_end_are_unclosed() {
        let unclosed = |text: &str| {
            let lines = lines(text);
            let values = bracketed_values(&lines).into_iter();
            let unclosed = values.filter(|value| !value.open.is_empty());
            unclosed
                .map(|value| (value.first, value.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(unclosed("a = [\n  \"x\", # ]\n  \"y\"\n]\nb = 1\n"), []);
        assert_eq!(unclosed("a = [\n{ b = 1 },\n]\n"), []);
        assert_eq!(unclosed("a = \"\"\"\n[log]\n[\n\"\"\"\nb = 1"), []);
        assert_eq!(unclosed("a = [1\nb = 2\nc = [\n[log]\n"), [(0, 1), (2, 3)]);
        assert_eq!(unclosed("a = {\nb = 1\n[log]\n"), [(0, 2)]);
        assert_eq!(unclosed("a = [1,\n"), [(0, 1)]);
    }
}
