//! Tests of the command line: how commands name their files and addresses, what they print without them, and which
//! files `check` reads.

use std::process::Output;

use tempfile::TempDir;

use super::commands::{stderr, stdout};
use crate::support::{Certificates, Process, Upstream};

const CONFIG: &str = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n";

/// Creates a directory with the file `name`.
fn directory_with(name: &str, text: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("the directory is created");
    std::fs::write(directory.path().join(name), text).expect("the file is written");
    directory
}

#[test]
fn the_file_is_an_argument_or_an_option_or_the_default() {
    let explain = ["explain", "--path", "/"];
    for command in [&["check"][..], &explain] {
        for file in [
            &["gate.toml"][..],
            &["-c", "gate.toml"],
            &["--config", "gate.toml"],
        ] {
            let directory = directory_with("gate.toml", CONFIG);
            let run = Process::with(command).args(file).inside(directory).run();
            assert!(
                run.status.success(),
                "{command:?} {file:?}: {}",
                stderr(&run)
            );
        }
        let directory = directory_with("tidegate.toml", CONFIG);
        let run = Process::with(command).inside(directory).run();
        assert!(run.status.success(), "{command:?}: {}", stderr(&run));
        let directory = directory_with("gate.toml", CONFIG);
        let both = ["gate.toml", "--config", "gate.toml"];
        let run = Process::with(command).args(&both).inside(directory).run();
        assert!(stderr(&run).contains("cannot be used with"), "{command:?}");
    }
}

#[tokio::test]
async fn serve_accepts_the_file_in_every_form() {
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n".to_owned() + CONFIG;
    for file in [&["gate.toml"][..], &["-c", "gate.toml"], &[]] {
        let name = file.last().unwrap_or(&"tidegate.toml");
        let directory = directory_with(name, &config);
        let process = Process::with(&["serve"])
            .args(file)
            .inside(directory)
            .start();
        let response = process.client().get("/").send().await;
        assert_eq!(response.status, 502, "{file:?}");
    }
}

#[test]
fn a_command_without_a_file_explains_what_to_do() {
    let run = |arguments: &[&str]| -> Output {
        let directory = tempfile::tempdir().expect("the directory is created");
        let run = Process::with(arguments).inside(directory).run();
        assert!(!run.status.success());
        run
    };
    let serve = stderr(&run(&["serve"]));
    for part in [
        "no configuration file: neither ./tidegate.toml nor /etc/tidegate/tidegate.toml exists",
        "tidegate serve FILE",
        "tidegate serve --upstream URL",
        "tidegate demo",
        "tidegate init",
    ] {
        assert!(serve.contains(part), "{part}: {serve}");
    }
    assert!(stderr(&run(&["check"])).contains("tidegate check FILE"));
    assert!(stderr(&run(&["explain", "--path", "/"])).contains("tidegate explain FILE"));
}

#[test]
fn an_incomplete_listen_address_is_an_error_with_the_complete_address() {
    for command in [
        &["serve", "--upstream", "http://127.0.0.1:1"][..],
        &["demo"],
    ] {
        for (address, complete) in [
            (":8081", &["127.0.0.1:8081", "0.0.0.0:8081"][..]),
            ("localhost:8081", &["127.0.0.1:8081"]),
            ("8081", &["127.0.0.1:8081"]),
        ] {
            let run = Process::with(command).args(&["--listen", address]).run();
            assert!(!run.status.success());
            for complete in complete {
                assert!(
                    stderr(&run).contains(complete),
                    "{address}: {}",
                    stderr(&run)
                );
            }
        }
    }
}

#[test]
fn explain_requires_a_path_that_starts_with_a_slash() {
    for path in ["orders", "https://127.0.0.1:8443/orders"] {
        let directory = directory_with("tidegate.toml", CONFIG);
        let explain = Process::with(&["explain", "--path", path]).inside(directory);
        let run = explain.run();
        assert_eq!(run.status.code(), Some(2));
        assert!(stderr(&run).contains("write `/orders`"), "{}", stderr(&run));
    }
}

#[test]
fn every_command_has_examples_in_its_help() {
    for command in [
        "demo",
        "serve",
        "init",
        "check",
        "explain",
        "lab",
        "schema",
        "completions",
    ] {
        let help = stdout(&Process::run(&[command, "--help"]));
        let example = format!("Examples:\n  tidegate {command}");
        assert!(help.contains(&example), "{command}: {help}");
    }
    assert!(stdout(&Process::run(&["--help"])).contains("Examples:\n  tidegate demo"));
}

