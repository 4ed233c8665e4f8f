//! Parts of the JSON Schema of the configuration: sections, keys, types and allowed words.

use serde_json::Value;

use super::SCHEMA;

/// Returns the schema of the section with this path; `None` if there is no such section.
pub(in super::super) fn schema_at(section: &str) -> Option<&'static Value> {
    let section = without_index(section);
    let mut parts = section.split('.').filter(|part| !part.is_empty());
    parts.try_fold(&*SCHEMA, |schema, part| {
        let property = property(schema, part)?;
        Some(property.get("items").unwrap_or(property))
    })
}

/// Returns the path of a section without the index of a list, as in `route[0].idempotency`.
pub(in super::super) fn without_index(section: &str) -> String {
    match (section.find('['), section.find(']')) {
        (Some(open), Some(close)) if open < close => {
            format!("{}{}", &section[..open], &section[close + 1..])
        }
        _ => section.to_owned(),
    }
}

/// Returns the configuration keys that the schema of a table defines.
pub(in super::super) fn known_keys(schema: &Value) -> impl Iterator<Item = &str> + Clone {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(|properties| properties.keys().map(String::as_str))
}

/// Returns the schema of a configuration key, or `None` if the key is unknown. `schema` is the schema of the table that
/// contains the key.
pub(in super::super) fn property<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    match schema.get("properties").and_then(|all| all.get(key)) {
        Some(property) => Some(property),
        None => named_values(schema),
    }
}

/// Returns the schema of the values in a table whose keys are names that the user chooses, such as `[limit]`. `None`
/// means that the table has fixed keys.
pub(in super::super) fn named_values(schema: &Value) -> Option<&Value> {
    schema
        .get("additionalProperties")
        .filter(|values| values.is_object())
}

/// Returns the types that a schema allows, by their JSON Schema names.
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

/// Whether a schema allows the type with the JSON Schema name `found`. A schema for numbers also allows integers.
pub(in super::super) fn accepts_type(schema: &Value, found: &str) -> bool {
    let matches = |allowed: &str| allowed == found || (allowed, found) == ("number", "integer");
    types(schema).into_iter().any(matches)
}

/// Returns the strings that a schema allows. The list is empty if the schema does not enumerate them.
pub(in super::super) fn allowed_words(schema: &Value) -> Vec<&str> {
    let choices = schema.get("oneOf").and_then(Value::as_array);
    let described = choices
        .into_iter()
        .flatten()
        .filter_map(|choice| choice.get("const")?.as_str());
    described.chain(strings(schema.get("enum"))).collect()
}

/// Returns the strings in a list of the schema, such as `required`.
pub(in super::super) fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}
