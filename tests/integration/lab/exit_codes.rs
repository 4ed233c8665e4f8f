//! Exit codes of `tidegate lab`: 0 pass, 1 fail, 2 could not judge.

use super::{assert_ends, lab, run};
use crate::support::Process;

/// Sends two identical requests: an early retry where the first is rejected with a time, and a wrong retry where it is
/// rejected with 400. Requests within 5 ms on different connections could be concurrent, so the second one waits.
const RETRY_AFTER_100_MS: &str = "curl -s {url}/; sleep 0.1; curl -s {url}/";

#[test]
fn a_client_that_waits_for_the_stated_time_passes() {
    let output = run("limited", &[], "curl -s --retry 2 {url}/");
    assert_ends(&output, 0, &[]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("limited: one rejection"), "{table}");
    assert!(table.contains("pass  waits for the stated time"), "{table}");
}

#[test]
fn a_client_that_retries_early_or_retries_400_fails() {
    let output = run("limited", &[], RETRY_AFTER_100_MS);
    assert_ends(&output, 1, &[]);
    let output = run("bad-request", &[], RETRY_AFTER_100_MS);
    assert_ends(&output, 1, &[]);
}

#[test]
fn a_command_that_sends_no_request_is_not_judged() {
    let output = run("success", &[], "true");
    let parts = [
        "sent no request to http://127.0.0.1:",
        "TIDEGATE_URL",
        "{url}",
    ];
    assert_ends(&output, 2, &parts);
}

#[test]
fn a_command_that_does_not_end_is_judged_by_what_it_sent() {
    let limit = ["--timeout", "1500ms"];
    let output = run(
        "bad-request",
        &limit,
        &format!("{RETRY_AFTER_100_MS}; exec sleep 1000"),
    );
    assert_ends(&output, 1, &["did not end within 1s 500ms", "--timeout"]);
    let output = run("limited", &limit, "curl -s {url}/; exec sleep 1000");
    assert_ends(&output, 2, &["did not end within 1s 500ms"]);
    let output = run("limited", &limit, "exec sleep 1000");
    assert_ends(&output, 2, &["did not end within", "sent no request"]);
}

#[test]
fn the_exit_status_of_the_command_is_a_note() {
    let output = run("limited", &[], "curl -s --retry 2 {url}/; exit 3");
    assert_ends(&output, 0, &[]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("exited with status 3"), "{table}");
    let output = run("limited", &[], "curl -s --retry 2 {url}/; kill -9 $$");
    assert_ends(&output, 0, &[]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("ended by signal 9"), "{table}");
}

#[test]
fn the_worst_scenario_decides() {
    let directory = super::directory();
    let run = |scenario: &str, other: &str, script: &str| {
        let options = ["--scenario", other];
        let output = lab(directory.path(), scenario, &options, script).run();
        let table = String::from_utf8(output.stdout.clone()).unwrap();
        (output, table)
    };
    let (output, table) = run(
        "bad-request",
        "limited",
        "curl -s --retry 1 {url}/; sleep 0.1; curl -s {url}/",
    );
    assert_ends(&output, 1, &[]);
    assert!(
        table.contains("bad-request: fail") && table.contains("limited: pass"),
        "{table}"
    );
    // The client sends requests only in the first scenario.
    let once = format!(
        "cd {}; mkdir once && curl -s --retry 1 {{url}}/",
        directory.path().display()
    );
    let (output, table) = run("limited", "success", &once);
    assert_ends(
        &output,
        2,
        &["error: scenario success: the command sent no request"],
    );
    assert!(table.contains("limited: pass"), "{table}");
}

#[test]
fn the_standard_suite_announces_each_scenario_with_its_time_limit() {
    let listed = Process::run(&["lab", "list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names: Vec<_> = listed
        .lines()
        .map(|line| line.split_once("  ").expect("a line has a summary").0)
        .collect();
    assert!(names.len() >= 10, "{listed}");
    let output = Process::run(&["lab", "--suite", "standard", "--", "true"]);
    assert_ends(&output, 2, &[]);
    let stderr = super::stderr(&output);
    for name in names {
        let line = format!("scenario {name}: running the command, at most ");
        assert!(stderr.contains(&line), "{name}: {stderr}");
        let failure = format!("error: scenario {name}: the command sent no request");
        assert!(stderr.contains(&failure), "{name}: {stderr}");
    }
    assert!(stderr.contains("scenario long-wait: running the command, at most 3m 10s"));
}

#[test]
fn a_client_can_be_refused_connections() {
    // curl retries 503 after a second, and does not retry a refused connection, which is exit status 7.
    let script = "curl -sS --retry 1 -H 'Connection: close' {url}/";
    let output = run("refused", &[], script);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("exited with status 7"), "{table}");
    let stderr = super::stderr(&output);
    assert!(stderr.contains("Failed to connect"), "{stderr}");
}
