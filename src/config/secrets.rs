//! Redaction of secrets in configuration problems.
//!
//! A problem shows its line of the file, and its title often repeats the invalid text. Secrets are therefore redacted
//! in the source texts before validation:
//!
//! - values of keys that contain secrets,
//! - values of unknown keys in the same section, which may be a misspelt secret key,
//! - passwords in URLs.
//!
//! References to variables are not secret and remain readable.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::source::Span;
use super::tree::TomlNode;
use super::validate;

/// Keys whose values are secret, by their section.
const SECRET: &[(&str, &str)] = &[("admin", "token"), ("store", "password")];

/// Redacts the secrets of a tree. Call it before `${VARIABLE}` references are replaced.
pub(super) fn redact(table: &DeTable<'_>, schema: &Value, findings: &mut Findings) {
    let mut spans = Vec::new();
    let mut search = Search {
        findings,
        found: &mut spans,
    };
    for (section, node) in table {
        let section = section.get_ref().as_ref();
        let has_secrets = SECRET.iter().any(|(of, _)| *of == section);
        match (node.get_ref(), validate::property(schema, section)) {
            (DeValue::Table(keys), Some(schema)) if has_secrets => {
                for (key, node) in keys {
                    let key = key.get_ref().as_ref();
                    if SECRET.contains(&(section, key)) || validate::property(schema, key).is_none()
                    {
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

/// Collects the spans of secrets. Redaction starts after the search, because the search reads the source texts.
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

    /// Collects the passwords of URLs in a value. `is_url`: all strings of the value should be URLs.
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

/// Redacts text that looks like a secret in a file with syntax errors, line by line.
pub(super) fn redact_unparsed(text: &str, findings: &mut Findings) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.trim_end().len();
        if let Some(secret) = password_in_text(line) {
            let secret = start + secret.start..start + secret.end;
            findings.sources.redact(&secret);
        }
        for (_, key) in SECRET {
            let after = line.find(key).map(|at| at + key.len());
            let value = after.and_then(|after| {
                let rest = line[after..].trim_start_matches(['"', '\'', ' ', '\t']);
                Some(start + line.len() - rest.strip_prefix('=')?.len())
            });
            if let Some(value) = value.filter(|value| *value < end) {
                findings.sources.redact(&(value..end));
            }
        }
        start += line.len();
    }
}

/// Returns a message in which the password of a URL is masked.
pub(super) fn masked(message: &str) -> Cow<'_, str> {
    mask(message, password_in_text(message))
}

/// Returns a URL, which may be malformed, with its password masked.
pub(super) fn masked_url(url: &str) -> Cow<'_, str> {
    mask(url, password_in_url(url))
}

fn mask(text: &str, secret: Option<Range<usize>>) -> Cow<'_, str> {
    match secret {
        Some(secret) => format!("{}***{}", &text[..secret.start], &text[secret.end..]).into(),
        None => text.into(),
    }
}

/// Returns the range of the password in the URL that a text contains.
fn password_in_text(text: &str) -> Option<Range<usize>> {
    let (scheme, at) = (text.find("://")?, text.rfind('@')?);
    (scheme < at).then(|| password_in_url(text)).flatten()
}

/// Returns the range of the password in a URL, which may be malformed. In doubt the range is too long.
fn password_in_url(url: &str) -> Option<Range<usize>> {
    let scheme = url.find("://").map(|at| at + 3);
    if let Some(at) = url.rfind('@') {
        let start = scheme.filter(|start| *start <= at).unwrap_or(0);
        let colon = url[start..at].find(':').map(|colon| start + colon + 1);
        return Some(colon.unwrap_or(start)..at).filter(|secret| !secret.is_empty());
    }
    // A port that is not a number may be a password in a URL without a host.
    let start = scheme?;
    let authority = url[start..].split(['/', '?', '#']).next()?;
    let port = authority.find(':')? + 1;
    let is_port = authority[port..].bytes().all(|byte| byte.is_ascii_digit());
    (!is_port && !authority.starts_with('[')).then_some(start + port..url.len())
}

/// Returns the parts of a range that are not `${VARIABLE}` references.
fn without_variables(text: &str, within: Range<usize>) -> Vec<Range<usize>> {
    // A `${` after `$$` is literal, so the references cannot be found with a plain search.
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
