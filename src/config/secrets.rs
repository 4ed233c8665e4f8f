//! Redaction of secrets in configuration problems.
//!
//! A problem shows its line of the file, and its title often repeats the invalid text. Secrets are therefore replaced
//! by asterisks in the source texts before validation:
//!
//! - values of configuration keys that contain secrets,
//! - values of unknown keys with the name of a secret, and of all unknown keys in tables with secrets, because an unknown
//!   key can be a misspelt secret key,
//! - passwords in URLs.
//!
//! References to environment variables, such as `${PASSWORD}`, are not secret and remain readable.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::schema;
use super::source::Span;
use super::syntax::SourceLine;
use super::tree::TomlNode;
use super::validate;
use crate::store::redis::url::{mask, password_in_url};

/// Redacts the secrets in the source texts of a TOML tree. Call this function before `${VARIABLE}` references are
/// replaced, because afterwards the values in the tree differ from the source texts.
pub(super) fn redact(table: &DeTable<'_>, schema: &Value, findings: &mut Findings) {
    let mut spans = Vec::new();
    let mut search = Search {
        findings,
        found: &mut spans,
    };
    search.table(table, Some(schema));
    for span in spans {
        findings.sources.redact(&span);
    }
}

/// Whether the value of a key is secret. `schema` is that of the table with the key; `None` if the table is unknown.
///
/// The schema marks secret keys with `writeOnly`. An unknown key is secret if its name is that of a secret, or if the
/// table has secret keys, because it can be a misspelt one.
fn is_secret(key: &str, schema: Option<&Value>) -> bool {
    match schema.and_then(|schema| schema::property(schema, key)) {
        Some(property) => property.get("writeOnly").is_some(),
        None => has_secret_name(key) || schema.is_some_and(has_secret_keys),
    }
}

fn has_secret_keys(table: &Value) -> bool {
    let properties = table.get("properties").and_then(Value::as_object);
    let mut properties = properties.into_iter().flat_map(|all| all.values());
    properties.any(|property| property.get("writeOnly").is_some())
}

/// Whether a key is probably that of a secret. The file of a secret is not secret.
fn has_secret_name(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let names = [
        "token",
        "bearer",
        "pwd",
        "passw",
        "passphrase",
        "secret",
        "credential",
        "api_key",
        "apikey",
    ];
    let has_name =
        matches!(key.as_str(), "pass" | "auth") || names.iter().any(|name| key.contains(name));
    has_name && !key.ends_with("_file")
}

/// Collects the spans of secrets. They are redacted after the search, because the search reads the source texts.
struct Search<'a> {
    findings: &'a Findings,
    found: &'a mut Vec<Span>,
}

impl Search<'_> {
    fn table(&mut self, table: &DeTable<'_>, schema: Option<&Value>) {
        for (key, node) in table {
            let key = key.get_ref().as_ref();
            let property = schema.and_then(|schema| schema::property(schema, key));
            match node.get_ref() {
                _ if is_secret(key, schema) => self.value(node),
                DeValue::Table(table) => self.table(table, property),
                // A value instead of the table is possibly a secret of the table.
                _ if property.is_some_and(has_secret_keys) => self.value(node),
                _ => self.urls(node, property),
            }
        }
    }

    /// Collects the spans of all values in a secret value.
    fn value(&mut self, node: &TomlNode<'_>) {
        match node.get_ref() {
            DeValue::String(text) => self.part(node, text, 0..text.len()),
            DeValue::Array(items) => items.iter().for_each(|item| self.value(item)),
            DeValue::Table(table) => table.values().for_each(|value| self.value(value)),
            _ => self.found.push(node.span()),
        }
    }

    /// Collects the spans of passwords in URLs. `schema` is that of the value; `None` if it is unknown.
    fn urls(&mut self, node: &TomlNode<'_>, schema: Option<&Value>) {
        match node.get_ref() {
            DeValue::String(text) => {
                let is_url = schema.and_then(validate::string_format) == Some("RedisUrl");
                let secret = if is_url {
                    password_in_url(text)
                } else {
                    password_in_text(text)
                };
                if let Some(secret) = secret {
                    self.part(node, text, secret);
                }
            }
            DeValue::Array(items) => items.iter().for_each(|item| self.urls(item, schema)),
            DeValue::Table(table) => self.table(table, schema.and_then(|list| list.get("items"))),
            _ => {}
        }
    }

    fn part(&mut self, node: &TomlNode<'_>, text: &str, secret: Range<usize>) {
        let sources = &self.findings.sources;
        let literal = without_variables(text, secret).into_iter();
        self.found
            .extend(literal.map(|part| sources.inside(&node.span(), text, part)));
    }
}

