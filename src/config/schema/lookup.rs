//! Lookups in the JSON Schema of the configuration.

use serde_json::Value;

pub(in super::super) fn has_key(schema: &Value, key: &str) -> bool {
    match schema {
        Value::Object(entries) => {
            let properties = entries.get("properties");
            properties.is_some_and(|all| all.get(key).is_some())
                || entries.values().any(|entry| has_key(entry, key))
        }
        Value::Array(items) => items.iter().any(|item| has_key(item, key)),
        _ => false,
    }
}

pub(in super::super) fn known_keys(schema: &Value) -> impl Iterator<Item = &str> + Clone {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(|properties| properties.keys().map(String::as_str))
}

/// `schema` is that of the table with the key.
pub(in super::super) fn property<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    match schema.get("properties").and_then(|all| all.get(key)) {
        Some(property) => Some(property),
        None => named_values(schema),
    }
}

/// `None` means that the table has fixed keys, and not names that the user chooses.
pub(in super::super) fn named_values(schema: &Value) -> Option<&Value> {
    schema
        .get("additionalProperties")
        .filter(|values| values.is_object())
}

/// By their JSON Schema names.
pub(in super::super) fn types(schema: &Value) -> Vec<&str> {
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        return choices.iter().flat_map(types).collect();
    }
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["string"],
    }
}

/// `found` is a JSON Schema name. A schema for numbers also allows integers.
pub(in super::super) fn accepts_type(schema: &Value, found: &str) -> bool {
    let matches = |allowed: &str| allowed == found || (allowed, found) == ("number", "integer");
    types(schema).into_iter().any(matches)
}

/// Empty if the schema does not enumerate them.
pub(in super::super) fn allowed_words(schema: &Value) -> Vec<&str> {
    let choices = schema.get("oneOf").and_then(Value::as_array);
    let described = choices
        .into_iter()
        .flatten()
        .filter_map(|choice| choice.get("const")?.as_str());
    described.chain(strings(schema.get("enum"))).collect()
}

pub(in super::super) fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}
