//! Parts of error messages: names of types, and examples of configuration lines.

use serde_json::Value;

use super::{allowed_words, types};

/// Returns the name of a type as error messages show it. `type_name` is the name of the type in JSON Schema.
pub(super) fn describe_type(type_name: &str) -> &'static str {
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

/// Returns an example of a configuration key with a valid value, as it is written in a file.
pub(super) fn example(key: &str, schema: &Value) -> String {
    let types = types(schema);
    if types == ["object"] {
        return match key.rsplit_once('.') {
            Some((_, name)) if schema.get("required").is_none() => {
                format!("`{name} = {{}}` for the defaults, or a `[{key}]` section")
            }
            _ => format!("a `[{key}]` section"),
        };
    }
    if types == ["array"] && schema.pointer("/items/properties").is_some() {
        return format!("`[[{key}]]`, with two brackets, above each entry");
    }
    format!("`{key} = {}`", example_value(schema))
}

fn example_value(schema: &Value) -> String {
    let example = schema.pointer("/examples/0").or(schema.get("default"));
    match example {
        Some(Value::Array(items)) if items.is_empty() => {}
        Some(example) => return example.to_string(),
        None => {}
    }
    if let Some(first) = schema.pointer("/anyOf/0") {
        return example_value(first);
    }
    if let Some(word) = allowed_words(schema).first() {
        return format!("{word:?}");
    }
    match types(schema).first() {
        Some(&"array") => match schema.get("items") {
            Some(items) => format!("[{}]", example_value(items)),
            None => "[]".into(),
        },
        Some(&"integer" | &"number") => schema.get("minimum").map_or("1".into(), Value::to_string),
        Some(&"boolean") => "true".into(),
        _ => "\"…\"".into(),
    }
}
