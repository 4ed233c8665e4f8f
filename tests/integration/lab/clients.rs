//! Verdicts on real clients.

use std::process::Command;

use serde_json::Value;

use crate::gateway::client_libraries::script_command;
use crate::support::TIDEGATE;

const SCENARIOS: &str = r#"
[scenario.limited]
steps = ["429 retry-after=1 body=\"{}\"", "200 body=\"{}\""]
at_end = "restart"

[scenario.models]
steps = ["429 retry-after=1 body=\"{}\"", '200 body="{\"object\":\"list\",\"data\":[]}"']
at_end = "restart"

[scenario.customers]
steps = ["503 retry-after=3 body=\"{}\"", '200 body="{\"id\":\"cus_1\",\"object\":\"customer\"}"']
by = "key"
at_end = "restart"

[scenario.stated-3s]
steps = ["429 retry-after=3 body=\"{}\"", "200 body=\"{}\""]

[scenario.longer-than-30s]
steps = ["503 retry-after=35 body=\"{}\"", "200 body=\"{}\""]
"#;

/// JSON report of the lab, and its exit code.
pub(super) struct Judged {
    code: Option<i32>,
    report: Value,
}

impl Judged {
    /// Returns the verdict of a rule.
    pub(super) fn verdict(&self, rule: &str) -> &str {
        let rules = self.report["scenarios"][0]["rules"].as_array();
        let mut rules = rules.expect("the report has rules").iter();
        let found = rules.find(|found| found["id"] == rule);
        let verdict = found.expect("the report has the rule")["verdict"].as_str();
        verdict.expect("a verdict is a string")
    }

    /// Returns the rules that failed.
    fn failed(&self) -> Vec<&str> {
        let rules = self.report["scenarios"][0]["rules"].as_array();
        let rules = rules.expect("the report has rules").iter();
        rules
            .filter(|rule| rule["verdict"] == "fail")
            .filter_map(|rule| rule["id"].as_str())
            .collect()
    }
}

/// Runs a command against a scenario, with further options of the lab.
pub(super) fn judge(scenario: &str, options: &[&str], client: &Command) -> Judged {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = directory.path().join("lab.toml");
    std::fs::write(&config, SCENARIOS).expect("a writable directory");
    let mut lab = Command::new(TIDEGATE);
    lab.args(["lab", "--json", "-", "--scenario", scenario, "--config"])
        .arg(config)
        .args(options)
        .arg("--")
        .arg(client.get_program())
        .args(client.get_args());
    let set = client.get_envs();
    lab.envs(set.filter_map(|(name, value)| Some((name, value?))));
    let output = lab.output().expect("the process starts");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    Judged {
        code: output.status.code(),
        report,
    }
}

/// Runs a client library for a number of operations. Node runs `undici` and `got`, Python the others.
pub(super) fn library(name: &str, operations: usize) -> Command {
    let script = match name {
        "undici" | "got" => "lab_clients.cjs",
        _ => "lab_clients.py",
    };
    let mut command = script_command(script);
    command.args([name, &operations.to_string()]);
    command
}

#[test]
fn curl_follows_retry_after() {
    let mut curl = Command::new("curl");
    curl.args(["-s", "--retry", "3", "{url}/"]);
    let judged = judge("limited", &[], &curl);
    assert_eq!(judged.verdict("retry-after"), "pass");
    assert_eq!(judged.code, Some(0));
}

#[test]
fn urllib3_follows_retry_after_without_jitter() {
    let judged = judge("limited", &[], &library("urllib3", 5));
    assert_eq!(judged.verdict("retry-after"), "pass");
    assert_eq!(judged.verdict("jitter"), "warn");
    assert_eq!(judged.verdict("connection-reuse"), "pass");
    assert_eq!(judged.code, Some(0));
}

#[test]
fn stripe_keeps_its_key_and_ignores_retry_after() {
    let judged = judge("customers", &[], &library("stripe", 3));
    assert_eq!(judged.verdict("same-key"), "pass");
    assert_eq!(judged.verdict("same-body"), "pass");
    assert_eq!(judged.verdict("new-key"), "pass");
    assert_eq!(judged.failed(), ["retry-after"]);
    assert_eq!(judged.code, Some(1));
    let report = judged.report.to_string();
    assert!(!report.contains("sk_test_lab"), "{report}");
}

#[test]
fn openai_undici_and_got_follow_retry_after() {
    for (name, scenario) in [
        ("openai", "models"),
        ("undici", "limited"),
        ("got", "limited"),
    ] {
        let judged = judge(scenario, &[], &library(name, 2));
        assert_eq!(judged.verdict("retry-after"), "pass", "{name}");
        assert_eq!(judged.failed(), [] as [&str; 0], "{name}");
        assert_eq!(judged.code, Some(0), "{name}");
    }
}

#[test]
fn openai_follows_retry_after_in_milliseconds() {
    let judged = judge("llm-limits", &[], &library("openai", 1));
    assert_eq!(judged.verdict("retry-after"), "pass");
    let attempts = &judged.report["scenarios"][0]["operations"][0]["attempts"];
    let gap = attempts[1]["gap_ms"].as_f64().expect("a retry");
    // Retry-After states 2 s, and Retry-After-Ms 1.2 s.
    assert!((1_150.0..1_900.0).contains(&gap), "{gap}");
}

/// Returns the delays of the first operation in seconds.
fn delays(judged: &Judged) -> Vec<f64> {
    let attempts = judged.report["scenarios"][0]["operations"][0]["attempts"].as_array();
    let attempts = attempts.expect("an operation has attempts").iter();
    attempts
        .filter_map(|attempt| Some(attempt["gap_ms"].as_f64()? / 1_000.0))
        .collect()
}

#[test]
fn three_rejections_are_retried_after_1_2_and_4_seconds() {
    let judged = judge("three-rejections", &[], &library("authorization-api", 1));
    assert_eq!(judged.failed(), [] as [&str; 0]);
    let delays = delays(&judged);
    assert_eq!(delays.len(), 3, "{delays:?}");
    for (delay, expected) in delays.iter().zip([1.0, 2.0, 4.0]) {
        assert!(
            (expected * 0.75..expected * 1.25 + 0.5).contains(delay),
            "{delays:?}"
        );
    }
}

#[test]
fn a_rejection_with_retry_after_is_retried_after_10_seconds() {
    let judged = judge("retry-after", &[], &library("authorization-api", 1));
    assert_eq!(judged.verdict("retry-after"), "pass");
    assert_eq!(judged.failed(), [] as [&str; 0]);
    let delays = delays(&judged);
    assert!(
        delays.len() == 1 && (9.95..11.0).contains(&delays[0]),
        "{delays:?}"
    );
}

#[test]
fn five_rejections_make_the_client_give_up() {
    let judged = judge("always-limited", &[], &library("authorization-api", 1));
    assert_eq!(judged.verdict("stops"), "pass");
    assert_eq!(judged.failed(), [] as [&str; 0]);
    assert_eq!(delays(&judged).len(), 4);
}

/// Takes 35 s, so `make lab-clients` runs it and `make test` does not.
#[test]
#[ignore = "takes 35 s"]
fn undici_retries_early_if_retry_after_exceeds_30_seconds() {
    let judged = judge("longer-than-30s", &[], &library("undici", 1));
    assert_eq!(judged.failed(), ["retry-after"]);
    let attempts = &judged.report["scenarios"][0]["operations"][0]["attempts"];
    let gap = attempts[1]["gap_ms"].as_f64().expect("a retry");
    assert!((29_000.0..32_000.0).contains(&gap), "{gap}");
}
