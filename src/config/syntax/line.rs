//! Common mistakes in one line of a configuration file, and the corrected line.

use std::ops::Range;

use toml::de::DeTable;

/// Mistake in a line that is not valid TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineMistake {
    /// What is wrong, in a few words.
    pub(super) title: String,
    /// The corrected line, and the rule of TOML.
    pub(super) help: String,
    /// Part of the line that is wrong, as a range of bytes.
    pub(super) part: Range<usize>,
}

impl LineMistake {
    /// Returns the mistake in a line, with a correction that is valid TOML. Returns `None` if the line has no common
    /// mistake. `at` is the position in the line at which the parser found the error.
    pub(super) fn find(line: &str, at: usize) -> Option<Self> {
        let start = line.len() - line.trim_start().len();
        let text = line.trim();
        let mistake = comment(text)
            .or_else(|| header(text))
            .or_else(|| escape(text, at.saturating_sub(start)))
            .or_else(|| assignment(text))?;
        let valid = DeTable::parse_recoverable(&mistake.corrected).1.is_empty();
        valid.then(|| Self {
            title: mistake.title,
            help: format!("{}: write `{}`", mistake.rule, mistake.corrected),
            part: start + mistake.part.start..start + mistake.part.end,
        })
    }
}

/// Mistake in a line, with a correction that is possibly not valid.
struct Candidate {
    title: String,
    rule: &'static str,
    corrected: String,
    part: Range<usize>,
}

/// Returns the key of a line in YAML, such as `listen: 80`.
pub(super) fn yaml_key(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("- ").unwrap_or(line);
    let (key, value) = line.split_once(':')?;
    let is_value = value.is_empty() || value.starts_with(' ');
    (is_value && is_bare_key(key)).then_some(key)
}

