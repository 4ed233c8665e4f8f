//! Test that each type name is defined only once in the crate.

use std::collections::BTreeMap;
use std::fs;

use super::{root, sources};

/// Names that can be defined several times by convention: the arguments of a command, and the error and result types of
/// a module.
const CONVENTIONAL: &[&str] = &["Args", "Error", "Result"];

#[test]
fn each_type_name_is_defined_once() {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in sources() {
        let text = fs::read_to_string(root().join(&file)).expect("the source file is readable");
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = defined_type(line) {
                let place = format!("src/{}:{}", file.display(), index + 1);
                definitions.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    assert!(definitions.len() > 300, "{}", definitions.len());
    let repeated: Vec<_> = definitions
        .iter()
        .filter(|(name, places)| places.len() > 1 && !CONVENTIONAL.contains(&name.as_str()))
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect();
    assert!(
        repeated.is_empty(),
        "type names with several definitions; rename all but one:\n{}",
        repeated.join("\n")
    );
}

#[test]
fn definitions_are_found_in_every_form() {
    assert_eq!(defined_type("pub(crate) struct Shard<T> {"), Some("Shard"));
    assert_eq!(defined_type("    enum State {"), Some("State"));
    assert_eq!(defined_type("pub trait Buckets: Send {"), Some("Buckets"));
    assert_eq!(defined_type("type Key = [u8; 16];"), Some("Key"));
    assert_eq!(defined_type("    type Error = io::Error;"), None);
    assert_eq!(defined_type("/// enum State"), None);
    assert_eq!(defined_type("let enum_name = 1;"), None);
}

/// Returns the name of the type or trait that a line of source code defines. Indented `type` lines are associated
/// types, which are not definitions.
fn defined_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let is_indented = code.len() < line.len();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => code,
    };
    let keywords = ["struct ", "enum ", "union ", "trait ", "type "];
    let keyword = keywords.into_iter().find(|word| code.starts_with(word))?;
    if keyword == "type " && is_indented {
        return None;
    }
    let name = &code[keyword.len()..];
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}
