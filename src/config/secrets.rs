//! Keeping secrets out of what is reported.
//!
//! A complaint shows the line it is about, and its title often repeats the text that is wrong. So secrets are
//! blotted out of the sources before anything can point there: the values of keys that hold them, those
//! of unknown keys beside, which may be such a key misspelt, and the password in any URL. References to
//! variables stay, as they tell nothing and are what a person has to look for.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::shape;
use super::source::Span;
use super::tree::Node;

/// Keys whose values are secret, by their section.
const SECRET: &[(&str, &str)] = &[("admin", "token"), ("store", "password")];

/// Blots out the secrets of a tree into which no variable was put yet.
pub(super) fn hide(table: &DeTable<'_>, schema: &Value, findings: &mut Findings) {
    let mut spans = Vec::new();
    let mut search = Search {
        findings,
        found: &mut spans,
    };
    for (section, node) in table {
        let section = section.get_ref().as_ref();
        let guarded = SECRET.iter().any(|(of, _)| *of == section);
        match (node.get_ref(), shape::property(schema, section)) {
            (DeValue::Table(keys), Some(schema)) if guarded => {
                for (key, node) in keys {
                    let key = key.get_ref().as_ref();
                    if SECRET.contains(&(section, key)) || shape::property(schema, key).is_none() {
                        search.whole(node);
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

/// Places are looked up before the first of them is blotted out: some are found by their text.
struct Search<'a> {
    findings: &'a Findings,
    found: &'a mut Vec<Span>,
}

impl Search<'_> {
    fn whole(&mut self, node: &Node<'_>) {
        match node.get_ref() {
            DeValue::String(text) => self.part(node, text, 0..text.len()),
            _ => self.found.push(node.span()),
        }
    }

    /// The passwords in the URLs in a value; `sure` if its strings are meant for nothing else.
    fn urls(&mut self, node: &Node<'_>, sure: bool) {
        match node.get_ref() {
            DeValue::String(text) => {
                let secret = if sure { in_url(text) } else { in_any(text) };
                if let Some(secret) = secret {
                    self.part(node, text, secret);
                }
            }
            DeValue::Array(items) => items.iter().for_each(|item| self.urls(item, sure)),
            DeValue::Table(table) => table.values().for_each(|value| self.urls(value, sure)),
            _ => {}
        }
    }

    fn part(&mut self, node: &Node<'_>, text: &str, secret: Range<usize>) {
        let sources = &self.findings.sources;
        let literal = without_variables(text, secret).into_iter();
        self.found
            .extend(literal.map(|part| sources.inside(&node.span(), text, part)));
    }
}

/// Blots out what looks like a secret in a file that is not TOML, line by line.
pub(super) fn hide_unread(text: &str, findings: &mut Findings) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.trim_end().len();
        if let Some(secret) = in_any(line) {
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

/// A message without the password of a URL in it.
pub(super) fn masked(message: &str) -> Cow<'_, str> {
    mask(message, in_any(message))
}

/// A URL, or what should have been one, without its password.
pub(super) fn masked_url(url: &str) -> Cow<'_, str> {
    mask(url, in_url(url))
}

fn mask(text: &str, secret: Option<Range<usize>>) -> Cow<'_, str> {
    match secret {
        Some(secret) => format!("{}***{}", &text[..secret.start], &text[secret.end..]).into(),
        None => text.into(),
    }
}

/// The password of a URL within some text.
fn in_any(text: &str) -> Option<Range<usize>> {
    let (scheme, at) = (text.find("://")?, text.rfind('@')?);
    (scheme < at).then(|| in_url(text)).flatten()
}

/// The password in what should be a URL, however broken: better to hide too much of it.
fn in_url(url: &str) -> Option<Range<usize>> {
    let scheme = url.find("://").map(|at| at + 3);
    if let Some(at) = url.rfind('@') {
        let start = scheme.filter(|start| *start <= at).unwrap_or(0);
        let colon = url[start..at].find(':').map(|colon| start + colon + 1);
        return Some(colon.unwrap_or(start)..at).filter(|secret| !secret.is_empty());
    }
    // What should be a port may be a password whose host is missing.
    let start = scheme?;
    let authority = url[start..].split(['/', '?', '#']).next()?;
    let port = authority.find(':')? + 1;
    let is_port = authority[port..].bytes().all(|byte| byte.is_ascii_digit());
    (!is_port && !authority.starts_with('[')).then_some(start + port..url.len())
}

/// The parts of a stretch of text that are not `${VARIABLE}`.
fn without_variables(text: &str, within: Range<usize>) -> Vec<Range<usize>> {
    // Here a `${` may stand for itself.
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
