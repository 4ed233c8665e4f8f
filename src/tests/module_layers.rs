//! List of the module layers of the crate, and the test that enforces them.
//!
//! A module imports only from layers below its own, also in its tests. Modules of one layer do not import each other.
//! The compiler does not reject cycles between modules. So the test reads the paths that start with `crate::` or
//! `super::` from the source files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{root, sources};

/// Names of the top-level modules by layer, from the bottom layer to the top layer.
const LAYERS: &[&[&str]] = &[
    &["clock", "failpoint", "metrics"],
    &["respond", "retry"],
    &["http"],
    &["request"],
    &["idempotency", "scenario", "throttle", "upstream"],
    &["store"],
    &["config"],
    &["pipeline"],
    &["lab", "server"],
    &["admin"],
    &["cli", "embed"],
    &["internals"],
];

#[test]
fn a_module_imports_only_from_layers_below_it() {
    let mut violations = Vec::new();
    for file in sources() {
        let module = module_path(&file);
        let Some(own) = module.first().and_then(|name| layer(name)) else {
            continue;
        };
        let text = fs::read_to_string(root().join(&file)).expect("the source file is readable");
        for import in imports(&text, &module) {
            let Some(other) = layer(&import) else {
                continue;
            };
            if import != module[0] && other >= own {
                violations.push(format!(
                    "src/{}: imports `{import}` (src/{import}.rs), which is {} `{}`.",
                    file.display(),
                    if other > own {
                        "above"
                    } else {
                        "in the same layer as"
                    },
                    module[0],
                ));
            }
        }
    }
    assert!(
        violations.is_empty(),
        "{}\nMove the shared code to a layer below both modules, or pass it as a parameter. The layers are in \
         src/tests/module_layers.rs.",
        violations.join("\n")
    );
}

#[test]
fn every_module_has_a_layer() {
    let text = fs::read_to_string(root().join("lib.rs")).expect("the source file is readable");
    let declared: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        })
        .filter(|name| *name != "tests")
        .collect();
    let layered: BTreeSet<&str> = LAYERS.iter().flat_map(|layer| *layer).copied().collect();
    assert_eq!(
        declared, layered,
        "the modules in lib.rs and LAYERS in src/tests/module_layers.rs differ"
    );
}

#[test]
fn imports_are_found_in_every_form() {
    let module = ["upstream", "breaker", "rule"].map(String::from);
    let found = |text: &str| imports(text, &module).into_iter().collect::<Vec<_>>();
    assert_eq!(found("use crate::clock::Clock;"), ["clock"]);
    assert_eq!(
        found("use crate::{http1, store::{disk, memory}};"),
        ["http1", "store"]
    );
    assert_eq!(found("let now = crate::clock::now();"), ["clock"]);
    assert_eq!(
        found("use super::super::super::pipeline::GatewayState;"),
        ["pipeline"]
    );
    assert_eq!(
        found("use super::super::super::super::admin::Admin;"),
        ["admin"]
    );
    assert_eq!(
        found("let url = \"http://a\"; crate::clock::now();"),
        ["clock"]
    );
    assert!(found("use super::super::balance::Choice;").is_empty());
    assert!(found("// crate::admin\n/// [`crate::admin`]").is_empty());
}

/// Returns the index of the layer that contains a top-level module; `None` if no layer contains it.
fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Returns the module path of a source file, for example `["route", "pattern"]` for `route/pattern.rs`.
fn module_path(file: &Path) -> Vec<String> {
    let parts = file.with_extension("");
    let parts = parts.components();
    parts
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect()
}

/// Returns the top-level modules that the source text of `module` imports. Comments are ignored.
fn imports(text: &str, module: &[String]) -> BTreeSet<String> {
    let code: Vec<&str> = text
        .lines()
        .map(|line| match line.find("//") {
            // The text after `://` is not removed, because it belongs to a URL and not to a comment.
            Some(at) if !line[..at].ends_with(':') => &line[..at],
            _ => line,
        })
        .collect();
    let code = code.join("\n");
    let from_root = code
        .match_indices("crate::")
        .map(|(at, path)| at + path.len());
    // A path that leaves the top-level module has as many `super::` as the module path has parts.
    let supers = "super::".repeat(module.len());
    let from_parents = code.match_indices(&supers).map(|(at, path)| {
        // Further `super::` are skipped, because a path in an inline module, such as `mod tests`, starts with more of
        // them.
        let end = at + path.len();
        end + (code[end..].len() - code[end..].trim_start_matches("super::").len())
    });
    from_root
        .chain(from_parents)
        .flat_map(|at| first_names(&code[at..]))
        .collect()
}

/// Returns the first name of an import path. For a group in braces, returns the first name of each path in the group.
fn first_names(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return name(path).into_iter().collect();
    };
    let mut depth = 0;
    let mut names = Vec::new();
    let mut is_start = true;
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if is_start && !character.is_whitespace() => {
                names.extend(name(&group[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

/// Returns the lower-case identifier at the start of `text`; `None` if there is none.
fn name(text: &str) -> Option<String> {
    let is_part =
        |character: char| character.is_ascii_lowercase() || matches!(character, '_' | '0'..='9');
    let name: String = text
        .chars()
        .take_while(|character| is_part(*character))
        .collect();
    (!name.is_empty()).then_some(name)
}
