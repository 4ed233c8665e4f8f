//! Redaction of secrets in configuration problems.
//!
//! A problem shows its line of the file, and its title often repeats the invalid text. Secrets are therefore replaced
//! by asterisks in the source texts before validation:
//!
//! - values of configuration keys that contain secrets,
//! - values of unknown keys in the sections of these keys, because an unknown key can be a misspelt secret key,
//! - passwords in URLs.
//!
//! References to environment variables, such as `${PASSWORD}`, are not secret and remain readable.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::schema::SCHEMA;
use super::source::Span;
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
    for (section, node) in table {
        let section = section.get_ref().as_ref();
        match (node.get_ref(), validate::property(schema, section)) {
            (DeValue::Table(keys), Some(schema)) if secret_keys(schema).next().is_some() => {
                for (key, node) in keys {
                    let key = key.get_ref().as_ref();
                    let is_known = validate::property(schema, key).is_some();
                    if !is_known || secret_keys(schema).any(|secret| secret == key) {
                        search.value(node);
                    } else {
                        search.urls(node, (section, key) == ("store", "url"));
                    }
                }
            }
            _ => search.urls(node, false),
        }
    }
    for span in spans {
        findings.sources.redact(&span);
    }
}

/// Returns the keys of a section whose values are secret, which the schema marks with `writeOnly`.
fn secret_keys(section: &Value) -> impl Iterator<Item = &str> {
    validate::known_keys(section)
        .filter(|key| section["properties"][key].get("writeOnly").is_some())
}

/// Collects the spans of secrets. They are redacted after the search, because the search reads the source texts.
struct Search<'a> {
    findings: &'a Findings,
    found: &'a mut Vec<Span>,
}

impl Search<'_> {
    fn value(&mut self, node: &TomlNode<'_>) {
        match node.get_ref() {
            DeValue::String(text) => self.part(node, text, 0..text.len()),
            _ => self.found.push(node.span()),
        }
    }

    /// Collects the spans of passwords in URLs. If `is_url` is true, every string in the value is treated as a URL,
    /// even a string without a scheme.
    fn urls(&mut self, node: &TomlNode<'_>, is_url: bool) {
        match node.get_ref() {
            DeValue::String(text) => {
                let secret = if is_url {
                    password_in_url(text)
                } else {
                    password_in_text(text)
                };
                if let Some(secret) = secret {
                    self.part(node, text, secret);
                }
            }
            DeValue::Array(items) => items.iter().for_each(|item| self.urls(item, is_url)),
            DeValue::Table(table) => table.values().for_each(|value| self.urls(value, is_url)),
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

/// Redacts text that looks like a secret in a file with syntax errors. Such a file has no TOML tree, so each line is
/// searched.
pub(super) fn redact_unparsed(text: &str, findings: &mut Findings) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.trim_end().len();
        if let Some(secret) = password_in_text(line) {
            let secret = start + secret.start..start + secret.end;
            findings.sources.redact(&secret);
        }
        let sections = SCHEMA["properties"].as_object().into_iter().flatten();
        for key in sections.flat_map(|(_, section)| secret_keys(section)) {
            let after = line.find(key).map(|at| at + key.len());
            let value = after.and_then(|after| {
                let rest = line[after..].trim_start_matches(['"', '\'', ' ', '\t']);
                Some(start + line.len() - rest.strip_prefix(['=', ':'])?.len())
            });
            if let Some(value) = value.filter(|value| *value < end) {
                findings.sources.redact(&(value..end));
            }
        }
        start += line.len();
    }
}

/// Returns an error message in which the password of a URL is replaced by `***`.
pub(super) fn masked(message: &str) -> Cow<'_, str> {
    mask(message, password_in_text(message))
}

/// Returns the byte range of the password in the URL that a text contains. `None` means that it contains no URL with a
/// password.
fn password_in_text(text: &str) -> Option<Range<usize>> {
    let (scheme, at) = (text.find("://")?, text.rfind('@')?);
    (scheme < at).then(|| password_in_url(text)).flatten()
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
