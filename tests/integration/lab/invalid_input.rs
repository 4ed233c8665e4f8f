//! Invalid input of `tidegate lab`: each ends with exit code 2 and a message with a remedy, before any client runs.

use std::path::Path;

use super::{assert_ends, directory, lab};
use crate::support::{Process, ProcessBuilder};

/// Asserts that the lab ends with exit code 2 and these texts, and that the command was not started.
#[track_caller]
fn assert_rejected(directory: &Path, lab: &ProcessBuilder, parts: &[&str]) {
    assert_ends(&lab.run(), 2, parts);
    assert!(!directory.join("started").exists());
}

/// Returns a script that leaves a trace in a directory.
fn traced(directory: &Path) -> String {
    format!("touch {}/started", directory.display())
}

#[test]
fn an_unknown_scenario_is_rejected_with_a_suggestion() {
    let directory = directory();
    let path = directory.path();
    let lab = |name: &str| lab(path, name, &[], &traced(path));
    assert_rejected(
        path,
        &lab("limted"),
        &["`limted`", "did you mean `limited`"],
    );
    assert_rejected(path, &lab("retry-aftr"), &["did you mean `retry-after`"]);
    let twice = ["--scenario", "limited"];
    let twice = super::lab(path, "limited", &twice, &traced(path));
    assert_rejected(path, &twice, &["`limited` is selected twice"]);
}

#[test]
fn a_malformed_step_is_located_in_the_file() {
    let directory = directory();
    let path = directory.path();
    let text = "[scenario.a]\nsteps = [\n    \"503\",\n    \"429 retry-afer=2\",\n]\n";
    std::fs::write(path.join("lab.toml"), text).unwrap();
    let parts = ["lab.toml:4:10", "did you mean `retry-after`"];
    assert_rejected(path, &lab(path, "a", &[], &traced(path)), &parts);
    let config = path.join("lab.toml");
    let list = Process::with(&["lab", "list", "--config", config.to_str().unwrap()]);
    assert_rejected(path, &list, &parts);
}

#[test]
fn a_file_that_cannot_be_read_or_written_is_rejected() {
    let directory = directory();
    let path = directory.path();
    let script = traced(path);
    let missing = path.join("missing/file");
    let missing = missing.to_str().unwrap();
    for option in ["--json", "--junit", "--markdown", "--html"] {
        let lab = lab(path, "limited", &[option, missing], &script);
        assert_rejected(path, &lab, &["cannot write the report", missing]);
    }
    let lab_with = |options: &[&str]| lab(path, "limited", options, &script);
    let lab = lab_with(&["--baseline", missing]);
    assert_rejected(path, &lab, &["cannot use the baseline", missing]);
    let baseline = path.join("lab.toml");
    let lab = lab_with(&["--baseline", baseline.to_str().unwrap()]);
    assert_rejected(path, &lab, &["not a JSON report"]);
    let lab = lab_with(&["--json", "-", "--html", "-"]);
    assert_rejected(path, &lab, &["two reports"]);
    let lab = Process::with(&["lab", "--config", missing, "--scenario", "a", "--", "true"]);
    assert_rejected(path, &lab, &["cannot read", missing]);
}

#[test]
fn a_command_that_cannot_be_started_is_explained_also_in_the_report() {
    let directory = directory();
    let path = directory.path();
    let report = path.join("report.json");
    let plain = path.join("plain");
    std::fs::write(&plain, "text").unwrap();
    let script = path.join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    for (command, part) in [
        ("no-such-command", "no directory in PATH"),
        ("./no-such-file", "does not exist"),
        (plain.to_str().unwrap(), "not executable"),
        (script.to_str().unwrap(), "interpreter"),
    ] {
        let lab = Process::with(&["lab", "--scenario", "outage"]);
        let lab = lab.args(&["--json", report.to_str().unwrap(), "--", command]);
        let message = format!("cannot start the command `{command}`");
        assert_ends(&lab.run(), 2, &[&message, part]);
        // A report of an earlier run must not look like the result of this one.
        let written = std::fs::read_to_string(&report).unwrap();
        assert!(written.contains("cannot start the command"), "{written}");
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    for (arguments, part) in [
        (&["--scenario", "outage"][..], "COMMAND"),
        (&["--", "true"], "--scenario"),
        (&["--suite", "all", "--", "true"], "standard"),
        (
            &["--suite", "standard", "--scenario", "outage", "--", "true"],
            "cannot be used with",
        ),
        (
            &["--scenario", "outage", "--timeout", "0s", "--", "true"],
            "longer than 0",
        ),
        (
            &["--scenario", "outage", "--timeout", "soon", "--", "true"],
            "such as 90s",
        ),
        (
            &["--scenario", "outage", "--upstream", "x", "--", "true"],
            "--upstream",
        ),
    ] {
        let output = Process::with(&["lab"]).args(arguments).run();
        assert_ends(&output, 2, &[part]);
    }
}