fn is_bare_key(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// `// text` and `; text`, which are comments in other formats.
fn comment(text: &str) -> Option<Candidate> {
    let marker = ["//", ";"]
        .into_iter()
        .find(|marker| text.starts_with(marker))?;
    let content = text[marker.len()..].trim_start();
    Some(Candidate {
        title: format!("`{marker}` does not start a comment"),
        rule: "a comment starts with `#`",
        corrected: format!("# {content}"),
        part: 0..marker.len(),
    })
}

/// `[server` and `[[route]`, in which brackets are missing.
fn header(text: &str) -> Option<Candidate> {
    let name = text.trim_start_matches('[');
    let opened = text.len() - name.len();
    let name = name.split('#').next().unwrap_or(name).trim_end();
    let bare = name.trim_end_matches(']');
    let closed = name.len() - bare.len();
    if opened == 0 || opened > 2 || opened == closed || !is_bare_key(bare) {
        return None;
    }
    let brackets = opened.max(closed);
    Some(Candidate {
        title: "the brackets of the header do not match".into(),
        rule: "a header opens and closes with the same number of brackets",
        corrected: format!("{}{bare}{}", "[".repeat(brackets), "]".repeat(brackets)),
        part: 0..opened + name.len(),
    })
}

/// `path = "/v1/\d+"`, whose `\d` is not an escape of TOML. `at` is the position of the error, after the backslash.
fn escape(text: &str, at: usize) -> Option<Candidate> {
    let backslash = at.checked_sub(1)?;
    let letter = text.get(at..)?.chars().next()?;
    if text.as_bytes().get(backslash) != Some(&b'\\') {
        return None;
    }
    let open = text[..backslash].rfind('"')?;
    let close = at + text[at..].find('"')?;
    let content = &text[open + 1..close];
    let corrected = if content.contains('\'') {
        format!(
            "{}{}{}",
            &text[..open],
            toml_string(content),
            &text[close + 1..]
        )
    } else {
        format!("{}'{content}'{}", &text[..open], &text[close + 1..])
    };
    Some(Candidate {
        title: format!("`\\{letter}` is not an escape of TOML"),
        rule: "in single quotes, a backslash is an ordinary character",
        corrected,
        part: backslash..at + letter.len_utf8(),
    })
}

/// `key: value`, and `key = value` with a value that is not valid.
fn assignment(text: &str) -> Option<Candidate> {
    let equals = text.find('=');
    let colon = yaml_key(text).map(str::len);
    if let Some(colon) = colon.filter(|colon| equals.is_none_or(|equals| *colon < equals)) {
        let key = &text[..colon];
        let value = text[colon + 1..].trim();
        return Some(Candidate {
            title: "`:` does not separate a key and its value".into(),
            rule: "a key and its value are separated by `=`",
            corrected: format!("{key} = {}", corrected_value(value).1),
            part: colon..colon + 1,
        });
    }
    let equals = equals?;
    let key = text[..equals].trim_end();
    let written = text[equals + 1..].trim_start();
    let start = text.len() - written.len();
    let ((title, rule), value) = corrected_value(written);
    (is_bare_key(key) && !written.is_empty() && value != written).then(|| Candidate {
        title: title.replace("{}", written),
        rule,
        corrected: format!("{key} = {value}"),
        part: start..text.len(),
    })
}

/// Title and rule of a mistake in a value.
type ValueMistake = (&'static str, &'static str);

/// Returns the mistake in a value, and the corrected value. `{}` in the title stands for the value.
fn corrected_value(written: &str) -> (ValueMistake, String) {
    const BOOLEAN: ValueMistake = ("`{}` is not a value", "a boolean is `true` or `false`");
    const TEXT: ValueMistake = ("the text `{}` has no quotes", "text is written in quotes");
    let quotes = |c: char| "“”„‟«»".contains(c);
    match written.to_ascii_lowercase().as_str() {
        "yes" | "on" | "true" => return (BOOLEAN, "true".into()),
        "no" | "off" | "false" => return (BOOLEAN, "false".into()),
        _ => {}
    }
    if written.starts_with(quotes) {
        let mistake = (
            "`{}` has typographic quotes",
            "text is written in straight quotes",
        );
        return (mistake, toml_string(written.trim_matches(quotes)));
    }
    match written.chars().next() {
        Some('"' | '\'') => corrected_string(written),
        Some('[') if written.ends_with(']') => {
            let entries = written[1..written.len() - 1].split([',', ' ']);
            let entries = entries
                .filter(|entry| !entry.is_empty())
                .map(quoted_unless_valid);
            let list = entries.collect::<Vec<_>>().join(", ");
            let mistake = (
                "`{}` is not a list",
                "the entries of a list are separated by commas, and text is written in quotes",
            );
            (mistake, format!("[{list}]"))
        }
        Some(first) if first.is_ascii_alphanumeric() || "/.:*_-".contains(first) => {
            let text = written.split(" #").next().unwrap_or(written);
            (
                TEXT,
                quoted_unless_valid(text.trim_end_matches([';', ',']).trim_end()),
            )
        }
        _ => (TEXT, written.into()),
    }
}

/// Corrects a value that starts with a quote: the end of the string is missing, or something follows the string.
fn corrected_string(written: &str) -> (ValueMistake, String) {
    let quote = &written[..1];
    match written[1..].find(quote) {
        None => {
            let mistake = (
                "the closing quote is missing",
                "quotes open and close on the same line",
            );
            (mistake, format!("{written}{quote}"))
        }
        Some(end) => {
            let (string, rest) = written.split_at(end + 2);
            let rest = rest.trim_start_matches([';', ',', ' ']);
            let comment = rest
                .strip_prefix("//")
                .map_or_else(String::new, |text| format!(" #{text}"));
            let mistake = (
                "`{}` is not one value",
                "a line ends after its value or with a `#` comment",
            );
            (mistake, format!("{string}{comment}"))
        }
    }
}

/// Returns the text itself if it is a TOML value, else the text as a TOML string.
fn quoted_unless_valid(text: &str) -> String {
    let line = format!("a = {text}");
    if DeTable::parse_recoverable(&line).1.is_empty() {
        text.into()
    } else {
        toml_string(text)
    }
}

/// Writes a text as a TOML string.
pub(super) fn toml_string(text: &str) -> String {
    if text.contains(['\\', '"']) && !text.contains('\'') {
        format!("'{text}'")
    } else {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_contains_the_corrected_line() {
        for (line, corrected) in [
            ("access = yes", "access = true"),
            ("access = True", "access = true"),
            ("access = off", "access = false"),
            ("idle_timeout = 75s", "idle_timeout = \"75s\""),
            ("rate = 10/s", "rate = \"10/s\""),
            ("  listen = 127.0.0.1:8080", "listen = \"127.0.0.1:8080\""),
            ("listen = localhost # all", "listen = \"localhost\""),
            ("listen: \"127.0.0.1:80\"", "listen = \"127.0.0.1:80\""),
            ("listen: 127.0.0.1:80", "listen = \"127.0.0.1:80\""),
            ("workers: 4", "workers = 4"),
            ("listen = “127.0.0.1:80”", "listen = \"127.0.0.1:80\""),
            ("listen = \"127.0.0.1:80", "listen = \"127.0.0.1:80\""),
            ("listen = \"a\";", "listen = \"a\""),
            ("listen = \"a\",", "listen = \"a\""),
            ("listen = \"a\" // b", "listen = \"a\" # b"),
            ("// comment", "# comment"),
            ("; comment", "# comment"),
            ("[[route]", "[[route]]"),
            ("[limit.device", "[limit.device]"),
            ("methods = [GET, POST]", "methods = [\"GET\", \"POST\"]"),
            ("limits = [\"a\" \"b\"]", "limits = [\"a\", \"b\"]"),
        ] {
            let mistake = LineMistake::find(line, 0).unwrap_or_else(|| panic!("{line}"));
            let expected = format!("write `{corrected}`");
            assert!(
                mistake.help.ends_with(&expected),
                "{line}: {}",
                mistake.help
            );
        }
    }

    #[test]
    fn a_regular_expression_in_double_quotes_is_written_in_single_quotes() {
        for (line, corrected) in [
            (r#"path = "/v1/\d+""#, r"path = '/v1/\d+'"),
            (
                r#"  path = ["/a", "/v1/\d+$"]"#,
                r#"path = ["/a", '/v1/\d+$']"#,
            ),
            (r#"path = "/it's/\d""#, r#"path = "/it's/\\d""#),
        ] {
            let at = line.find('\\').unwrap() + 1;
            let mistake = LineMistake::find(line, at).unwrap_or_else(|| panic!("{line}"));
            assert!(
                mistake.help.ends_with(&format!("write `{corrected}`")),
                "{}",
                mistake.help
            );
            assert_eq!(&line[mistake.part], r"\d");
        }
    }

    #[test]
    fn a_line_without_a_common_mistake_has_no_correction() {
        for line in [
            "workers = ]",
            "= 3",
            "server { listen 80; }",
            "tls = {",
            "a = [1",
            "",
        ] {
            assert_eq!(LineMistake::find(line, 0), None, "{line}");
        }
    }
}
