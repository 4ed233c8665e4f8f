//! The TOML tree, with every value still in its place.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::secrets;
use super::source::Span;

/// A value of the tree.
pub(super) type Node<'i> = Spanned<DeValue<'i>>;

/// Reads a file that starts at the beginning of the address space.
///
/// After a syntax error the parser goes on, and so more than one can be reported; but what it makes of
/// the rest is guesswork, so nothing else is looked for in a file that has one.
pub(super) fn read<'i>(text: &'i str, findings: &mut Findings) -> Option<Spanned<DeTable<'i>>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        secrets::hide_unread(text, findings);
    }
    let mut last_line = 0;
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        // A second complaint about a line is mostly an echo of the first.
        let line = findings.sources.place(&span).line;
        if line != last_line {
            let help = remedy(error.message());
            findings.error(&span, format!("syntax: {}", error.message()), help);
        }
        last_line = line;
    }
    errors.is_empty().then_some(table)
}

fn remedy(message: &str) -> &'static str {
    if message.contains("duplicate") {
        "a key or a section can be given once: merge the two, or rename one"
    } else if message.contains("quoted") || message.contains("string") {
        "text stands in quotes, opened and closed on the same line: name = \"value\""
    } else {
        "write `key = value` lines below `[section]` headers, with text in quotes (TOML)"
    }
}

/// A string that was written elsewhere than in the file.
pub(super) fn string(span: Span, text: String) -> Node<'static> {
    Spanned::new(span, DeValue::String(Cow::Owned(text)))
}

/// The value, moved `by` along the address space.
pub(super) fn relocate(node: Node<'_>, by: usize) -> Node<'_> {
    let span = moved(&node.span(), by);
    let value = match node.into_inner() {
        DeValue::Array(items) => {
            DeValue::Array(items.into_iter().map(|item| relocate(item, by)).collect())
        }
        DeValue::Table(entries) => DeValue::Table(
            entries
                .into_iter()
                .map(|(key, value)| {
                    let span = moved(&key.span(), by);
                    (Spanned::new(span, key.into_inner()), relocate(value, by))
                })
                .collect(),
        ),
        leaf => leaf,
    };
    Spanned::new(span, value)
}

fn moved(span: &Span, by: usize) -> Span {
    span.start + by..span.end + by
}

/// A value's type, as JSON Schema calls it.
pub(super) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "string",
        DeValue::Integer(_) => "integer",
        DeValue::Float(_) => "number",
        DeValue::Boolean(_) => "boolean",
        DeValue::Datetime(_) => "date",
        DeValue::Array(_) => "array",
        DeValue::Table(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_syntax_errors_are_reported_at_once() {
        let text = "a = \nb = 1\nc = ]\n";
        let mut findings = Findings::default();
        findings.sources.add("a.toml", text);
        assert!(read(text, &mut findings).is_none());
        let errors = findings.into_errors();
        let lines: Vec<_> = errors.problems().iter().map(|p| p.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
