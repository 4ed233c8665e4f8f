//! Clients that people use, as they come, against the gateway: they retry, and nothing happens twice.

mod stripe;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where `make clients` has installed them.
fn environment() -> PathBuf {
    if let Some(named) = std::env::var_os("TIDEGATE_TEST_CLIENTS") {
        return named.into();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let target = program.ancestors().nth(2).expect("a build directory");
    target.join("clients")
}

/// Runs a script of `tests/clients` to its end, and returns the JSON that it prints.
fn run(script: &str, arguments: &[&str]) -> Value {
    let python = environment().join("bin/python");
    assert!(
        python.exists(),
        "the clients that this test runs are not installed in {}: run `make clients`, with the same \
         CARGO_TARGET_DIR if there is one, or name their directory in TIDEGATE_TEST_CLIENTS",
        environment().display()
    );
    let output = Command::new(python)
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/clients")
                .join(script),
        )
        .args(arguments)
        // The gateway is on this machine, whatever way leads out of it.
        .env("NO_PROXY", "*")
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}\n{complained}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{script}: {error} in {said}"))
}
