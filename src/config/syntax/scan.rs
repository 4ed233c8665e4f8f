//! Lines of a file that is not valid TOML: their sections, and values that are not closed.

use serde_json::Value;
use toml::de::DeTable;

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
    pub(in super::super) section: String,
    /// Whether the line is probably the header of a section, even if it has a mistake.
    pub(in super::super) is_header: bool,
}

impl SourceLine<'_> {
    pub(in super::super) fn span(&self) -> Span {
        self.start..self.start + self.text.len()
    }
}

/// Header of a section, such as `[limit.device]` or `[[route]]`, which can have mistakes.
pub(super) struct Header {
    /// Parts of the name, separated by dots.
    pub(super) name: String,
    /// Whether the header has no mistake.
    pub(super) is_valid: bool,
}

/// Value in brackets that is not closed.
pub(super) struct UnclosedValue {
    /// Index of the line on which the value starts.
    pub(super) first: usize,
    /// Index of the first line that does not belong to the value.
    pub(super) end: usize,
    /// Brackets that are not closed, from the outermost.
    pub(super) open: Vec<char>,
    /// Position of the outermost bracket in its line.
    pub(super) at: usize,
}

/// Splits a file into lines.
pub(super) fn lines(text: &str) -> Vec<SourceLine<'_>> {
    let mut section = String::new();
    let mut routes: usize = 0;
    let mut start = 0;
    let mut lines = Vec::new();
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\r', '\n']);
        let header = header(content);
        if let Some(header) = &header {
            let first = first_part(&header.name);
            section = match header.name.as_str() {
                "route" => {
                    routes += 1;
                    format!("route[{}]", routes - 1)
                }
                name if header.is_valid => name.into(),
                _ => first.into(),
            };
        }
        lines.push(SourceLine {
            start,
            text: content,
            section: section.clone(),
            is_header: header.is_some(),
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

/// Returns the header in a line; `None` if the line is probably no header. A line that does not start with a bracket is a
/// header only if it contains a bracket and the name of a section.
pub(super) fn header(line: &str) -> Option<Header> {
    let content = without_comment(line).trim_start_matches('\u{feff}').trim();
    let name = content.trim_matches(|c: char| !c.is_alphanumeric());
    let before = &content[..content.find(name).filter(|_| !name.is_empty())?];
    let after = &content[before.len() + name.len()..];
    // A list can continue on a line that starts with a bracket and a value.
    let is_value =
        before.contains(['"', '\'', '{']) || name.starts_with(|c: char| c.is_ascii_digit());
    if content.contains(" = ") || is_value {
        return None;
    }
    if before.starts_with('[') && DeTable::parse_recoverable(content).1.is_empty() {
        return Some(Header {
            name: content.trim_matches(['[', ']']).trim().into(),
            is_valid: true,
        });
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

/// Returns the values in brackets that are not closed before the next header or key.
pub(super) fn unclosed_values(lines: &[SourceLine<'_>]) -> Vec<UnclosedValue> {
    let mut unclosed = Vec::new();
    let mut first = 0;
    while first < lines.len() {
        let mut scanner = Scanner::default();
        let mut end = first + 1;
        if !lines[first].is_header {
            scanner.scan(lines[first].text);
        }
        let at = scanner.opened_at;
        while scanner.is_inside() && end < lines.len() && !ends_value(&scanner, &lines[end]) {
            scanner.scan(lines[end].text);
            end += 1;
        }
        if !scanner.open.is_empty() && scanner.multiline.is_none() {
            unclosed.push(UnclosedValue {
                first,
                end,
                open: scanner.open,
                at,
            });
        }
        first = end;
    }
    unclosed
}

/// Whether a line cannot be part of the value that is being scanned: it is a header, or a key directly in a list.
fn ends_value(scanner: &Scanner, line: &SourceLine<'_>) -> bool {
    if scanner.multiline.is_some() {
        return false;
    }
    let is_section = || {
        let header = header(line.text);
        header.is_some_and(|header| header.is_valid && section_schema(&header.name).is_some())
    };
    let is_key = || {
        let key = line.text.split('=').next().unwrap_or_default().trim();
        line.text.contains('=') && super::line::is_bare_key(key)
    };
    is_section() || (scanner.open.last() == Some(&'[') && is_key())
}

/// State of a scan for brackets and multi-line strings.
#[derive(Default)]
struct Scanner {
    /// Brackets that are open.
    open: Vec<char>,
    /// Position of the outermost open bracket in its line.
    opened_at: usize,
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
                    self.open.pop();
                }
                _ => {}
            }
            at += c.len_utf8();
        }
        line.len()
    }
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
            ("[limit.\"a b\"]", "limit.\"a b\"", true),
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
            let unclosed = unclosed_values(&lines).into_iter();
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
