//! Tests that the valid configurations, the shipped ones and the reference are accepted and match the schema.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate::config::{self, Environment, Overrides};

fn files_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(&folder).expect("the folder is part of the repository");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    files
}

fn as_json(text: &str) -> Value {
    let table: toml::Table = text.parse().expect("well-formed TOML");
    serde_json::to_value(table).expect("TOML tables are JSON objects")
}

#[test]
fn valid_configurations_are_accepted() {
    let files = files_in("tests/configs/valid");
    assert!(files.len() >= 10, "{}", files.len());
    let packaged = ["debian", "docker", "compose"].map(|it| files_in(&format!("packaging/{it}")));
    assert!(packaged.iter().all(|files| !files.is_empty()));
    let shipped = [files_in("config"), packaged.concat()].concat();
    let variables = [
        ("TEST_HOST", "127.0.0.1"),
        ("TEST_RATE", "5/s"),
        ("TEST_TOKEN", "t0p"),
    ];
    let environment: Environment = variables.into_iter().collect();
    for path in files.iter().chain(&shipped) {
        let loaded = config::load_without_files(path, &environment, &Overrides::default());
        if let Err(errors) = loaded {
            panic!("{}:\n{errors}", path.display());
        }
    }
}

#[test]
fn valid_configurations_match_the_schema() {
    let validator = jsonschema::validator_for(&config::schema()).expect("a schema");
    let mut files = files_in("tests/configs/valid");
    files.extend(files_in("config"));
    for path in files {
        let json = as_json(&fs::read_to_string(&path).expect("a readable file"));
        if let Err(error) = validator.validate(&json) {
            panic!("{}: {} at {}", path.display(), error, error.instance_path());
        }
    }
}

#[test]
fn the_reference_contains_all_keys_with_their_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/reference.toml");
    let text = fs::read_to_string(path).expect("a readable file");
    let uncommented = text.lines().map(|line| commented_out(line).unwrap_or(line));
    let json = as_json(&uncommented.collect::<Vec<_>>().join("\n"));
    let schema = config::schema();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    if let Err(error) = validator.validate(&json) {
        panic!("{error} at {}", error.instance_path());
    }
    let mut compared = 0;
    compare("", &schema, &json, &mut compared);
    assert!(compared > 50, "{compared}");
}

/// Returns the setting or section header in a line such as `#key = value`. Other comments have a space after the `#`.
fn commented_out(line: &str) -> Option<&str> {
    line.strip_prefix('#')
        .filter(|setting| !setting.is_empty() && !setting.starts_with(' '))
}

/// Asserts that a configuration contains all keys of the schema, and that their values are the defaults in the schema.
/// Adds the number of compared keys to `compared`.
fn compare(at: &str, schema: &Value, value: &Value, compared: &mut usize) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, property) in properties.into_iter().flatten() {
        let path = format!("{at}.{key}");
        let value = value
            .get(key)
            .unwrap_or_else(|| panic!("{path} is missing"));
        *compared += 1;
        // The reference shows examples of `limits` and `route`. The default of a table is an empty table.
        let default = property.get("default");
        let default = default.filter(|_| key != "limits" && key != "route");
        if let Some(default) = default.filter(|default| !default.is_object()) {
            assert_eq!(value, default, "{path}");
        }
        compare(&path, property, value, compared);
    }
    let free = schema.get("additionalProperties").filter(|s| s.is_object());
    if let (Some(schema), Some(named)) = (free, value.as_object()) {
        for (name, value) in named {
            compare(&format!("{at}.{name}"), schema, value, compared);
        }
    }
    if let (Some(schema), Some(first)) = (schema.get("items"), value.get(0)) {
        compare(at, schema, first, compared);
    }
}
