//! Kinds of values in words, and how a key could be written.

use serde_json::Value;

use super::{types, words};

/// A type, to a person.
pub(super) fn in_words(type_name: &str) -> &'static str {
    match type_name {
        "string" => "a string",
        "integer" => "a whole number",
        "number" => "a decimal number",
        "boolean" => "true or false",
        "date" => "a date",
        "array" => "a list",
        _ => "a table",
    }
}

/// How a key could be written.
pub(super) fn sample(key: &str, schema: &Value) -> String {
    let types = types(schema);
    if types == ["object"] {
        return format!("a `[{key}]` section");
    }
    if types == ["array"] && schema.pointer("/items/properties").is_some() {
        return format!("`[[{key}]]`, in two brackets, above each one");
    }
    format!("`{key} = {}`", sample_value(schema))
}

fn sample_value(schema: &Value) -> String {
    let example = schema.pointer("/examples/0").or(schema.get("default"));
    match example {
        Some(Value::Array(items)) if items.is_empty() => {}
        Some(example) => return example.to_string(),
        None => {}
    }
    if let Some(first) = schema.pointer("/anyOf/0") {
        return sample_value(first);
    }
    if let Some(word) = words(schema).first() {
        return format!("{word:?}");
    }
    match types(schema).first() {
        Some(&"array") => match schema.get("items") {
            Some(items) => format!("[{}]", sample_value(items)),
            None => "[]".into(),
        },
        Some(&"integer" | &"number") => schema.get("minimum").map_or("1".into(), Value::to_string),
        Some(&"boolean") => "true".into(),
        _ => "\"…\"".into(),
    }
}
