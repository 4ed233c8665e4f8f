//! Reports of `tidegate lab`, TLS and baselines.

use std::path::Path;

use serde_json::Value;

use super::{assert_ends, directory, lab, run};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn each_format_is_written_to_its_file() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let formats = ["json", "junit", "markdown", "html"];
    let mut options = vec!["--name".to_owned(), "curl".into()];
    options.extend(["--client-version".to_owned(), "7.88".into()]);
    for format in formats {
        options.extend([format!("--{format}"), path(format)]);
    }
    // The old content is longer than any report.
    std::fs::write(path("json"), "x".repeat(1 << 20)).unwrap();
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let script = "curl -s --retry 1 '{url}/?token=s3cr3t'";
    let output = lab(directory.path(), "limited", &options, script).run();
    assert_ends(&output, 0, &[]);
    let [json, junit, markdown, html] = formats.map(|format| read(path(format).as_ref()));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["scenarios"][0]["name"], "limited", "{json}");
    assert!(junit.contains("<testsuite"), "{junit}");
    assert!(
        markdown.contains("7.88") && markdown.contains("limited"),
        "{markdown}"
    );
    assert!(html.contains("<html") && html.contains("limited"), "{html}");
    for text in [json.to_string(), junit, markdown, html] {
        assert!(!text.contains("s3cr3t"), "{text}");
    }
}

#[test]
fn secrets_are_included_on_request() {
    let script = "curl -s --retry 1 -X PUT -d 'b0dy' '{url}/?token=s3cr3t'";
    let output = run("limited", &["--include-secrets", "--json", "-"], script);
    assert_ends(&output, 0, &[]);
    let json = String::from_utf8(output.stdout).unwrap();
    assert!(json.contains("s3cr3t") && json.contains("b0dy"), "{json}");
}

#[test]
fn a_dash_writes_only_the_report_to_standard_output() {
    let output = run(
        "limited",
        &["--json", "-"],
        "curl -s --retry 1 {url}/; echo noise",
    );
    assert_ends(&output, 0, &["noise", "limited: pass"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["scenarios"][0]["name"], "limited", "{json}");
}

#[test]
fn a_verdict_that_is_worse_than_in_the_baseline_is_exit_code_1() {
    let directory = directory();
    let json = directory.path().join("old.json");
    let json = json.to_str().unwrap();
    let lab =
        |options: &[&str], script: &str| lab(directory.path(), "limited", options, script).run();
    let reuses = "curl -s --retry 1 {url}/";
    let reconnects = "curl -s {url}/; sleep 1.1; curl -s {url}/";
    assert_ends(&lab(&["--json", json], reuses), 0, &[]);
    assert_ends(&lab(&["--baseline", json], reuses), 0, &[]);
    // Without the baseline, a warning is exit code 0.
    assert_ends(&lab(&[], reconnects), 0, &[]);
    let parts = [
        "worse than the baseline",
        "limited: connection-reuse was pass and is warn",
    ];
    // The baseline can be replaced by the same run.
    let output = lab(&["--baseline", json, "--json", json], reconnects);
    assert_ends(&output, 1, &parts);
    assert_ends(&lab(&["--baseline", json], reconnects), 0, &[]);
}

#[test]
fn tls_has_a_private_ca_that_curl_verifies() {
    let directory = directory();
    let script = r#"
        case "$TIDEGATE_URL" in https://127.0.0.1:*) ;; *) exit 4 ;; esac
        echo "directory $(dirname "$TIDEGATE_CA_FILE")"
        echo "mode $(stat -c %a "$(dirname "$TIDEGATE_CA_FILE")")"
        curl -sS {url}/ 2>&1 | grep -i certificate || exit 5
        curl -sS --retry 1 -w 'HTTP version %{http_version}' --cacert "$TIDEGATE_CA_FILE" \
            "https://localhost:${TIDEGATE_URL##*:}/"
    "#;
    let output = lab(directory.path(), "limited", &["--tls"], script).run();
    assert_ends(&output, 0, &["mode 700\n", "HTTP version 2"]);
    let stderr = super::stderr(&output);
    let (_, rest) = stderr.split_once("directory ").unwrap();
    let certificates = rest.lines().next().unwrap();
    assert!(certificates.contains("tidegate-lab-"), "{stderr}");
    assert!(!Path::new(certificates).exists(), "{certificates} remains");
}

#[test]
fn scenarios_of_a_file_are_listed_with_the_shipped_ones() {
    let directory = directory();
    let config = directory.path().join("lab.toml");
    let list = crate::support::Process::run(&["lab", "list", "--config", config.to_str().unwrap()]);
    let list = String::from_utf8(list.stdout).unwrap();
    let line = |name: &str| {
        list.lines()
            .find(|line| line.split(' ').next() == Some(name))
    };
    assert!(
        line("limited").unwrap().ends_with("  one rejection"),
        "{list}"
    );
    assert_eq!(line("success"), Some("success"), "{list}");
    assert!(line("retry-after").is_some(), "{list}");
}

#[test]
fn passed_requests_reach_the_upstream() {
    let upstream = crate::support::Upstream::replying(201);
    let script = "curl -s --retry 1 {url}/orders; sleep 0.1; curl -s {url}/orders";
    let output = run("limited", &["--upstream", &upstream.url()], script);
    assert_ends(&output, 0, &[]);
    // The second request is the last step of the scenario, and the third passes.
    assert_eq!(upstream.last().target, "/orders");
}
