//! Generates `config/reference.toml` and the tables in `docs/configuration.md` from the JSON Schema.
//!
//! `make docs` runs the test in this module with `UPDATE_DOCS=1`, which writes the files. Without this variable, the
//! test fails if a file differs from the schema.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::super::schema::{SCHEMA, allowed_words, known_keys, named_values};
use super::*;

#[test]
fn the_generated_documentation_matches_the_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = root.join("docs/configuration.md");
    let text = std::fs::read_to_string(&docs).expect("a readable file");
    for (path, expected) in [
        (root.join("config/reference.toml"), reference()),
        (docs, with_tables(&text)),
    ] {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, expected).expect("a writable file");
            continue;
        }
        let found = std::fs::read_to_string(&path).expect("a readable file");
        assert!(
            found == expected,
            "{} differs from the schema; run `make docs`",
            path.display()
        );
    }
}

#[test]
fn a_configuration_that_sets_every_default_equals_one_that_sets_none() {
    let required = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n[limit.client]\nrate = \"1/s\"\n\
                    [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"client\"]\n";
    let mut explicit = String::new();
    let mut count = 0;
    let mut set_defaults = |section: &Value| {
        let mut lines = String::new();
        for key in known_keys(section) {
            let property = &section["properties"][key];
            // A key that begins with "With" is an error unless another key is set. A table is not a single value.
            if let Some(default) = property.get("default")
                && !default.is_object()
                && !description(property).starts_with("With ")
                && key != "limits"
            {
                writeln!(lines, "{key} = {}", toml_value(default)).expect("a string");
                count += 1;
            }
        }
        lines
    };
    for (header, pointer) in [
        (
            "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]",
            "upstream.NAME",
        ),
        ("[limit.client]\nrate = \"1/s\"", "limit.NAME"),
        (
            "[[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"client\"]",
            "route",
        ),
        ("[server]", "server"),
        ("[client]", "client"),
        ("[store]", "store"),
        ("[respond]", "respond"),
        ("[log]", "log"),
    ] {
        let keys = set_defaults(schema_of(pointer));
        writeln!(explicit, "{header}\n{keys}").expect("a string");
    }
    assert!(count > 30, "{count}");
    let debug = |text: &str| format!("{:#?}", policy(text, &[]));
    assert_eq!(debug(&explicit), debug(required));
}

/// Returns the schema of a table. A path such as `upstream.NAME.retry` is relative to the top level.
fn schema_of(path: &str) -> &'static Value {
    path.split('.').fold(&*SCHEMA, |schema, segment| {
        let schema = schema.get("items").unwrap_or(schema);
        match segment {
            "NAME" => named_values(schema).expect("a table with names"),
            key => &schema["properties"][key],
        }
    })
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// Returns a value of the schema in the syntax of TOML.
fn toml_value(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(toml_value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) if entries.is_empty() => "{}".into(),
        Value::Object(entries) => {
            let entries = entries.iter();
            let entries: Vec<_> = entries
                .map(|(key, value)| format!("{key} = {}", toml_value(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        scalar => scalar.to_string(),
    }
}

fn example(schema: &Value) -> String {
    let of_key = schema.pointer("/examples/0");
    let of_type = schema.pointer("/anyOf/0/examples/0");
    if let Some(example) = of_key.or(of_type) {
        return toml_value(example);
    }
    if let Some(items) = schema.get("items") {
        return format!("[{}]", example(items));
    }
    if let Some(word) = allowed_words(schema).first() {
        return format!("{word:?}");
    }
    panic!("no example: {schema}")
}

/// Returns the words that a key allows, with their descriptions. The list is empty for other keys.
fn words(schema: &Value) -> Vec<(&str, &str)> {
    let schema = schema.get("items").unwrap_or(schema);
    let choices = schema.get("oneOf").and_then(Value::as_array);
    let choices = choices.into_iter().flatten();
    choices
        .filter_map(|choice| Some((choice["const"].as_str()?, description(choice))))
        .collect()
}

// --- config/reference.toml ---

const REFERENCE_HEADER: &str = "\
Every configuration key. This file is generated: `make docs` writes it.

A line such as #key = value shows the default of the key, or an example if the key has no fixed default. Remove the # to
set the key. Keys without a # are required, except `limits`.";

fn reference() -> String {
    let mut text = String::new();
    for (index, paragraph) in REFERENCE_HEADER.split("\n\n").enumerate() {
        if index > 0 {
            text.push_str("#\n");
        }
        comment(&mut text, paragraph);
    }
    for section in known_keys(&SCHEMA) {
        let schema = &SCHEMA["properties"][section];
        match section {
            "upstream" => table(&mut text, "upstream.api", schema_of("upstream.NAME"), ""),
            "limit" => table(&mut text, "limit.device", schema_of("limit.NAME"), ""),
            "scenario" => table(&mut text, "scenario.flaky", schema_of("scenario.NAME"), "#"),
            "route" => table(&mut text, "route", &schema["items"], ""),
            _ => table(&mut text, section, schema, ""),
        }
    }
    text
}

/// Writes a table with all its keys. `mark` is `#` if the table is optional.
fn table(text: &mut String, path: &str, schema: &Value, mark: &str) {
    text.push('\n');
    comment(text, description(schema));
    match path {
        "route" => text.push_str("[[route]]\n"),
        _ => writeln!(text, "{mark}[{path}]").expect("a string"),
    }
    let mut optional_tables = Vec::new();
    for key in known_keys(schema) {
        let property = &schema["properties"][key];
        let path = format!("{path}.{key}");
        // A table with an example is short enough for one line.
        if property.get("properties").is_some() && property.get("examples").is_none() {
            optional_tables.push((path, property));
            continue;
        }
        comment(text, description(property));
        for (word, meaning) in words(property) {
            comment(text, &format!("  {word}: {meaning}"));
        }
        let value = match (path.as_str(), property.get("default")) {
            ("route.limits", _) => "[\"device\"]".into(),
            (_, Some(default)) if !default.is_object() || property.get("examples").is_none() => {
                toml_value(default)
            }
            _ => example(property),
        };
        let required = schema["required"].as_array().into_iter().flatten();
        let is_active = required.into_iter().any(|name| name == key) || path == "route.limits";
        let mark = if is_active { mark } else { "#" };
        writeln!(text, "{mark}{key} = {value}").expect("a string");
    }
    for (path, schema) in optional_tables {
        table(text, &path, schema, "#");
    }
}

/// Writes a text as comment lines of at most 120 characters. Spaces at the start of the text indent every line.
fn comment(text: &mut String, comment: &str) {
    let indent = " ".repeat(comment.len() - comment.trim_start().len());
    let mut line = format!("#{indent}");
    for word in comment.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 120 {
            writeln!(text, "{line}").expect("a string");
            line = format!("#{indent}");
        }
        write!(line, " {word}").expect("a string");
    }
    writeln!(text, "{line}").expect("a string");
}

// --- docs/configuration.md ---

/// Replaces the text between `<!-- keys of PATH -->` and the next empty comment `<!-- -->` by the table of the keys in
/// this section.
fn with_tables(text: &str) -> String {
    const START: &str = "<!-- keys of ";
    const END: &str = "<!-- -->";
    let sections: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix(START)?.strip_suffix(" -->"))
        .collect();
    assert!(sections.len() > 10, "{sections:?}");
    let mut written = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(written, "{line}").expect("a string");
        if let Some(path) = line
            .strip_prefix(START)
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            let schema = schema_of(path);
            let schema = schema.get("items").unwrap_or(schema);
            written
                .push_str("\n| key | type | default | range | meaning |\n|---|---|---|---|---|\n");
            rows(&mut written, path, "", schema, &sections);
            written.push('\n');
            assert!(lines.any(|line| line == END), "{path}: no {END}");
            writeln!(written, "{END}").expect("a string");
        }
    }
    written
}

