//! Mistakes in configurations, and the messages about them, in the file `mistakes.txt`.
//!
//! A case is a name after `===`, lines of a configuration, and the problems after `=>`. Text after `=>` in the same line
//! has to be in the help of one of them. Lines before the configuration that start with `$ ` set environment variables.
//! A configuration without upstream or route gets those of [`completed`], unless it begins with `# complete`.
//!
//! `make docs` writes the problems of all cases. Read the difference before you commit it.

use std::fmt::Write as _;
use std::path::Path;

use super::super::{ConfigProblem, Environment, Overrides, Severity, parse};

const UPSTREAM: &str = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n";

const LIMIT: &str = "[limit.device]\nrate = \"10/s\"\n";

const ROUTE: &str = "[[route]]\nname = \"all\"\npath = \"/\"\n";

/// Adds to a configuration the sections that it lacks, at its end.
fn completed(config: &str) -> String {
    let mut text = config.to_owned();
    if config.starts_with("# complete") {
        return text;
    }
    if !config.contains("[upstream") {
        text += UPSTREAM;
    }
    if !config.contains("[limit") && config.contains("limits") {
        text += LIMIT;
    }
    if !config.contains("[route") {
        text += ROUTE;
        if config.contains("[limit.device]") {
            text += "limits = [\"device\"]\n";
        }
    }
    text
}

fn problems(case: &str) -> Vec<ConfigProblem> {
    let variables = case.lines().filter_map(|line| line.strip_prefix("$ "));
    let config = case.lines().filter(|line| !line.starts_with("$ "));
    let config = config.collect::<Vec<_>>().join("\n") + "\n";
    let shared = ["TEST_HOST=127.0.0.1", "TEST_TOKEN=t0p"].into_iter();
    let env: Environment = shared
        .chain(variables)
        .map(|variable| variable.split_once('=').expect("a name and a value"))
        .collect();
    match parse(
        "tidegate.toml",
        &completed(&config),
        &env,
        &Overrides::default(),
    ) {
        Ok(loaded) => loaded.warnings,
        Err(errors) => errors.problems().to_vec(),
    }
}

fn shown(problem: &ConfigProblem) -> String {
    let ConfigProblem {
        file,
        line,
        column,
        title,
        help,
        offending,
        ..
    } = problem;
    let file = match file.as_str() {
        "tidegate.toml" => String::new(),
        variable => format!("{variable}:"),
    };
    let offending = match offending.as_str() {
        "" => String::new(),
        text => format!("  > {text}\n"),
    };
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    format!("{file}{line}:{column} {severity}: {title}\n{offending}  help: {help}\n")
}

#[test]
fn the_messages_of_common_mistakes_are_as_reviewed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/tests/mistakes.txt");
    let reviewed = std::fs::read_to_string(&path).expect("a readable file");
    let mut current = String::new();
    let mut cases = 0;
    let mut unhelpful = Vec::new();
    for text in reviewed.split("=== ").skip(1) {
        cases += 1;
        let (name, case) = text.split_once('\n').expect("a name");
        let (case, reviewed) = case.split_once("\n=>").expect("`=>`");
        let remedy = reviewed.lines().next().unwrap_or_default();
        let found = problems(case);
        let mut helps = found.iter().map(|problem| &problem.help);
        if !helps.any(|help| help.contains(remedy.trim())) {
            unhelpful.push(format!("{name}: no help contains `{remedy}`"));
        }
        let found: String = found.iter().map(shown).collect();
        writeln!(current, "=== {name}\n{case}\n=>{remedy}\n{found}").expect("a string");
    }
    assert!(cases > 250, "{cases}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &current).expect("a writable file");
    }
    assert!(unhelpful.is_empty(), "{unhelpful:#?}");
    let reviewed = std::fs::read_to_string(&path).expect("a readable file");
    let mut lines = reviewed.lines().zip(current.lines());
    let difference = lines.find(|(reviewed, current)| reviewed != current);
    assert_eq!(difference, None, "run `make docs` and read the difference");
    assert_eq!(reviewed.len(), current.len(), "run `make docs`");
}
