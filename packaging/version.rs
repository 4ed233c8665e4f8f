//! Build script: sets the version that `tidegate --version` prints, with the commit and the target.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=packaging/version.rs");
    println!("cargo::rerun-if-env-changed=TIDEGATE_COMMIT");
    // The log of HEAD changes with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    // A build without the repository, such as that of a container image, gets the commit as a variable.
    let commit = env::var("TIDEGATE_COMMIT").ok();
    let commit = commit.filter(|commit| !commit.is_empty());
    let commit = commit.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let commit = commit.unwrap_or_else(|| "unknown commit".into());
    let [version, target] =
        ["CARGO_PKG_VERSION", "TARGET"].map(|name| env::var(name).unwrap_or_default());
    println!("cargo::rustc-env=TIDEGATE_VERSION={version} ({commit}, {target})");
    println!("cargo::rustc-env=TIDEGATE_COMMIT={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
