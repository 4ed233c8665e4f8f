//! `tidegate lab` as a user runs it: arguments, exit codes, processes and reports, with curl as the client.

mod census;
mod clients;
mod exit_codes;
mod invalid_input;
mod processes;
mod reports;

use std::path::Path;
use std::process::Output;

use crate::support::{Process, ProcessBuilder};

/// Scenarios that take about a second.
const SCENARIOS: &str = r#"
[scenario.limited]
summary = "one rejection"
steps = ['429 retry-after=1 body=""', '200 body=""']

[scenario.bad-request]
steps = ['400 body=""']
at_end = "repeat"

[scenario.success]
steps = ['200 body=""']
at_end = "repeat"

[scenario.refused]
steps = ['503 body=""', "refuse for=5s", '200 body=""']
"#;

/// A temporary directory that contains the file `lab.toml` with [`SCENARIOS`].
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("lab.toml"), SCENARIOS).unwrap();
    directory
}

/// Prepares `tidegate lab` with the scenarios of a directory. The command is a shell script.
fn lab(directory: &Path, scenario: &str, options: &[&str], script: &str) -> ProcessBuilder {
    let config = directory.join("lab.toml");
    let config = config.to_str().unwrap();
    Process::with(&["lab", "--config", config, "--scenario", scenario])
        .args(options)
        .args(&["--", "sh", "-c", script])
}

fn run(scenario: &str, options: &[&str], script: &str) -> Output {
    lab(directory().path(), scenario, options, script).run()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts the exit code, and that standard error contains all `parts`.
#[track_caller]
fn assert_ends(output: &Output, code: i32, parts: &[&str]) {
    let stderr = stderr(output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{stderr}\n{stdout}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is missing in:\n{stderr}");
    }
}
