//! Test with npm and the registry Verdaccio: scoped packages, whose paths contain `%2f`, have the same results behind
//! the gateway as behind nginx. `make registry` installs Verdaccio and runs this test.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::environment;
use crate::support::{Gateway, KilledOnDrop, Nginx, free_address};

const CONFIG: &str = "
storage: ./storage
auth: { htpasswd: { file: ./htpasswd } }
packages: { '**': { access: $all, publish: $all } }
log: { type: stdout, level: error }
";

/// Running npm registry, which stores packages in a temporary directory. It stops when it is dropped.
struct Registry {
    _process: KilledOnDrop,
    address: SocketAddr,
    _directory: TempDir,
}

impl Registry {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("the directory is created");
        fs::write(directory.path().join("config.yaml"), CONFIG).expect("the file is written");
        let address = free_address();
        let program = environment().join("registry/node_modules/verdaccio/bin/verdaccio");
        assert!(program.exists(), "run this test with `make registry`");
        let mut command = node();
        command
            .arg(program)
            .args(["--config", "config.yaml", "--listen", &address.to_string()])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            _process: KilledOnDrop::listening(&mut command, address),
            address,
            _directory: directory,
        }
    }
}

fn node() -> Command {
    Command::new(environment().join("node/bin/node"))
}

/// Runs npm in `directory` with the registry at `url`, and returns its output.
fn npm(directory: &Path, url: &str, arguments: &[&str]) -> String {
    let host = url.strip_prefix("http:").expect("an http URL");
    let program = environment().join("node/lib/node_modules/npm/bin/npm-cli.js");
    let output = node()
        .arg(program)
        .args(arguments)
        .arg(format!("--registry={url}/"))
        // npm publishes only with a token. The registry accepts any.
        .arg(format!("--{host}/:_authToken=any"))
        .arg(format!("--cache={}", directory.join("cache").display()))
        .args([
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--loglevel=error",
        ])
        .env("NO_PROXY", "*")
        .current_dir(directory)
        .output()
        .expect("the process starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "npm {arguments:?} failed: {errors}"
    );
    String::from_utf8(output.stdout).expect("the output is text")
}

/// Publishes the package `@scope/name` through the proxy at `url`, queries it and installs it. Returns the results.
fn use_package(url: &str, scope: &str) -> [String; 3] {
    let directory = tempfile::tempdir().expect("the directory is created");
    let [package, project] = ["package", "project"].map(|name| directory.path().join(name));
    for folder in [&package, &project] {
        fs::create_dir(folder).expect("the directory is created");
    }
    let name = format!("@{scope}/name");
    let manifest = format!(r#"{{"name":"{name}","version":"1.2.3","main":"index.js"}}"#);
    fs::write(package.join("package.json"), manifest).expect("the file is written");
    fs::write(package.join("index.js"), "module.exports = 42;").expect("the file is written");
    fs::write(project.join("package.json"), "{}").expect("the file is written");

    let published = npm(&package, url, &["publish", "--access=public"]);
    let viewed = npm(&project, url, &["view", &name, "--json"]);
    let viewed: Value = serde_json::from_str(&viewed).expect("the output is JSON");
    assert_eq!(viewed["dist-tags"]["latest"], "1.2.3", "{viewed}");
    let tarball = viewed["dist"]["tarball"].as_str().expect("a URL");
    npm(&project, url, &["install", &name]);
    let installed = project.join("node_modules").join(&name).join("index.js");
    let installed = fs::read_to_string(installed).expect("the package is installed");
    [published, tarball.replace(url, ""), installed].map(|text| text.replace(scope, "SCOPE"))
}

#[tokio::test]
#[ignore = "needs Verdaccio, which `make registry` installs"]
async fn scoped_npm_packages_have_the_same_results_behind_the_gateway_as_behind_nginx() {
    let registry = Registry::start();
    let nginx = Nginx::start(registry.address);
    let registry_url = format!("http://{}", registry.address);
    let gateway = Gateway::proxying("").upstream_url(&registry_url).start();
    let url = format!("http://{}", gateway.address());
    let through_gateway = tokio::task::spawn_blocking(move || use_package(&url, "first"));
    let through_gateway = through_gateway.await.expect("the task does not panic");
    let url = nginx.url();
    let through_nginx = tokio::task::spawn_blocking(move || use_package(&url, "other"));
    let through_nginx = through_nginx.await.expect("the task does not panic");
    assert_eq!(through_gateway, through_nginx);
    assert_eq!(through_gateway[2], "module.exports = 42;");
}
