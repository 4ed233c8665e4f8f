//! Common mistakes in one line of a configuration file, and the corrected line.

use std::ops::Range;

use serde_json::Value;

use super::super::schema::{self, SCHEMA};
use super::super::suggest;
use super::super::validate::{LineCheck, check_line, example, named_section};
use super::scan::{
    BracketedValue, Header, SourceLine, closing, first_part, section_schema, without_comment,
};
use super::value;

/// Maximum length of a value in the title of a problem, and of a corrected line in its help, in characters.
const MAX_SHOWN: usize = 200;

/// Mistake in a line that is not valid TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineMistake {
    /// What is wrong, in a few words. `{}` stands for `written`.
    title: String,
    /// The rule of TOML that the line violates.
    rule: String,
    /// The text that is wrong.
    written: String,
    /// The corrected line, which is valid in its section.
    corrected: Option<String>,
    /// An example of the line, if there is no corrected line.
    example: Option<String>,
    /// Part of the line that is wrong, as a range of bytes.
    pub(super) part: Range<usize>,
}

impl LineMistake {
    /// Returns the mistake in a line; `None` if it has no common mistake.
    pub(super) fn find(line: &SourceLine<'_>) -> Option<Self> {
        match &line.header {
            Some(header) if header.is_valid => None,
            Some(header) => Some(invalid_header(header, line.text)),
            None => comment(line.text).or_else(|| assignment(line)),
        }
    }

