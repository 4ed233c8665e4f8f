//! Configuration and store directory that several gateway processes use, one after the other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{ClientResponse, Process};

/// Maximum time between the start of a gateway and its readiness. A slower start fails the test.
const MAX_START: Duration = Duration::from_secs(5);

/// Returns the path of the gateway under test. This is `CRASH_TIDEGATE` if it is set, and otherwise the binary that is
/// built with the tests.
fn tidegate() -> PathBuf {
    match std::env::var_os("CRASH_TIDEGATE") {
        Some(path) => path.into(),
        None => env!("CARGO_BIN_EXE_tidegate").into(),
    }
}

/// A configuration file and a store directory. Several gateway processes can use them, one after the other.
pub(crate) struct Setup {
    /// The directory of the configuration file. It is deleted when the value is dropped.
    _dir: TempDir,
    config: PathBuf,
}

impl Setup {
    /// Creates a configuration that forwards all paths to `upstream` and accepts idempotency keys.
    pub(crate) fn new(upstream: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let store = dir.path().join("store");
        Self::with_store(dir, &store, upstream)
    }

    /// Creates a configuration like [`Self::new`], but in the directory `dir` and with the store directory `store`.
    pub(crate) fn with_store(dir: TempDir, store: &Path, upstream: &str) -> Self {
        let config = dir.path().join("tidegate.toml");
        let text = format!(
            r#"
            server = {{ listen = "127.0.0.1:0" }}
            admin = {{ listen = "127.0.0.1:0" }}
            log = {{ access = false }}
            store = {{ backend = "disk", path = "{}", max_keys = 10_000_000, max_bytes = "16GiB" }}
            upstream.api.servers = ["{upstream}"]
            [[route]]
            name = "all"
            path = "/"
            idempotency = {{ max_keys_per_scope = 10_000_000 }}
            "#,
            store.display()
        );
        std::fs::write(&config, text).unwrap();
        Self { _dir: dir, config }
    }

    /// Starts the gateway under test with these environment variables. Does not wait until the gateway listens.
    pub(crate) fn start(&self, variables: &[(&str, &str)]) -> Process {
        self.start_binary(&tidegate(), variables)
    }

    /// Starts the gateway `binary` with these environment variables. Does not wait until the gateway listens.
    pub(crate) fn start_binary(&self, binary: &Path, variables: &[(&str, &str)]) -> Process {
        let config = self.config.display().to_string();
        Process::start_binary(binary, variables, &["serve", "--config", &config])
    }

    /// Starts a gateway and waits until it listens. Panics if this takes longer than [`MAX_START`].
    pub(crate) fn restart(&self) -> Process {
        let started = Instant::now();
        let process = self.start(&[]);
        let _listening = process.client();
        let took = started.elapsed();
        assert!(took < MAX_START, "the gateway took {took:?} to start");
        process
    }
}

/// Kills a gateway with SIGKILL and waits until the process has ended.
pub(crate) fn kill(process: &mut Process) {
    process.signal(Signal::KILL);
    process.wait_for_exit();
}

/// Returns whether the response is a problem document (RFC 9457) of the type `kind`.
pub(crate) fn is_problem(response: &ClientResponse, kind: &str) -> bool {
    response.header("content-type") == "application/problem+json" && response.problem() == kind
}

/// Returns whether the response is the problem `idempotency-outcome-unknown`.
pub(crate) fn is_unknown(response: &ClientResponse) -> bool {
    response.status == 409 && is_problem(response, "idempotency-outcome-unknown")
}

/// Returns the body of `/readyz`. Asserts that the status is 200, also if the store is degraded.
pub(crate) async fn readyz(process: &Process) -> String {
    let response = process.admin().get("/readyz").send().await;
    assert_eq!(response.status, 200, "{response:?}");
    response.text()
}

/// Returns the value of a metric. `sample` is the metric name without the prefix `tidegate_`, followed by the labels.
pub(crate) async fn metric(process: &Process, sample: &str) -> u64 {
    let text = process.admin().get("/metrics").send().await.text();
    let prefix = format!("tidegate_{sample} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value
        .unwrap_or_else(|| panic!("no {sample} in:\n{text}"))
        .parse()
        .unwrap()
}

/// Returns the number of log lines that contain `part`.
pub(crate) fn lines_with(process: &Process, part: &str) -> usize {
    let lines = process.lines();
    lines.iter().filter(|line| line.contains(part)).count()
}
