//! Tests with the official client libraries of well-known APIs behind the gateway: how the libraries retry, and that no
//! request is executed twice.

mod cookies;
mod huggingface;
mod npm;
mod retry_hints;
mod s3;
mod signatures;
mod stripe;
mod uploads;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::sync::Semaphore;

use crate::support::{Gateway, TIDEGATE, Upstream, full};

/// Returns the directory in which `make clients` has installed the client libraries.
pub(crate) fn environment() -> PathBuf {
    if let Some(directory) = std::env::var_os("TIDEGATE_TEST_CLIENTS") {
        return directory.into();
    }
    let program = Path::new(TIDEGATE);
    let target = program
        .ancestors()
        .nth(2)
        .expect("the program is in a build directory");
    target.join("clients")
}

/// Runs a script of `tests/clients` and returns the JSON that it prints. Node.js runs `.cjs` scripts, and
/// Python runs all other scripts.
pub(crate) fn run(script: &str, arguments: &[&str]) -> Value {
    let output = script_command(script)
        .args(arguments)
        .output()
        .expect("the process starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{script} failed: {printed}\n{errors}"
    );
    serde_json::from_str(&printed)
        .unwrap_or_else(|error| panic!("{script} did not print JSON ({error}): {printed}"))
}

/// Returns the command that runs a script of `tests/clients`.
pub(crate) fn script_command(script: &str) -> Command {
    let clients = environment();
    let program = if Path::new(script).extension() == Some("cjs".as_ref()) {
        clients.join("node/bin/node")
    } else {
        clients.join("bin/python")
    };
    assert!(
        program.exists(),
        "{} does not exist. Run `make clients` with the same CARGO_TARGET_DIR as this test, or name the \
         directory of the installed client libraries in TIDEGATE_TEST_CLIENTS",
        program.display()
    );
    let mut command = Command::new(program);
    command
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/clients")
                .join(script),
        )
        .env("NODE_PATH", clients.join("node_modules"))
        // Requests to the gateway must not go through a proxy configured on this machine: the gateway listens only on
        // the loopback interface.
        .env("NO_PROXY", "*");
    command
}

/// Starts a script that sends requests to `gateway`. `timeout` is the timeout of each attempt, in seconds.
fn spawn_script(
    script: &'static str,
    gateway: &Gateway,
    timeout: &'static str,
) -> tokio::task::JoinHandle<Value> {
    let url = format!("http://{}", gateway.address());
    tokio::task::spawn_blocking(move || run(script, &[&url, timeout]))
}

/// Creates an upstream that counts each request immediately and responds when the test adds a permit. `reply` creates
/// the response from the number of the request, starting at 1.
fn responding_on_permit(reply: fn(usize) -> Value) -> (Upstream, Arc<Semaphore>) {
    let executions = AtomicUsize::new(0);
    Upstream::on_permit(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        full(reply(number).to_string())
    })
}

/// Runs `requests_users.py` in this mode and returns three exchanges: two of the first user and one of the second. An
/// exchange is a JSON object that describes a request and its response.
async fn users(mode: &'static str, gateway: &Gateway) -> [Value; 3] {
    let url = format!("http://{}", gateway.address());
    let exchanges = tokio::task::spawn_blocking(move || run("requests_users.py", &[mode, &url]));
    let exchanges = exchanges.await.expect("the task does not panic");
    serde_json::from_value(exchanges).expect("the script prints three exchanges")
}
