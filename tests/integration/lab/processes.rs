//! The command of a lab run: its environment, and the end of all its processes.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{assert_ends, directory, lab};
use crate::support::ProcessBuilder;

/// Starts processes that ignore SIGTERM: one in its own session, one after a double fork, and one in a pipeline.
const STUBBORN: &str = "
    trap '' TERM
    setsid sh -c 'sleep 1000' &
    sh -c 'setsid sh -c \"sleep 1001 & sleep 1002\" & exit' &
    sleep 1003 | sleep 1004 &
    curl -s {url}/
    echo started >&2
";

/// Lab run whose processes have a marker in their environment.
struct MarkedLab {
    marker: String,
    lab: ProcessBuilder,
}

impl MarkedLab {
    fn new(options: &[&str], script: &str) -> Self {
        let directory = directory();
        // The directory is unique. The lab reads its file before the command starts.
        let marker = directory.path().display().to_string();
        let lab = lab(directory.path(), "limited", options, script);
        let _ = directory.keep();
        Self {
            lab: lab.env("LAB_TEST_MARKER", &marker),
            marker,
        }
    }

    /// Returns the command lines of all processes with the marker.
    fn processes(&self) -> Vec<String> {
        let variable = format!("LAB_TEST_MARKER={}\0", self.marker);
        let entries = std::fs::read_dir("/proc").unwrap().map(Result::unwrap);
        let marked = entries.filter(|entry| {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&variable)
        });
        marked
            .map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default())
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .collect()
    }
}

impl Drop for MarkedLab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.marker);
    }
}

#[test]
fn the_command_gets_the_url_in_its_arguments_and_in_its_environment() {
    let script = r#"
        test "$TIDEGATE_URL" = '{url}' || exit 4
        case "$TIDEGATE_URL" in http://127.0.0.1:*[0-9]) ;; *) exit 5 ;; esac
        test -z "$TIDEGATE_CA_FILE" || exit 6
        curl -s --retry 1 "$TIDEGATE_URL/"
        echo to stdout
        echo to stderr >&2
    "#;
    let directory = directory();
    let lab = lab(directory.path(), "limited", &[], script);
    let output = lab.env("TIDEGATE_CA_FILE", "/of/another/program").run();
    assert_ends(&output, 0, &["to stdout\n", "to stderr\n"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(!table.contains("exited with status"), "{table}");
    assert!(!table.contains("to stdout"), "{table}");
}

#[test]
fn a_timeout_ends_processes_that_left_the_group_and_ignore_sigterm() {
    let lab = MarkedLab::new(&["--timeout", "1s"], &format!("{STUBBORN} sleep 1005"));
    let began = Instant::now();
    let output = lab.lab.run();
    let took = began.elapsed();
    assert_ends(&output, 2, &["did not end within 1s", "started"]);
    assert_eq!(lab.processes(), Vec::<String>::new());
    // SIGKILL follows 2 s after SIGTERM.
    assert!(took >= Duration::from_secs(3), "{took:?}");
}

#[test]
fn processes_that_the_command_leaves_behind_are_ended() {
    let script = "setsid sleep 1000 & curl -s --retry 1 {url}/; echo finished";
    let lab = MarkedLab::new(&[], script);
    let output = lab.lab.run();
    assert_ends(&output, 0, &["finished"]);
    assert_eq!(lab.processes(), Vec::<String>::new());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("left running were terminated: 1"), "{table}");
}

#[test]
fn a_process_group_that_obeys_sigterm_can_clean_up() {
    let script = "trap 'echo cleaned up; exit' TERM; curl -s {url}/; while :; do sleep 0.05; done";
    let lab = MarkedLab::new(&["--timeout", "500ms"], script);
    assert_ends(&lab.lab.run(), 2, &["cleaned up"]);
    assert_eq!(lab.processes(), Vec::<String>::new());
}

#[test]
fn sigint_ends_the_lab_and_all_processes() {
    let directory = directory();
    let report = directory.path().join("report.json");
    let options = ["--json", report.to_str().unwrap()];
    let lab = MarkedLab::new(&options, &format!("{STUBBORN} sleep 1005"));
    let mut process = lab.lab.start();
    process.wait_for_line("started");
    // The lab, two shells and at least three of the others.
    assert!(lab.processes().len() >= 6, "{:?}", lab.processes());
    process.signal(Signal::INT);
    assert_eq!(process.wait_for_exit().code(), Some(2), "{}", process.log());
    process.wait_for_line("interrupted by a signal");
    assert_eq!(lab.processes(), Vec::<String>::new());
    // Scenarios that ended before the signal are in the report.
    let report = std::fs::read_to_string(&report).unwrap();
    assert!(report.contains("interrupted by a signal"), "{report}");
}

#[test]
fn a_second_signal_kills_the_processes_at_once() {
    let script = "trap 'echo received TERM' TERM; echo started; while :; do sleep 0.05; done";
    for signal in [Signal::TERM, Signal::HUP] {
        let lab = MarkedLab::new(&[], script);
        let mut process = lab.lab.start();
        process.wait_for_line("started");
        let began = Instant::now();
        process.signal(signal);
        process.wait_for_line("received TERM");
        process.signal(signal);
        assert_eq!(process.wait_for_exit().code(), Some(2), "{}", process.log());
        assert!(began.elapsed() < Duration::from_secs(2));
        assert_eq!(lab.processes(), Vec::<String>::new());
    }
}