#[tokio::test]
async fn a_gateway_for_one_upstream_has_no_limit_unless_one_is_given() {
    let upstream = Upstream::replying(200);
    let url = format!("http://{}", upstream.address());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--upstream", &url];
    let statuses = async |process: Process| {
        let client = process.client();
        let mut statuses = Vec::new();
        for _ in 0..20 {
            statuses.push(client.get("/page.css").send().await.status);
        }
        statuses
    };
    assert_eq!(statuses(Process::start(&serve)).await, [200; 20]);
    let limit = ["--limit", "1/h", "--burst", "3"];
    let limited = statuses(Process::with(&serve).args(&limit).start()).await;
    assert_eq!(limited, [[200; 4].as_slice(), &[429; 16]].concat());

    let run = Process::with(&["serve", "x.toml"]).args(&limit).run();
    assert!(stderr(&run).contains("--limit"), "{}", stderr(&run));
    let run = Process::with(&serve).args(&["--limit", "often"]).run();
    assert!(
        stderr(&run).contains("`often` is not a rate"),
        "{}",
        stderr(&run)
    );
}

#[tokio::test]
async fn a_gateway_for_one_upstream_serves_tls_with_both_flags() {
    let upstream = Upstream::replying(200);
    let url = format!("http://{}", upstream.address());
    let certificates = Certificates::for_localhost();
    let (cert, key) = (certificates.cert_file(), certificates.key_file());
    let cert = ["--tls-cert", cert.to_str().expect("the path is UTF-8")];
    let key = ["--tls-key", key.to_str().expect("the path is UTF-8")];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--upstream", &url];

    let process = Process::with(&serve).args(&cert).args(&key).start();
    process.wait_for_line("address=https://");
    let stream = process.client().connect().await.expect("a connection");
    let name = "localhost".try_into().expect("a server name");
    let handshake = certificates.connector(&["h2"]).connect(name, stream).await;
    handshake.expect("the gateway uses the certificate");

    for (flag, other) in [(cert, "--tls-key <FILE>"), (key, "--tls-cert <FILE>")] {
        let run = Process::with(&serve).args(&flag).run();
        assert_eq!(run.status.code(), Some(2));
        assert!(stderr(&run).contains(other), "{}", stderr(&run));
    }
    let swapped = [cert[0], key[1], key[0], cert[1]];
    let run = Process::with(&serve).args(&swapped).run();
    assert_eq!(run.status.code(), Some(1));
    let shown = stderr(&run);
    assert!(
        shown.contains("may be swapped") && shown.contains("--> --tls-cert:1:1"),
        "{shown}"
    );
}

#[test]
fn init_writes_a_configuration_without_warnings_and_never_overwrites() {
    let directory = tempfile::tempdir().expect("the directory is created");
    let file = directory.path().join("tidegate.toml");
    let init = Process::with(&["init"]).inside(directory);
    let run = init.run();
    assert!(run.status.success(), "{}", stderr(&run));
    for next in [
        "tidegate check tidegate.toml",
        "tidegate serve tidegate.toml",
    ] {
        assert!(stdout(&run).contains(next), "{}", stdout(&run));
    }
    let check = Process::run(&["check", file.to_str().expect("the path is UTF-8")]);
    assert!(check.status.success());
    assert_eq!(stderr(&check), "");

    std::fs::write(&file, "mine").expect("the file is written");
    let run = init.run();
    assert_eq!(run.status.code(), Some(1));
    assert_eq!(
        stderr(&run),
        "error: tidegate.toml already exists, and is not overwritten\n\n\
         Write another file: tidegate init tidegate.new.toml\n"
    );
    let text = std::fs::read_to_string(&file).expect("the file is readable");
    assert_eq!(text, "mine");
}

#[test]
fn the_completion_script_of_each_shell_knows_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = Process::run(&["completions", shell]);
        assert!(run.status.success(), "{shell}: {}", stderr(&run));
        for word in ["explain", "init", "tls-cert"] {
            assert!(stdout(&run).contains(word), "{shell}: {word}");
        }
    }
    let script = stdout(&Process::run(&["completions", "bash"]))
        + "COMP_WORDS=(tidegate ch); COMP_CWORD=1; _tidegate tidegate ch tidegate; echo \"${COMPREPLY[@]}\"\n";
    let bash = std::process::Command::new("bash")
        .args(["-c", &script])
        .output();
    assert_eq!(stdout(&bash.expect("bash starts")), "check\n");
}

