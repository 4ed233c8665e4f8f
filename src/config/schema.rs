//! JSON Schema of the configuration, generated from the types in [`file`](super::file).

mod lookup;

use std::sync::LazyLock;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::Value;

use super::file::File;

pub(super) use lookup::{
    accepts_type, allowed_words, has_key, known_keys, named_values, property, strings, types,
};

/// Returns the JSON Schema (draft 2020-12) of the configuration.
pub fn schema() -> Value {
    SCHEMA.clone()
}

pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(OptionalKeys)
        .into_generator()
        .into_root_schema_for::<File>()
        .into()
});

pub(super) static NUMBERS: LazyLock<Vec<String>> = LazyLock::new(|| {
    fn collect(value: &Value, numbers: &mut Vec<String>) {
        match value {
            Value::Number(number) => numbers.push(number.to_string()),
            Value::Array(items) => items.iter().for_each(|item| collect(item, numbers)),
            Value::Object(entries) => entries.values().for_each(|entry| collect(entry, numbers)),
            _ => {}
        }
    }
    let mut numbers = Vec::new();
    collect(&SCHEMA, &mut numbers);
    numbers
});

/// schemars requires a key that has a default, and allows `null`, which TOML does not have.
#[derive(Clone)]
struct OptionalKeys;

impl Transform for OptionalKeys {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(object) = schema.as_object_mut() else {
            return;
        };
        if let Some(Value::Array(mut required)) = object.remove("required") {
            let has_default = |key: &Value| {
                let property = object.get("properties")?.get(key.as_str()?)?;
                property.get("default")
            };
            required.retain(|key| has_default(key).is_none());
            if !required.is_empty() {
                object.insert("required".into(), required.into());
            }
        }
        if let Some(Value::Array(types)) = object.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                object.insert("type".into(), only);
            }
        }
        if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
            choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
            if let [Value::Object(only)] = choices.as_slice() {
                let only = only.clone();
                object.remove("anyOf");
                for (key, value) in only {
                    object.entry(key).or_insert(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scalar;
    use super::*;

    fn visit(value: &Value, look: &mut impl FnMut(&serde_json::Map<String, Value>)) {
        match value {
            Value::Object(object) => {
                look(object);
                object.values().for_each(|value| visit(value, look));
            }
            Value::Array(items) => items.iter().for_each(|value| visit(value, look)),
            _ => {}
        }
    }

    #[test]
    fn every_table_with_fixed_keys_rejects_unknown_keys() {
        let mut tables = 0;
        visit(&schema(), &mut |object| {
            if object.contains_key("properties") && object.contains_key("type") {
                assert_eq!(object.get("additionalProperties"), Some(&false.into()));
                tables += 1;
            }
        });
        assert!(tables >= 10, "{tables}");
    }

    #[test]
    fn every_key_has_a_description() {
        visit(&schema(), &mut |object| {
            let Some(Value::Object(properties)) = object.get("properties") else {
                return;
            };
            for (key, property) in properties {
                assert!(property.get("description").is_some(), "{key}");
            }
        });
    }

    #[test]
    fn every_format_has_a_check() {
        let known: Vec<_> = scalar::schemas()
            .iter()
            .map(|schema| schema.get("format").cloned())
            .collect();
        let mut formats = 0;
        visit(&schema(), &mut |object| {
            if let Some(Value::String(format)) = object.get("format") {
                formats += 1;
                let is_numeric = format.starts_with("uint") || format == "double";
                let is_known = known.contains(&Some(Value::String(format.clone())));
                assert!(is_numeric || is_known, "{format}");
            }
        });
        assert!(formats > 30, "{formats}");
    }

    #[test]
    fn the_schema_contains_no_null() {
        assert!(!schema().to_string().contains("\"null\""));
    }
}
