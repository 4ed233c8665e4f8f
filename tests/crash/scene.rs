//! A gateway whose records are in a directory that outlives it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Answer, Process, tidegate};

/// The longest a gateway may take to start.
const RESTART: Duration = Duration::from_secs(5);

/// A configuration and a directory for records, for one gateway after the other.
pub(crate) struct Scene {
    /// Dropped, it is gone with all that is in it.
    _dir: TempDir,
    config: PathBuf,
}

impl Scene {
    /// Keyed requests to anywhere go to `upstream`.
    pub(crate) fn before(upstream: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let store = dir.path().join("store");
        Self::with_store(dir, &store, upstream)
    }

    /// The same with the records in `store`.
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

    /// Starts a gateway.
    pub(crate) fn start(&self, variables: &[(&str, &str)]) -> Process {
        self.start_as(&tidegate(), variables)
    }

    /// Starts a gateway of this build.
    pub(crate) fn start_as(&self, binary: &Path, variables: &[(&str, &str)]) -> Process {
        let config = self.config.display().to_string();
        Process::start_as(binary, variables, &["serve", "--config", &config])
    }

    /// Starts a gateway and waits until it can be asked, which must not take long.
    pub(crate) fn restart(&self) -> Process {
        let started = Instant::now();
        let process = self.start(&[]);
        let _listening = process.client();
        let took = started.elapsed();
        assert!(took < RESTART, "the gateway took {took:?} to start");
        process
    }
}

/// Ends a gateway without any warning.
pub(crate) fn kill(process: &mut Process) {
    process.signal(Signal::KILL);
    process.end();
}

/// Whether an answer is the gateway's own refusal of this kind.
pub(crate) fn is_problem(answer: &Answer, kind: &str) -> bool {
    answer.header("content-type") == "application/problem+json" && answer.problem() == kind
}

/// Whether an answer is the refusal of a key whose outcome is unknown.
pub(crate) fn is_unknown(answer: &Answer) -> bool {
    answer.status == 409 && is_problem(answer, "idempotency-outcome-unknown")
}

/// The text of `/readyz`, which is 200 also while the store is degraded.
pub(crate) async fn readyz(process: &Process) -> String {
    let answer = process.admin().get("/readyz").send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text()
}

/// The value of a metric, given as its name without prefix and its labels.
pub(crate) async fn metric(process: &Process, sample: &str) -> u64 {
    let text = process.admin().get("/metrics").send().await.text();
    let prefix = format!("tidegate_{sample} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value
        .unwrap_or_else(|| panic!("no {sample} in:\n{text}"))
        .parse()
        .unwrap()
}

/// How many lines with `part` in it the gateway has written.
pub(crate) fn lines_with(process: &Process, part: &str) -> usize {
    let lines = process.lines();
    lines.iter().filter(|line| line.contains(part)).count()
}