#[test]
fn check_reads_the_certificates_unless_it_is_called_without_files() {
    let (right, other) = (Certificates::for_localhost(), Certificates::for_localhost());
    let check = |cert: &std::path::Path, key: &std::path::Path, arguments: &[&str]| {
        let tls = format!("[server]\ntls = {{ cert = {cert:?}, key = {key:?} }}\n");
        let directory = directory_with("tidegate.toml", &(tls + CONFIG));
        Process::with(&["check"])
            .args(arguments)
            .inside(directory)
            .run()
    };
    let missing = std::path::Path::new("/nonexistent/gateway.crt");
    let valid = check(&right.cert_file(), &right.key_file(), &[]);
    assert!(valid.status.success(), "{}", stderr(&valid));
    for (cert, key, expected) in [
        (
            missing,
            &*right.key_file(),
            "the certificate file cannot be used: cannot read the file",
        ),
        (
            &*right.key_file(),
            &*right.cert_file(),
            "a private key instead of a certificate",
        ),
        (
            &*right.key_file(),
            &*right.cert_file(),
            "a certificate instead of a private key",
        ),
        (
            &*right.cert_file(),
            &*other.key_file(),
            "does not belong to the certificate",
        ),
    ] {
        let run = check(cert, key, &[]);
        assert_eq!(run.status.code(), Some(1));
        let shown = stderr(&run);
        assert!(shown.contains(expected), "{expected}: {shown}");
        assert!(shown.contains(" --> ./tidegate.toml:2:"), "{shown}");
        assert!(check(cert, key, &["--no-files"]).status.success());
    }
}

#[test]
fn serve_reports_an_unusable_certificate_with_its_location() {
    let config = "[server]\ntls = { cert = \"no.crt\", key = \"no.key\" }\n".to_owned() + CONFIG;
    let run = Process::with(&["serve"])
        .inside(directory_with("tidegate.toml", &config))
        .run();
    assert!(!run.status.success());
    let shown = stderr(&run);
    assert!(shown.contains(" --> ./tidegate.toml:2:16"), "{shown}");
    assert!(
        shown.contains("relative to the working directory /"),
        "{shown}"
    );
}

#[test]
fn check_reads_the_ca_file_of_an_upstream_with_tls_and_the_secret_files() {
    for (section, expected) in [
        (
            "[admin]\nlisten = \"127.0.0.1:9090\"\ntoken_file = \"/nonexistent/token\"\n",
            "contains the token",
        ),
        (
            "[store]\nbackend = \"redis\"\nurl = \"rediss://127.0.0.1\"\nca_file = \"/dev/null\"\n",
            "contains no certificate",
        ),
        (
            "[upstream.b]\nservers = [\"https://b\"]\nca_file = \"/dev/null\"\n",
            "contains no certificate",
        ),
    ] {
        let config = CONFIG.replace("path = \"/\"", "path = \"/\"\nupstream = \"api\"") + section;
        let run = |arguments: &[&str]| {
            let directory = directory_with("tidegate.toml", &config);
            Process::with(&["check"])
                .args(arguments)
                .inside(directory)
                .run()
        };
        assert!(
            stderr(&run(&[])).contains(expected),
            "{section}: {}",
            stderr(&run(&[]))
        );
        assert!(run(&["--no-files"]).status.success(), "{section}");
    }
}

#[tokio::test]
async fn warnings_at_startup_are_log_lines_in_the_configured_format() {
    let config =
        "[server]\nlisten = \"127.0.0.1:0\"\n[limit.unused]\nrate = \"1/s\"\n".to_owned() + CONFIG;
    let title = "no route uses the limit `unused`";
    let text = Process::serving(&config).start();
    let line = text.wait_for_line(title);
    assert!(
        line.contains("WARN") && line.contains("location=tidegate.toml:3:8"),
        "{line}"
    );
    assert!(line.contains("help="), "{line}");

    let json = Process::serving(&(config + "[log]\nformat = \"json\"\n")).start();
    json.address();
    for line in json.lines() {
        let event: serde_json::Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("not a JSON line: {line}: {error}"));
        if event["message"] == title {
            assert_eq!(event["level"], "WARN");
            assert_eq!(event["location"], "tidegate.toml:3:8");
            return;
        }
    }
    panic!("no warning in the log:\n{}", json.log());
}

#[test]
fn an_admin_port_in_use_is_an_error_with_the_keys_of_the_admin_listener() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = other.local_addr().expect("an address");
    let config =
        format!("[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"{address}\"\n{CONFIG}");
    let directory = directory_with("tidegate.toml", &config);
    let run = Process::with(&["serve"]).inside(directory).run();
    assert!(!run.status.success());
    let shown = stderr(&run);
    assert!(shown.contains("`listen` in [admin], or --admin"), "{shown}");
}

#[test]
fn a_warning_fails_only_a_strict_check() {
    let check = |arguments: &[&str]| {
        let directory = directory_with("tidegate.toml", CONFIG);
        let check = Process::with(arguments).inside(directory);
        check.env("TIDEGATE_SERVER_LISTEN", "127.0.0.1:1").run()
    };
    let strict = check(&["check", "--strict"]);
    assert_eq!(strict.status.code(), Some(1));
    assert!(stderr(&strict).contains("1 warning"), "{}", stderr(&strict));
    let run = check(&["check"]);
    assert!(run.status.success());
    let warning = stderr(&run);
    assert!(
        warning.contains("`TIDEGATE_SERVER_LISTEN` has no effect"),
        "{warning}"
    );
    assert!(warning.contains("`TIDEGATE__SERVER__LISTEN`"), "{warning}");
}
