//! Tests that other programs read the reports: JUnit and Markdown libraries from PyPI, and Chromium.
//!
//! `make test` installs these programs. The module name starts with `needs_`, so `make quick` skips the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fixture::report;
use crate::lab::report::document::Document;
use crate::lab::report::{html, junit, markdown};

/// Returns the directory in which `make clients` has installed the readers.
fn clients() -> PathBuf {
    if let Some(directory) = std::env::var_os("TIDEGATE_TEST_CLIENTS") {
        return directory.into();
    }
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3);
    target
        .expect("the program is in a build directory")
        .join("clients")
}

/// Runs a script of `tests/clients` and returns the JSON that it prints.
fn run(program: &str, script: &str, arguments: &[&Path]) -> Value {
    let program = clients().join(program);
    assert!(
        program.exists(),
        "{} does not exist: run `make clients`",
        program.display()
    );
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let output = Command::new(program)
        .arg(scripts.join(script))
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} failed: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes the report in all formats for other programs to a new directory.
fn written() -> TempDir {
    let directory = TempDir::new().unwrap();
    let document = Document::of(&report());
    for (name, text) in [
        ("report.xml", junit::render(&document)),
        ("report.md", markdown::render(&document)),
        ("report.html", html::render(&document)),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn third_party_libraries_read_junit_and_markdown() {
    let directory = written();
    let read = run("bin/python", "read_reports.py", &[directory.path()]);
    check_junit(&read["junit"]);
    check_markdown(&read["markdown"]);
}

fn check_junit(suites: &Value) {
    let counts = |index: usize| {
        ["name", "tests", "failures", "errors", "skipped"].map(|field| suites[index][field].clone())
    };
    assert_eq!(json!(counts(0)), json!(["rate-limited", 4, 1, 0, 1]));
    assert_eq!(json!(counts(1)), json!(["executed-then-lost", 2, 0, 0, 0]));
    assert_eq!(json!(counts(2)), json!(["long-wait", 1, 0, 1, 0]));
    assert_eq!(suites[0]["timestamp"], "2026-10-21T07:28:00");
    let cases = &suites[0]["cases"];
    assert_eq!(cases[0]["name"], "retry-after: waits for the stated time");
    assert_eq!(cases[0]["class"], "checkout-sdk.rate-limited");
    let failure = &cases[0]["results"][0];
    assert_eq!(failure["type"], "Failure");
    let text = failure["text"].as_str().unwrap();
    assert!(text.contains("429 at 0.105 s states 2 s"), "{text}");
    assert_eq!(cases[1]["results"], json!([]));
    assert_eq!(cases[2]["results"][0]["type"], "Skipped");
    assert_eq!(cases[3]["results"], json!([]));
    let output = cases[3]["output"].as_str().unwrap();
    assert!(
        output.starts_with("warning: opens a connection"),
        "{output}"
    );
    let output = suites[1]["cases"][0]["output"].as_str().unwrap();
    assert!(
        output.contains("<script>alert(1)</script> ]]> | `code` </details> \\u{1}\\u{fffe}"),
        "{output}"
    );
    assert_eq!(suites[2]["cases"][0]["results"][0]["type"], "Error");
}

fn check_markdown(document: &Value) {
    let tables = document["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 3, "{tables:?}");
    // Every row has the three cells of its header, whatever its text contains.
    for row in tables.iter().flat_map(|table| table.as_array().unwrap()) {
        assert_eq!(row.as_array().unwrap().len(), 3, "{row}");
    }
    assert_eq!(
        tables[2][1][2],
        "GET /a|b?<script>alert(1)</script>&x=`y` [link](http://x) @user #12 ]]> * _ \\"
    );
    // No text of a request becomes a link, code, emphasis, an image or an HTML element. `strong` is "Not judged".
    assert_eq!(
        document["inline"],
        json!(["html_inline", "strong_close", "strong_open", "text"])
    );
    assert_eq!(document["html"], json!(["<!-- -->"]));
    let heading = document["headings"][0].as_str().unwrap();
    assert!(heading.starts_with("Retry lab: checkout-sdk"), "{heading}");
    let blocks = document["blocks"].as_array().unwrap();
    assert_eq!(
        blocks.len(),
        2,
        "each scenario with evidence has one HTML block: {blocks:?}"
    );
    for block in blocks {
        let block = block.as_str().unwrap();
        assert!(block.starts_with("<details>") && block.trim_end().ends_with("</details>"));
        assert_eq!(block.matches("</details>").count(), 1);
        assert!(!block.contains("<script>"));
    }
}

/// The screenshots are written to the directory `TIDEGATE_SCREENSHOTS`, if this variable is set.
#[test]
fn chromium_shows_the_page_without_errors_in_light_and_dark_and_on_a_phone() {
    let directory = written();
    let page = directory.path().join("report.html");
    let screenshots = std::env::var_os("TIDEGATE_SCREENSHOTS").map(PathBuf::from);
    let mut arguments = vec![page.as_path()];
    arguments.extend(screenshots.as_deref());
    let seen = run("node/bin/node", "browse_page.cjs", &arguments);
    assert_eq!(seen["messages"], json!([]));
    assert_eq!(seen["requests"].as_array().unwrap().len(), 1, "{seen}");
    let views = seen["views"].as_array().unwrap();
    assert_eq!(views.len(), 4);
    for view in views {
        assert_eq!(view["title"], "Retries of checkout-sdk 2.1.0: fail");
        assert_eq!(
            view["overflow"], 0,
            "the page is wider than the screen: {view}"
        );
        assert_eq!(
            view["overlaps"], 0,
            "labels of the timeline overlap: {view}"
        );
        assert_eq!(view["marks"], 16);
        for none in ["untitled", "scripts", "external"] {
            assert_eq!(view[none], 0, "{none}: {view}");
        }
        // WCAG 2.2 requires a contrast of 4.5 for text.
        assert!(view["contrast"].as_f64().unwrap() >= 4.5, "{view}");
        assert!(view["smallest"].as_f64().unwrap() >= 11.0, "{view}");
    }
    let background = |index: usize| views[index]["background"].as_str().unwrap();
    assert_ne!(background(0), background(1), "dark and light are the same");
    assert_eq!(background(0), background(2));
    assert_eq!(background(1), background(3));
}