/// Writes the table rows of a section. The keys of a table that has no section are written as `table.key`.
fn rows(text: &mut String, path: &str, prefix: &str, schema: &Value, sections: &[&str]) {
    let required = schema["required"].as_array().into_iter().flatten();
    let required: Vec<_> = required.filter_map(Value::as_str).collect();
    for key in known_keys(schema) {
        let property = &schema["properties"][key];
        let name = format!("{prefix}{key}");
        let default = match property.get("default") {
            _ if required.contains(&key) => "required".into(),
            Some(Value::Object(_)) if property.get("properties").is_some() => "–".into(),
            Some(default) => format!("`{}`", toml_value(default)),
            None => "–".into(),
        };
        let mut meaning = description(property).replace('\n', " ");
        for (word, description) in words(property) {
            write!(meaning, " `{word}`: {}", description.replace('\n', " ")).expect("a string");
        }
        let meaning = meaning.replace('|', "\\|");
        writeln!(
            text,
            "| `{name}` | {} | {default} | {} | {meaning} |",
            type_of(property),
            range(property)
        )
        .expect("a string");
        let nested = match property.pointer("/items/anyOf/1") {
            Some(entry) => Some((format!("{name}[]."), entry)),
            None => Some((format!("{name}."), property)),
        };
        let has_section = sections.contains(&format!("{path}.{key}").as_str());
        if let Some((prefix, table)) = nested.filter(|_| !has_section)
            && table.get("properties").is_some()
        {
            rows(text, path, &prefix, table, sections);
        }
    }
}

fn type_of(schema: &Value) -> String {
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        let types: Vec<_> = choices.iter().map(type_of).collect();
        return types.join(" or ");
    }
    if let Some(title) = schema.get("title").and_then(Value::as_str) {
        return title.into();
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", type_of(&schema["items"])),
        Some("object") => "table".into(),
        Some(name) => name.into(),
        None => "string".into(),
    }
}

fn range(schema: &Value) -> String {
    let words = words(schema);
    if !words.is_empty() {
        let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        return words.join(", ");
    }
    let bound = |name: &str| schema.get(name).map(toml_value);
    let zero = (schema["format"] == "HumanDuration").then(|| "\"0s\"".to_owned());
    let least = bound("formatMinimum").or(bound("minimum")).or(zero);
    let most = bound("formatMaximum").or(bound("maximum"));
    let is_plain_size = schema["format"] == "Size" && least.as_deref() == Some("1");
    match (bound("exclusiveMinimum"), least, most) {
        _ if is_plain_size => String::new(),
        (Some(above), _, Some(most)) => format!("above {above}, up to {most}"),
        (_, Some(least), Some(most)) => format!("{least} to {most}"),
        (_, Some(least), None) => format!("from {least}"),
        (_, None, Some(most)) => format!("up to {most}"),
        _ => match (bound("minItems"), bound("maxItems")) {
            (_, Some(most)) => format!("at most {most} entries"),
            (Some(_), _) => "not empty".into(),
            _ => String::new(),
        },
    }
}
