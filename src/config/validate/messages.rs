//! Parts of error messages: names of types, and examples of configuration lines.

use serde_json::Value;

use super::super::scalar;
use super::super::schema::{allowed_words, named_values, types};
use super::super::tree::quote;
use super::correct::correct;

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

/// Returns what a value of this schema must be, as error messages show it.
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

/// Converts a value of the wrong type to the value that its author probably means, as it is written in a file. `written`
/// is the text in the file, and `found` the JSON Schema name of its type. The bounds of the schema are not checked.
pub(super) fn convert(written: &str, found: &str, schema: &Value) -> Option<String> {
    let unquoted = written.trim_matches(['"', '\'']);
    let allows = |type_name| types(schema).contains(&type_name);
    match found {
        "integer" => {
            let format = string_format(schema)?;
            let text = match format {
                "Timeout" | "HumanDuration" => format!("{written}s"),
                "RateText" => format!("{written}/s"),
                "Listen" => format!("127.0.0.1:{written}"),
                _ => return None,
            };
            scalar::check(format, &text).ok()?;
            Some(format!("\"{text}\""))
        }
        "string" if allows("boolean") => match unquoted.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some("true".into()),
            "false" | "no" | "off" => Some("false".into()),
            _ => None,
        },
        "string" if allows("integer") || allows("number") => {
            let whole = unquoted
                .parse::<u32>()
                .ok()
                .map(|number| number.to_string());
            let decimal = || {
                unquoted
                    .parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite())
            };
            whole.or_else(|| {
                decimal()
                    .filter(|_| allows("number"))
                    .map(|number| format!("{number:?}"))
            })
        }
        "string" if allows("array") => {
            let items = schema.get("items")?;
            let entries = unquoted.split(',').map(|entry| {
                let entry = entry.trim();
                match string_format(items) {
                    Some(format) if scalar::check(format, entry).is_err() => {
                        correct(format, entry).map(|entry| quote(&entry))
                    }
                    _ => Some(quote(entry)),
                }
            });
            let entries = entries.collect::<Option<Vec<_>>>()?.join(", ");
            types(items)
                .contains(&"string")
                .then(|| format!("[{entries}]"))
        }
        _ => None,
    }
}

/// Returns the name of the scalar type that a schema allows as a string.
pub(in super::super) fn string_format(schema: &Value) -> Option<&str> {
    let choices = schema.get("anyOf").and_then(Value::as_array);
    let choices = choices.map_or(std::slice::from_ref(schema), Vec::as_slice);
    choices
        .iter()
        .find_map(|choice| choice.get("format")?.as_str())
}

/// Returns an example of a configuration key with a valid value, as it is written in a file.
pub(in super::super) fn example(key: &str, schema: &Value) -> String {
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

/// Returns the header of a section whose name the user chooses, such as `[limit.NAME]`.
pub(in super::super) fn named_section(table: &str) -> String {
    format!("`[{table}.NAME]`, with a name of your choice")
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
