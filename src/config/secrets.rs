//! Redaction of secrets in configuration problems.
//!
//! A problem shows its line of the file, and its title often repeats the invalid text. Before validation, asterisks
//! therefore replace in the source texts: values of secret keys; values of unknown keys with the name of a secret;
//! values of all unknown keys in tables with secrets, because such a key can be a misspelt secret; passwords in URLs.
//! References such as `${PASSWORD}` remain readable.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::schema;
use super::source::Span;
use super::tree::TomlNode;
use super::validate;
use super::variables::is_name;
use crate::store::redis::url::{mask, password_in_url};

/// Has to run before `${VARIABLE}` references are replaced, because afterwards the values differ from the source
/// texts.
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

/// `schema` is that of the table with the key; `None` if the table is unknown. It marks secret keys with `writeOnly`.
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

/// The file of a secret is not secret.
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

/// The spans are redacted after the search, because the search reads the source texts.
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

    fn value(&mut self, node: &TomlNode<'_>) {
        match node.get_ref() {
            DeValue::String(text) => self.part(node, text, 0..text.len()),
            DeValue::Array(items) => items.iter().for_each(|item| self.value(item)),
            DeValue::Table(table) => table.values().for_each(|value| self.value(value)),
            _ => self.found.push(node.span()),
        }
    }

    /// `schema` is that of the value; `None` if it is unknown.
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

/// Replaces the password of a URL by `***`.
pub(super) fn masked(message: &str) -> Cow<'_, str> {
    mask(message, password_in_text(message))
}

/// A help text without `://` can show the form `user:password@`.
pub(super) fn masked_urls(help: &str) -> Cow<'_, str> {
    if help.contains("://") {
        masked(help)
    } else {
        help.into()
    }
}

/// The scheme can be missing, as in `user:password@host`.
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

fn without_variables(text: &str, within: Range<usize>) -> Vec<Range<usize>> {
    // `$${` is a literal `${`, which the search below would mistake for a reference.
    if text.contains("$${") {
        return vec![within];
    }
    let mut parts = Vec::new();
    let mut from = within.start;
    while let Some(open) = text[from..within.end].find("${").map(|at| from + at)
        && let Some(close) = text[open..within.end].find('}').map(|at| open + at)
    {
        if !is_name(&text[open + 2..close]) {
            return vec![within];
        }
        parts.push(from..open);
        from = close + 1;
    }
    parts.push(from..within.end);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests;
