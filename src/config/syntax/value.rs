//! Mistakes in a value that is not valid TOML, and values that its author probably means.

use std::ops::Range;

use toml::de::DeTable;

use super::super::tree::quote;
use super::scan::string_end;

/// Mistake in a value.
pub(super) struct ValueMistake {
    /// What is wrong. `{}` stands for the value.
    pub(super) title: String,
    /// The rule of TOML that the value violates.
    pub(super) rule: &'static str,
    /// Values that the author possibly means, the most probable first. They are not necessarily valid.
    pub(super) corrections: Vec<String>,
    /// Part of the value that is wrong, as a range of bytes.
    pub(super) part: Range<usize>,
}

/// Characters that people write as quotes.
const QUOTES: &str = "\"'“”„‟‘’«»`";

/// Maximum length of a value for which corrections are made, in bytes. Longer lines are not shown.
const MAX_CORRECTED: usize = 1_000;

/// Returns the mistake in a value, which has no comment and is not valid.
pub(super) fn find(value: &str) -> ValueMistake {
    if value.len() > MAX_CORRECTED {
        return ValueMistake {
            title: "`{}` is not a value".into(),
            rule: "a line has the form `key = value`",
            corrections: vec![],
            part: 0..value.len(),
        };
    }
    if let Some(mistake) = escape(value) {
        return mistake;
    }
    let (title, rule, corrections) = match value.chars().next() {
        None => (
            "the value is missing",
            "a line has the form `key = value`",
            vec![],
        ),
        Some('[') => list(value),
        Some('{') => inline_table(value),
        Some('"' | '\'') => string(value),
        Some(first) if QUOTES.contains(first) => (
            "`{}` has typographic quotes",
            "text is written in straight quotes",
            vec![quote(unquote(value))],
        ),
        Some(_) => bare(value),
    };
    ValueMistake {
        title: title.into(),
        rule,
        corrections,
        part: 0..value.len(),
    }
}

/// Title, rule and corrections of a mistake.
type Explanation = (&'static str, &'static str, Vec<String>);

/// Explains `yes`, and text without quotes.
fn bare(value: &str) -> Explanation {
    let text = unquote(value);
    let boolean = match text.to_ascii_lowercase().as_str() {
        "yes" | "on" | "true" => Some("true"),
        "no" | "off" | "false" => Some("false"),
        _ => None,
    };
    if let Some(boolean) = boolean {
        let rule = "a boolean is `true` or `false`";
        return (
            "`{}` is not a value",
            rule,
            vec![boolean.into(), quote(text)],
        );
    }
    if text.starts_with(|c: char| c.is_alphanumeric() || "/.:*_-".contains(c)) {
        let rule = "text is written in quotes";
        return (
            "the text `{}` has no quotes",
            rule,
            vec![quoted_unless_valid(text)],
        );
    }
    (
        "`{}` is not a value",
        "a line has the form `key = value`",
        vec![],
    )
}

/// Explains a string that is not closed, or that other text follows.
fn string(value: &str) -> Explanation {
    let Some(end) = string_end(value) else {
        // The text after a `#` is probably a comment, because the closing quote belongs before it.
        let text = value.split(" #").next().unwrap_or(value);
        let rule = "quotes open and close on the same line";
        return (
            "the closing quote is missing",
            rule,
            vec![quote(unquote(text))],
        );
    };
    let (string, rest) = value.split_at(end);
    let rest = rest.trim_start_matches([';', ',', ' ', '\t']);
    let mut rule = "a line ends after its value or with a `#` comment";
    let corrections = match rest.strip_prefix("//") {
        Some(comment) => vec![format!("{string} #{comment}")],
        None if rest.is_empty() => vec![string.into()],
        None if rest.contains('=') => {
            rule = "each key is on a line of its own";
            vec![]
        }
        None => {
            let entries = entries(value.trim_end_matches(']'));
            entries.map(|all| format!("[{all}]")).into_iter().collect()
        }
    };
    ("`{}` is not one value", rule, corrections)
}

