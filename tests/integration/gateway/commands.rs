//! Tests of the commands `check`, `explain` and `schema`.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::Process;

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name);
    path.to_str().expect("the path is UTF-8").to_owned()
}

pub(super) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_accepts_every_shipped_configuration() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the directory is readable")
        .map(|entry| entry.expect("the directory entry is readable").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    assert!(
        files.len() >= 4,
        "the directory `config` has fewer than four TOML files: {files:?}"
    );
    for file in files {
        let name = file.to_str().expect("the path is UTF-8");
        let output = Process::run(&["check", name]);
        assert!(
            output.status.success(),
            "the command failed: {}",
            stderr(&output)
        );
        assert!(stdout(&output).starts_with(&format!("{name}: ok (")));
        let warnings = stderr(&output);
        if name.ends_with("demo.toml") {
            // The demo sets no idempotency scope, so `check` warns about the default scope.
            assert_eq!(warnings.matches("warning: ").count(), 1, "{warnings}");
            assert!(
                warnings.contains("without `scope`"),
                "unexpected warnings: {warnings}"
            );
        } else {
            assert_eq!(warnings, "", "{name}");
        }
    }
}

#[test]
fn every_configuration_error_is_reported_with_location_and_text() {
    let directory = tempfile::tempdir().expect("the directory is created");
    let path = directory.path().join("bad.toml");
    let config = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
                  [limit.device]\nrate = \"1/fortnight\"\nbrust = 3\n\
                  [[route]]\nname = \"all\"\npath = \"/(\"\nlimits = [\"devise\"]\n";
    std::fs::write(&path, config).expect("the file is written");
    let name = path.to_str().expect("the path is UTF-8");
    for arguments in [&["check", name][..], &["serve", "--config", name]] {
        let output = Process::run(arguments);
        assert!(!output.status.success());
        let assert_in_guide = stderr(&output);
        for part in [
            "bad.toml:4:8",
            "1/fortnight",
            "bad.toml:5:1",
            "brust",
            "bad.toml:8:",
            "devise",
        ] {
            assert!(
                assert_in_guide.contains(part),
                "the output does not contain {part:?}:\n{assert_in_guide}"
            );
        }
    }
}

#[test]
fn a_missing_configuration_file_is_named() {
    let output = Process::run(&["check", "/nowhere/gateway.toml"]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("/nowhere/gateway.toml"));
}

#[test]
fn explain_shows_client_route_limits_and_outcome() {
    let explain = |more: &[&str]| {
        let file = shipped("client-endpoints.toml");
        let mut arguments = vec!["explain", "--config", &file];
        arguments.extend(more);
        let output = Process::run(&arguments);
        assert!(
            output.status.success(),
            "the command failed: {}",
            stderr(&output)
        );
        stdout(&output)
    };
    let throttled = explain(&[
        "--method",
        "POST",
        "--path",
        "/%6f/client/register?x=1",
        "--header",
        "X-Forwarded-For: 6.6.6.6, 203.0.113.7",
        "--peer",
        "10.1.2.3",
    ]);
    for part in [
        "203.0.113.7",
        "/o/client/register",
        "dynamic-client-registration",
        "device",
        "http://127.0.0.1:9000",
        "retry      never, unless",
        "breaker    opens for at most 1s after 5 connect timeouts",
        "4 at once",
        "429",
    ] {
        assert!(
            throttled.contains(part),
            "the output does not contain {part:?}:\n{throttled}"
        );
    }
    let untrusted = explain(&[
        "--path",
        "/other",
        "--header",
        "X-Forwarded-For: 203.0.113.7",
        "--peer",
        "192.0.2.1",
    ]);
    assert!(untrusted.contains("192.0.2.1") && !untrusted.contains("203.0.113.7"));
    assert!(untrusted.contains("rest") && untrusted.contains("no rate limit applies"));
    assert!(explain(&["--path", "/a%00"]).contains("400"));
    let decoded = explain(&["--path", "/users/%40me"]);
    assert!(
        decoded.contains("literal    /users/@me (route rest)"),
        "{decoded}"
    );
    let strict = explain(&["--path", "/x/..%2fo/client/register?query=up{job=\"x\"}"]);
    for part in [
        "path       /x/..%2Fo/client/register\n",
        "literal    /x/..%2Fo/client/register (route rest)",
        "lenient    /o/client/register (route dynamic-client-registration)",
        "the route 'rest' accepts no such path (`paths = \"strict\"`)",
    ] {
        assert!(strict.contains(part), "{part:?} is missing:\n{strict}");
    }
}

#[test]
fn no_command_shows_the_password_of_a_store() {
    let directory = tempfile::tempdir().expect("the directory is created");
    let path = directory.path().join("redis.toml");
    let name = path.to_str().expect("the path is UTF-8");
    let write = |url: &str| {
        let config = format!(
            "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
             [store]\nbackend = \"redis\"\nurl = \"{url}\"\n"
        );
        std::fs::write(&path, config).expect("the file is written");
    };
    let explain = [
        "explain", "--config", name, "--method", "GET", "--path", "/",
    ];
    write("redis://gate:s3cret@127.0.0.1");
    for arguments in [&["check", name][..], &explain] {
        let output = Process::run(arguments);
        assert!(
            output.status.success(),
            "the command failed: {}",
            stderr(&output)
        );
        let text = stdout(&output) + &stderr(&output);
        assert!(
            !text.contains("s3cret"),
            "the output contains the password:\n{text}"
        );
    }
    write("redis://gate:s3cret@127.0.0.1/cache");
    for arguments in [&["check", name][..], &explain, &["serve", "--config", name]] {
        let output = Process::run(arguments);
        assert!(!output.status.success());
        let text = stdout(&output) + &stderr(&output);
        assert!(
            text.contains("has an invalid host, port or path"),
            "the error does not name the path:\n{text}"
        );
        assert!(
            !text.contains("s3cret"),
            "the output contains the password:\n{text}"
        );
    }
}

#[test]
fn the_schema_is_valid_and_accepts_every_shipped_configuration() {
    let output = Process::run(&["schema"]);
    assert!(output.status.success());
    let schema: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the text is JSON");
    assert!(jsonschema::meta::is_valid(&schema));
    let validator = jsonschema::validator_for(&schema).expect("the schema is valid");
    for name in [
        "minimal.toml",
        "starter.toml",
        "reference.toml",
        "demo.toml",
        "client-endpoints.toml",
    ] {
        let text = std::fs::read_to_string(shipped(name)).expect("the file is readable");
        let config: serde_json::Value = toml::from_str(&text).expect("the text is TOML");
        let errors: Vec<_> = validator
            .iter_errors(&config)
            .map(|e| e.to_string())
            .collect();
        assert!(errors.is_empty(), "the schema rejects {name}: {errors:?}");
    }
    let wrong = serde_json::json!({ "server": { "listne": "127.0.0.1:1" } });
    assert!(!validator.is_valid(&wrong));
}

#[test]
fn without_a_command_three_commands_to_try_are_printed() {
    let output = Process::run(&[]);
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
    let shown = stdout(&output);
    let commands = shown
        .lines()
        .filter_map(|line| line.strip_prefix("  tidegate "));
    let names: Vec<_> = commands.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["demo", "serve", "init"], "{shown}");
    assert!(shown.contains("`tidegate --help`"), "{shown}");
}

pub(super) fn address(line: &str) -> std::net::SocketAddr {
    let (_, rest) = line.split_once("http://").expect("the address is valid");
    let end = rest.find([' ', '/']).unwrap_or(rest.len());
    rest[..end].parse().expect("the address is valid")
}
