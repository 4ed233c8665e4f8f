//! Configurations as people write them: those that must be accepted, and those that must be refused
//! with the right word in the right place.
//!
//! A file in `configs/invalid` opens with one pair of comment lines for each fault it has:
//!
//! ```text
//! # expect: LINE:COLUMN text that must appear
//! # remedy: text that must appear in the help
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate::config::{self, ConfigErrors, Environment, Loaded, Overrides, Problem, Severity};

fn load(path: &Path) -> Result<Loaded, ConfigErrors> {
    let environment: Environment = [
        ("TEST_HOST", "127.0.0.1"),
        ("TEST_RATE", "5/s"),
        ("TEST_TOKEN", "t0p"),
    ]
    .into_iter()
    .collect();
    config::load(path, &environment, &Overrides::default())
}

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
fn every_valid_configuration_becomes_a_policy() {
    let files = files_in("tests/configs/valid");
    assert!(files.len() >= 10, "{}", files.len());
    for path in files.iter().chain(&files_in("config")) {
        if let Err(errors) = load(path) {
            panic!("{}:\n{errors}", path.display());
        }
    }
}

#[test]
fn every_valid_configuration_fits_the_schema() {
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

/// One fault, as the head of a file announces it.
struct Expected<'t> {
    line: usize,
    column: usize,
    text: &'t str,
    remedy: &'t str,
}

impl Expected<'_> {
    fn is(&self, problem: &Problem) -> bool {
        let rendered = problem.to_string();
        let place = format!("{}:{}:{}", problem.file, self.line, self.column);
        (problem.line, problem.column) == (self.line, self.column)
            && problem.title.contains(self.text)
            && problem.help.contains(self.remedy)
            && rendered.contains(&place)
            && rendered.contains(&problem.offending)
    }
}

fn expectations(text: &str) -> Vec<Expected<'_>> {
    let mut lines = text.lines();
    let mut expected = Vec::new();
    while let Some(line) = lines
        .next()
        .and_then(|line| line.strip_prefix("# expect: "))
    {
        let (place, text) = line.split_once(' ').expect("a place and a text");
        let (line, column) = place.split_once(':').expect("a line and a column");
        let remedy = lines
            .next()
            .and_then(|line| line.strip_prefix("# remedy: "))
            .expect("a remedy below each fault");
        expected.push(Expected {
            line: line.parse().expect("a line"),
            column: column.parse().expect("a column"),
            text,
            remedy,
        });
    }
    expected
}

#[test]
fn every_fault_is_named_in_its_place_with_its_remedy() {
    let files = files_in("tests/configs/invalid");
    assert!(files.len() >= 25, "{}", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a readable file");
        let expected = expectations(&text);
        assert!(!expected.is_empty(), "{}: expects nothing", path.display());
        let Err(errors) = load(&path) else {
            wrong.push(format!("{}: accepted", path.display()));
            continue;
        };
        let found: Vec<_> = errors
            .problems()
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .collect();
        let all_there = expected
            .iter()
            .all(|fault| found.iter().any(|problem| fault.is(problem)));
        if found.len() != expected.len() || !all_there {
            wrong.push(format!("{errors}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_reference_has_every_key_there_is() {
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

/// The setting or section header in a comment that holds one.
fn commented_out(line: &str) -> Option<&str> {
    let setting = line.strip_prefix("# ")?;
    let key = setting.split(" = ").next()?;
    let is_key = key != setting
        && key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b"_2".contains(&b));
    let is_header = setting.starts_with('[') && setting.ends_with(']');
    (is_key || is_header).then_some(setting)
}

/// Every key of the schema is there, at its default where it has one.
fn compare(at: &str, schema: &Value, value: &Value, compared: &mut usize) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, property) in properties.into_iter().flatten() {
        let path = format!("{at}.{key}");
        let value = value
            .get(key)
            .unwrap_or_else(|| panic!("{path} is missing"));
        *compared += 1;
        if let Some(default) = property.get("default").filter(|_| key != "limits") {
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
