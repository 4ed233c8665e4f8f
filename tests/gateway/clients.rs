//! Official clients of well-known APIs against the gateway: how they retry, and that nothing is executed twice.

mod hints;
mod huggingface;
mod stripe;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The directory in which `make clients` installs the clients.
fn environment() -> PathBuf {
    if let Some(named) = std::env::var_os("TIDEGATE_TEST_CLIENTS") {
        return named.into();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let target = program.ancestors().nth(2).expect("a build directory");
    target.join("clients")
}

/// Runs a script of `tests/clients` to its end, with Python or (`.cjs`) with Node, and returns the JSON that it
/// prints.
fn run(script: &str, arguments: &[&str]) -> Value {
    let clients = environment();
    let program = if Path::new(script).extension() == Some("cjs".as_ref()) {
        clients.join("node/bin/node")
    } else {
        clients.join("bin/python")
    };
    assert!(
        program.exists(),
        "{} does not exist: run `make clients`, with the same CARGO_TARGET_DIR if there is one, or name the \
         directory of the clients in TIDEGATE_TEST_CLIENTS",
        program.display()
    );
    let output = Command::new(program)
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/clients")
                .join(script),
        )
        .args(arguments)
        .env("NODE_PATH", clients.join("node_modules"))
        // The gateway is on loopback, which a proxy of the machine cannot reach.
        .env("NO_PROXY", "*")
        .output()
        .expect("a process");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {printed}\n{errors}");
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{script}: {error} in {printed}"))
}