/// Redacts text that is possibly a secret in a file with syntax errors. Such a file has no TOML tree, so each line is
/// searched. The lines after a secret key are redacted too, until the next key or header: its value can have several
/// lines.
pub(super) fn redact_lines(lines: &[SourceLine<'_>], findings: &mut Findings) {
    let mut is_continued = false;
    for line in lines {
        let secret = if is_continued && line.header.is_none() && !is_assignment(line) {
            Some(0..line.text.len())
        } else {
            let start = secret_in_line(line);
            is_continued = start.is_some();
            let secret = start.map(|start| start..line.text.len());
            secret.or_else(|| url_in_line(line))
        };
        if let Some(secret) = secret {
            let span = line.start + secret.start..line.start + secret.end;
            findings.sources.redact(&span);
        }
    }
}

/// Returns the part of a line that contains passwords in URLs. In a section with secrets this is the complete value,
/// because the URLs can be malformed.
fn url_in_line(line: &SourceLine<'_>) -> Option<Range<usize>> {
    let has_secrets = schema::schema_at(&line.section).is_some_and(has_secret_keys);
    if has_secrets && (line.text.contains('@') || line.text.contains("://")) {
        let start = line.text.find(['=', ':']).map_or(0, |start| start + 1);
        return Some(start..line.text.len());
    }
    password_in_text(line.text)
}

/// Returns the position in a line after which it contains a secret.
fn secret_in_line(line: &SourceLine<'_>) -> Option<usize> {
    let is_header = line.header.as_ref().is_some_and(|header| header.is_valid);
    if is_header || line.text.trim_start().starts_with('#') {
        return None;
    }
    let text = line.text;
    let section = schema::schema_at(&line.section);
    let is_word = |c: char| c.is_alphanumeric() || "_-".contains(c);
    let mut at = 0;
    let mut is_first = true;
    loop {
        let start = at + text[at..].find(is_word)?;
        let end = text[start..]
            .find(|c| !is_word(c))
            .map_or(text.len(), |end| start + end);
        let after = text[end..].trim_start_matches(['"', '\'', ' ', '\t']);
        // The first word of a line is a key, even if `=` is missing.
        let is_key = (is_first && !after.is_empty()) || after.starts_with(['=', ':']);
        let schema = section.filter(|_| is_first && line.header.is_none());
        if is_key && is_secret(&text[start..end], schema) {
            return Some(end);
        }
        at = end;
        is_first = false;
    }
}

/// Whether a line sets a key that its section has.
fn is_assignment(line: &SourceLine<'_>) -> bool {
    let section = schema::schema_at(&line.section);
    let has_key = |key| section.is_none_or(|section| schema::property(section, key).is_some());
    line.key().is_some_and(has_key)
}

/// Returns an error message in which the password of a URL is replaced by `***`.
pub(super) fn masked(message: &str) -> Cow<'_, str> {
    mask(message, password_in_text(message))
}

/// Returns a help text in which the password of a URL with a scheme is replaced by `***`. Other texts are unchanged,
/// because a help text can show the form `user:password@`.
pub(super) fn masked_urls(help: &str) -> Cow<'_, str> {
    if help.contains("://") {
        masked(help)
    } else {
        help.into()
    }
}

/// Returns the byte range of the password in the URL that a text contains. The scheme of the URL can be missing, as in
/// `user:password@host`. `None` means that the text contains no URL with a password.
fn password_in_text(text: &str) -> Option<Range<usize>> {
    let end = text.rfind('@')?;
    if text.find("://").is_some_and(|scheme| scheme < end) {
        return password_in_url(text);
    }
    let is_end = |c: char| c.is_whitespace() || "\"'`[],/".contains(c);
    let first = text.find('@')?;
    let mut before = text[..first].char_indices();
    let start = before.rfind(|(_, c)| is_end(*c));
    let start = start.map_or(0, |(at, c)| at + c.len_utf8());
    let colon = start + text[start..first].find(':')?;
    (colon + 1 < first).then_some(colon + 1..end)
}

/// Returns those parts of `text` that are in the range `within` and are not `${VARIABLE}` references.
fn without_variables(text: &str, within: Range<usize>) -> Vec<Range<usize>> {
    // If the text contains `$${` (a literal `${`), the whole range is returned. The search below would mistake the
    // literal for a reference.
    if text.contains("$${") {
        return vec![within];
    }
    let mut parts = Vec::new();
    let mut from = within.start;
    while let Some(open) = text[from..within.end].find("${").map(|at| from + at)
        && let Some(close) = text[open..within.end].find('}').map(|at| open + at)
    {
        parts.push(from..open);
        from = close + 1;
    }
    parts.push(from..within.end);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests;