fn list(value: &str) -> Explanation {
    let inner = value
        .trim_start_matches('[')
        .trim_end_matches([']', ';', ',']);
    let by_comma = || {
        let parts = inner.split(',').map(|part| unquote(part.trim()));
        let parts = parts.filter(|part| !part.is_empty());
        parts
            .map(quoted_unless_valid)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let corrections = if inner.contains(['{', '[', ']']) {
        vec![]
    } else {
        let all = entries(inner).into_iter().chain([by_comma()]);
        all.map(|all| format!("[{all}]")).collect()
    };
    let rule = "the entries of a list are separated by commas, and text is written in quotes";
    ("`{}` is not a list", rule, corrections)
}

/// Returns the entries of a list, separated by commas. Returns `None` if a string is not closed or has typographic
/// quotes.
fn entries(text: &str) -> Option<String> {
    let mut rest = text.trim_start();
    let mut entries = Vec::new();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' | '\'' => string_end(rest)?,
            _ if QUOTES.contains(first) => return None,
            _ => rest.find([',', ' ', '\t']).unwrap_or(rest.len()),
        };
        let entry = &rest[..end];
        if entry.chars().filter(|c| QUOTES.contains(*c)).count() % 2 == 1 {
            return None;
        }
        entries.push(quoted_unless_valid(entry));
        rest = rest[end..].trim_start_matches([',', ' ', '\t']);
    }
    Some(entries.join(", "))
}

/// Explains an inline table such as `{ interval = 5s }` and `{ path: "/" }`.
fn inline_table(value: &str) -> Explanation {
    let corrected = || {
        let inner = value.strip_prefix('{')?.strip_suffix('}')?;
        if inner.contains(['{', '[']) {
            return None;
        }
        let entries = inner.split(',').map(|entry| {
            let (key, value) = entry.split_once(['=', ':'])?;
            let value = value.trim();
            let value = if is_valid(value) {
                value.to_owned()
            } else {
                find(value).corrections.into_iter().next()?
            };
            Some(format!("{} = {value}", key.trim()))
        });
        let entries = entries.collect::<Option<Vec<_>>>()?;
        Some(format!("{{ {} }}", entries.join(", ")))
    };
    let rule = "an inline table has the form `{ key = value, key = value }`";
    (
        "`{}` is not an inline table",
        rule,
        corrected().into_iter().collect(),
    )
}

/// Explains a string such as `"/v1/\d+"`, whose `\d` is not an escape of TOML. All strings of the value with a backslash are corrected.
fn escape(value: &str) -> Option<ValueMistake> {
    let mut corrected = String::with_capacity(value.len());
    let mut invalid = None;
    let mut rest = value;
    while let Some(open) = rest.find(['"', '\'']) {
        let end = open + string_end(&rest[open..])?;
        let string = &rest[open..end];
        corrected.push_str(&rest[..open]);
        if string.starts_with('"') && string.contains('\\') {
            let content = &string[1..string.len() - 1];
            let start = value.len() - rest.len() + open + 1;
            invalid = invalid
                .or_else(|| invalid_escape(content).map(|(at, letter)| (start + at, letter)));
            corrected.push_str(&quote(&unescape(content)));
        } else {
            corrected.push_str(string);
        }
        rest = &rest[end..];
    }
    corrected.push_str(rest);
    let (at, letter) = invalid?;
    let mut corrections = vec![corrected.clone()];
    // The corrected value has no invalid escapes, but possibly other mistakes.
    if !is_valid(&corrected) {
        corrections.extend(find(&corrected).corrections);
    }
    Some(ValueMistake {
        title: format!("`\\{letter}` is not an escape of TOML"),
        rule: "in single quotes, a backslash is an ordinary character",
        corrections,
        part: at..at + 1 + letter.len_utf8(),
    })
}

/// Returns the first escape in a string in double quotes that is not an escape of TOML: the position of its backslash and
/// the character after it.
fn invalid_escape(content: &str) -> Option<(usize, char)> {
    let mut chars = content.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            let (_, letter) = chars.next()?;
            if !"\\\"btnfreuUx".contains(letter) {
                return Some((at, letter));
            }
        }
    }
    None
}

/// Returns the regular expression that the author of a string in double quotes means: `\\` is one backslash, and other
/// escapes are those of regular expressions.
fn unescape(content: &str) -> String {
    let mut text = String::with_capacity(content.len());
    let mut chars = content.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(next @ ('\\' | '"'))) => {
                text.push(next);
                chars.next();
            }
            _ => text.push(c),
        }
    }
    text
}

/// Removes quotes and punctuation around a text.
fn unquote(text: &str) -> &str {
    text.trim_matches(|c: char| QUOTES.contains(c) || ";, \t".contains(c))
}

/// Whether a text is a TOML value.
pub(super) fn is_valid(value: &str) -> bool {
    let line = format!("a = {value}");
    DeTable::parse_recoverable(&line).1.is_empty()
}

/// Returns the text itself if it is a TOML value, else the text as a TOML string.
fn quoted_unless_valid(text: &str) -> String {
    if is_valid(text) {
        text.into()
    } else {
        quote(text)
    }
}