    /// Returns the mistake of a value that is not closed, or that is closed with the wrong bracket; `None` if there is no
    /// such mistake.
    pub(super) fn brackets(lines: &[SourceLine<'_>], value: &BracketedValue) -> Option<Self> {
        let line = &lines[value.first];
        let opened = line.text[value.at..].chars().next()?;
        let (what, rule) = match opened {
            '{' => ("inline table", "an inline table ends with `}`"),
            _ => ("list", "a list ends with `]`"),
        };
        let content = without_comment(line.text);
        let mut corrections = Vec::new();
        let problem = match (value.wrong_end, value.open.is_empty()) {
            (None, true) => return None,
            (None, false) => {
                let brackets: String = value.open.iter().rev().map(|c| closing(*c)).collect();
                corrections.push(format!(
                    "{}{brackets}",
                    content.trim().trim_end_matches(',')
                ));
                "is not closed"
            }
            (Some(end), _) => {
                let replaced = |at: usize, bracket: char| {
                    let rest = content.get(at + 1..).unwrap_or_default();
                    let start = content.get(..at).unwrap_or_default();
                    format!("{start}{bracket}{rest}").trim().to_owned()
                };
                corrections.push(replaced(end, closing(opened)));
                corrections.push(replaced(value.at, if opened == '{' { '[' } else { '{' }));
                "is closed with the wrong bracket"
            }
        };
        // The end of a value of several lines is unknown.
        let mut rest = lines[value.first + 1..value.end].iter();
        let is_one_line = rest.all(|line| without_comment(line.text).trim().is_empty());
        let mut valid = corrections
            .into_iter()
            .filter(|line_text| check_line(&line.section, line_text) == LineCheck::Valid);
        Some(Self {
            title: format!("the {what} {problem}"),
            rule: rule.into(),
            written: String::new(),
            corrected: valid.next().filter(|_| is_one_line),
            example: None,
            part: value.at..line.text.trim_end().len(),
        })
    }

    /// Returns what is wrong. If the line contains a secret, its value is not shown.
    pub(super) fn title(&self, is_secret: bool) -> String {
        let written = if is_secret { "***" } else { &self.written };
        match written.char_indices().nth(MAX_SHOWN) {
            Some((end, _)) => self.title.replace("{}", &format!("{}…", &written[..end])),
            None => self.title.replace("{}", written),
        }
    }

    /// Returns the rule, and the corrected line unless it contains a secret.
    pub(super) fn help(&self, is_secret: bool) -> String {
        let is_shown = |line: &&String| !is_secret && line.chars().count() <= MAX_SHOWN;
        let corrected = self.corrected.as_ref().filter(is_shown);
        let rule = &self.rule;
        match (corrected, &self.example) {
            (Some(line), _) => format!("{rule}: write `{line}`"),
            (None, Some(example)) => format!("{rule}: write for example {example}"),
            (None, None) => rule.clone(),
        }
    }
}

/// Returns the key of a line in YAML, such as `listen: 80`.
pub(super) fn yaml_key(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("- ").unwrap_or(line);
    let (key, value) = line.split_once(':')?;
    let is_value = value.is_empty() || value.starts_with(' ');
    (is_value && is_bare_key(key)).then_some(key)
}

/// Whether a text is a key without quotes, or several such keys with dots between them.
pub(super) fn is_bare_key(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Finds `// text` and `; text`, which are comments in other formats.
fn comment(line: &str) -> Option<LineMistake> {
    let text = line.trim();
    let marker = ["//", ";"]
        .into_iter()
        .find(|marker| text.starts_with(marker))?;
    let start = line.len() - line.trim_start().len();
    Some(LineMistake {
        title: format!("`{marker}` does not start a comment"),
        rule: "a comment starts with `#`".into(),
        written: String::new(),
        corrected: Some(format!("# {}", text[marker.len()..].trim_start())),
        example: None,
        part: start..start + marker.len(),
    })
}

/// Explains a header with a mistake: `[server` and `[[route]`, in which brackets are missing, or `[limit device]`.
fn invalid_header(header: &Header, line: &str) -> LineMistake {
    let known = section_schema(&header.name);
    let similar = || {
        let sections = schema::known_keys(&SCHEMA);
        let similar = suggest::closest(first_part(&header.name), sections)?;
        Some(header.name.replacen(first_part(&header.name), similar, 1))
    };
    let name = match known {
        Some(_) => Some(header.name.clone()),
        None => similar(),
    };
    let corrected = name.and_then(|name| {
        let schema = schema::schema_at(&name)?;
        let is_table = schema.get("properties").is_some();
        match name.as_str() {
            "route" => Some("[[route]]".into()),
            _ => is_table.then(|| format!("[{name}]")),
        }
    });
    let corrected = corrected.filter(|header| check_line("", header) != LineCheck::SyntaxError);
    let is_named = known.is_some_and(|schema| schema::named_values(schema).is_some());
    let example =
        (corrected.is_none() && is_named).then(|| named_section(first_part(&header.name)));
    let content = without_comment(line).trim();
    let start = line.find(content).unwrap_or(0);
    let is_name_valid = content.trim_matches(['[', ']']) == header.name;
    LineMistake {
        title: if is_name_valid {
            "the brackets of the header `{}` do not match".into()
        } else {
            "`{}` is not the header of a section".into()
        },
        rule: "a header is a name in brackets".into(),
        written: content.into(),
        corrected,
        example,
        part: start..start + content.len(),
    }
}

/// Finds `key: value`, `key value`, and `key = value` with a value that is not valid.
fn assignment(line: &SourceLine<'_>) -> Option<LineMistake> {
    let indent = line.text.len() - line.text.trim_start().len();
    let text = line.text.trim();
    let key = &text[..text.find(['=', ':', ' ', '\t']).unwrap_or(text.len())];
    if !is_bare_key(key.trim_matches(['"', '\''])) {
        return None;
    }
    let after = &text[key.len()..];
    let written = after.trim_start_matches(['=', ':', ' ', '\t', '>']);
    let separator = after[..after.len() - written.len()].trim();
    let content = without_comment(written).trim_end();
    let is_spaced_key = separator.is_empty() && content.contains('=');
    if is_spaced_key || (separator == "=" && value::is_valid(content)) {
        return None;
    }
    let mut mistake = value::find(content);
    let start = indent + text.len() - written.len();
    let mut part = start + mistake.part.start..start + mistake.part.end;
    if separator != "=" {
        mistake.corrections.insert(0, content.to_owned());
        mistake.rule = "a key and its value are separated by `=`";
        mistake.title = match separator {
            "" => "`=` is missing between a key and its value".into(),
            _ => format!("`{separator}` does not separate a key and its value"),
        };
        let at = indent + key.len() + after.find(separator).unwrap_or(0);
        part = at..(at + separator.len().max(1)).min(line.text.len());
    } else if content.is_empty() {
        part = indent..indent + text.len();
    }
    let comment = match written[content.len()..].trim() {
        "" => String::new(),
        comment => format!(" {comment}"),
    };
    let (corrected, example) = correct(&line.section, key, &mistake.corrections, &comment);
    let is_clear = corrected.is_some() || example.is_some() || !mistake.corrections.is_empty();
    is_clear.then(|| LineMistake {
        title: mistake.title,
        rule: mistake.rule.into(),
        written: content.into(),
        corrected,
        example,
        part,
    })
}

/// Returns the first corrected line that is valid in its section, or else an example of the key. If the section has no
/// such key, the most similar key is used.
fn correct(
    section: &str,
    key: &str,
    corrections: &[String],
    comment: &str,
) -> (Option<String>, Option<String>) {
    let schema = schema::schema_at(section);
    let similar = schema
        .filter(|schema| schema::property(schema, key).is_none())
        .and_then(|schema| suggest::closest(key, schema::known_keys(schema)));
    let key = similar.unwrap_or(key);
    for value in corrections {
        let fixed = match check_line(section, &format!("{key} = {value}")) {
            LineCheck::Valid => value.clone(),
            // The help of the problem is possibly a valid value, such as `write "10MiB"`.
            LineCheck::Invalid { help } => match help.strip_prefix("write ") {
                Some(value) if value.starts_with('"') => value.to_owned(),
                _ => continue,
            },
            LineCheck::SyntaxError => continue,
        };
        let line = format!("{key} = {fixed}");
        if check_line(section, &line) == LineCheck::Valid {
            return (Some(line + comment), None);
        }
    }
    let property: Option<&Value> = schema.and_then(|schema| schema::property(schema, key));
    (None, property.map(|property| example(key, property)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(section: &str, text: &str) -> Option<LineMistake> {
        let lines = super::super::scan::lines(text);
        let mut line = lines.into_iter().next()?;
        line.section = section.into();
        LineMistake::find(&line)
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "the test is a table of cases")]
    fn the_help_contains_the_corrected_line() {
        for (section, line, corrected) in [
            ("log", "access = yes", "access = true"),
            ("log", "access = yes # all", "access = true # all"),
            ("log", "access = True", "access = true"),
            ("log", "acces = off", "access = false"),
            ("server", "idle_timeout = 75s", "idle_timeout = \"75s\""),
            (
                "server",
                "idle_timeout = 75s\t# c",
                "idle_timeout = \"75s\" # c",
            ),
            ("server", "idle_timeout = 75 s", "idle_timeout = \"75s\""),
            ("server", "idle_timeout = \"75s'", "idle_timeout = \"75s\""),
            (
                "server",
                "idle_timeout = \"75s # c",
                "idle_timeout = \"75s\"",
            ),
            (
                "server",
                "idle_timeout == \"75s\"",
                "idle_timeout = \"75s\"",
            ),
            ("server", "idle_timeout := 75s", "idle_timeout = \"75s\""),
            ("server", "idle_timeout \"75s\"", "idle_timeout = \"75s\""),
            ("server", "idle_timeout = ‘75s’", "idle_timeout = \"75s\""),
            ("server", "idle_timeout = `75s`", "idle_timeout = \"75s\""),
            ("server", "max_body = 10MB", "max_body = \"10MiB\""),
            (
                "server",
                "  listen = 127.0.0.1:8080",
                "listen = \"127.0.0.1:8080\"",
            ),
            (
                "server",
                "listen: \"127.0.0.1:80\"",
                "listen = \"127.0.0.1:80\"",
            ),
            (
                "server",
                "listen: 127.0.0.1:80",
                "listen = \"127.0.0.1:80\"",
            ),
            ("server", "workers: 4", "workers = 4"),
            (
                "server",
                "listen = “127.0.0.1:80”",
                "listen = \"127.0.0.1:80\"",
            ),
            (
                "server",
                "listen = \"127.0.0.1:80",
                "listen = \"127.0.0.1:80\"",
            ),
            (
                "server",
                "listen = \"127.0.0.1:80\";",
                "listen = \"127.0.0.1:80\"",
            ),
            (
                "server",
                "listen = \"127.0.0.1:80\" // b",
                "listen = \"127.0.0.1:80\" # b",
            ),
            ("limit.d", "rate = 10/s", "rate = \"10/s\""),
            ("limit.d", "key = client\"", "key = \"client\""),
            (
                "route[0]",
                "methods = [GET, POST]",
                "methods = [\"GET\", \"POST\"]",
            ),
            (
                "route[0]",
                "methods = [\"GET, \"POST\"]",
                "methods = [\"GET\", \"POST\"]",
            ),
            (
                "route[0]",
                "methods = \"GET\", \"POST\"",
                "methods = [\"GET\", \"POST\"]",
            ),
            (
                "route[0]",
                "limits = [\"a\" \"b\"]",
                "limits = [\"a\", \"b\"]",
            ),
            ("route[0]", "limits = [“a”, “b”]", "limits = [\"a\", \"b\"]"),
            (
                "route[0]",
                r#"path = ["/\d+" "/b"]"#,
                r#"path = ['/\d+', "/b"]"#,
            ),
            (
                "scenario.a",
                "steps = [\"delay 200ms + 503\" \"200\"]",
                "steps = [\"delay 200ms + 503\", \"200\"]",
            ),
            (
                "upstream.a",
                "health = { path: \"/\", interval = 5s }",
                "health = { path = \"/\", interval = \"5s\" }",
            ),
            (
                "route[0].idempotency",
                "mode = required",
                "mode = \"required\"",
            ),
            ("", "// comment", "# comment"),
            ("", "; comment", "# comment"),
            ("", "[[route]", "[[route]]"),
            ("", "[route", "[[route]]"),
            ("", "[server]]", "[server]"),
            ("", "[limit.device", "[limit.device]"),
            ("", "[limit device]", "[limit.device]"),
            ("", "[upstrem.api", "[upstream.api]"),
            ("", "log]", "[log]"),
        ] {
            let mistake = find(section, line).unwrap_or_else(|| panic!("{line}"));
            let expected = format!("write `{corrected}`");
            let help = mistake.help(false);
            assert!(help.ends_with(&expected), "{line}: {help}");
            assert!(!mistake.help(true).contains("write `"), "{line}");
        }
    }

    #[test]
    fn an_example_is_shown_if_the_value_is_unclear() {
        for (section, line, example) in [
            ("server", "workers = ", "`workers = 0`"),
            (
                "route[0].idempotency",
                "mode = requried",
                "`mode = \"optional\"`",
            ),
            ("limit.d", "burst = 10x", "`burst = 3`"),
            (
                "server",
                "idle_timeout = \"75s\" listen = \"x\"",
                "`idle_timeout = \"250ms\"`",
            ),
            ("", "[limit", "`[limit.NAME]`, with a name of your choice"),
        ] {
            let mistake = find(section, line).unwrap_or_else(|| panic!("{line}"));
            let help = mistake.help(false);
            assert!(help.ends_with(example), "{line}: {help}");
            assert!(mistake.corrected.is_none(), "{line}");
        }
    }

    #[test]
    fn a_regular_expression_in_double_quotes_is_written_in_single_quotes() {
        for (line, corrected) in [
            (r#"path = "/v1/\d+""#, r"path = '/v1/\d+'"),
            (
                r#"  path = ["/a", "/\w/\d+$"]"#,
                r#"path = ["/a", '/\w/\d+$']"#,
            ),
            (r#"path = ["/\d+", "/\w+"]"#, r"path = ['/\d+', '/\w+']"),
            (r#"path = "/a\\.b/\d+""#, r"path = '/a\.b/\d+'"),
            (r#"path = "/it's/\d""#, r#"path = "/it's/\\d""#),
        ] {
            let mistake = find("route[0]", line).unwrap_or_else(|| panic!("{line}"));
            let help = mistake.help(false);
            assert!(help.ends_with(&format!("write `{corrected}`")), "{help}");
            assert!(line[mistake.part.clone()].starts_with('\\'), "{line}");
            assert!(!line[mistake.part].starts_with("\\\\"), "{line}");
        }
    }

    #[test]
    fn the_value_of_a_line_with_a_secret_is_not_shown() {
        let mistake = find("admin", "token = hunter2").expect("a mistake");
        assert_eq!(mistake.title(true), "the text `***` has no quotes");
        assert_eq!(mistake.help(true), "text is written in quotes");
        let mistake = find("admin", "token = \"hunter2").expect("a mistake");
        assert_eq!(mistake.title(true), "the closing quote is missing");
    }

    #[test]
    fn a_line_without_a_common_mistake_is_not_reported() {
        for line in ["= 3", "{ listen 80; }", "", "workers = 1", "[server]"] {
            assert_eq!(find("server", line), None, "{line}");
        }
    }
}
