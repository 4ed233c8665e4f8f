//! Tree of TOML values with their source locations.

use std::borrow::Cow;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::{NOT_CONFIGURED, Span};

pub(super) type TomlNode<'i> = Spanned<DeValue<'i>>;

/// What has syntax errors is missing.
pub(super) fn parse(text: &str) -> Spanned<DeTable<'_>> {
    DeTable::parse_recoverable(text).0
}

pub(super) fn string(span: Span, text: String) -> TomlNode<'static> {
    Spanned::new(span, DeValue::String(Cow::Owned(text)))
}

/// An object becomes an empty table. `numbers` contains the text of each number in the schema, because a TOML number
/// borrows its text.
pub(super) fn default_value<'i>(default: &Value, numbers: &'i [String]) -> TomlNode<'i> {
    let value = match default {
        Value::String(text) => DeValue::String(Cow::Owned(text.clone())),
        Value::Bool(value) => DeValue::Boolean(*value),
        Value::Array(items) => {
            let items = items.iter().map(|item| default_value(item, numbers));
            DeValue::Array(items.collect())
        }
        Value::Number(number) => {
            let text = number.to_string();
            let text = numbers.iter().find(|known| **known == text);
            let node = text.and_then(|text| DeValue::parse(text).ok());
            node.expect("`numbers` contains every number").into_inner()
        }
        Value::Object(_) | Value::Null => DeValue::Table(DeTable::new()),
    };
    Spanned::new(NOT_CONFIGURED, value)
}

/// Adds `by` bytes to all source locations in a value.
pub(super) fn relocate(node: TomlNode<'_>, by: usize) -> TomlNode<'_> {
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

/// JSON Schema has no dates, so a TOML date is a "date".
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
pub(super) fn retain_sections(table: &mut Spanned<DeTable<'_>>, used: &[&str]) {
    let sections = std::mem::take(table.get_mut()).into_iter();
    let used = sections.filter(|(name, _)| used.contains(&name.get_ref().as_ref()));
    *table.get_mut() = used.collect();
}
