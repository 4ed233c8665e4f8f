//! Parts of error messages: names of types, and examples of configuration lines.

use serde_json::Value;

use super::super::schema::{allowed_words, named_values, types};

/// `type_name` is that of JSON Schema.
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

pub(super) fn describe(schema: &Value) -> String {
    let wanted = match string_format(schema) {
        Some("Timeout" | "HumanDuration") => "a duration with a unit, in quotes",
        Some("RateText") => "a rate with a unit, in quotes",
        _ => {
            let types: Vec<_> = types(schema).into_iter().map(describe_type).collect();
            return types.join(" or ");
        }
    };
    wanted.into()
}

pub(in super::super) fn string_format(schema: &Value) -> Option<&str> {
    let choices = schema.get("anyOf").and_then(Value::as_array);
    let choices = choices.map_or(std::slice::from_ref(schema), Vec::as_slice);
    choices
        .iter()
        .find_map(|choice| choice.get("format")?.as_str())
}

pub(super) fn example(key: &str, schema: &Value) -> String {
    let types = types(schema);
    if named_values(schema).is_some() {
        return named_section(key);
    }
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

pub(super) fn named_section(table: &str) -> String {
    format!("`[{table}.NAME]`, with a name of your choice")
}

/// For a key that allows a list.
pub(in super::super) fn example_list(schema: &Value) -> String {
    let one = example_value(schema);
    if one.starts_with('[') {
        one
    } else {
        format!("[{one}]")
    }
}

fn example_value(schema: &Value) -> String {
    let default = schema.get("default");
    let text = default.filter(|default| default.is_string());
    let example = text.or(schema.pointer("/examples/0")).or(default);
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
