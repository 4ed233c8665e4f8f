//! Tests of the commands `demo`, `check`, `explain` and `schema`.

use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use crate::support::{Client, Process};

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

#[tokio::test]
async fn the_demo_behaves_as_its_guide_describes() {
    let process = Process::with(&["demo", "--listen", "127.0.0.1:0"])
        .env("TIDEGATE__ADMIN__LISTEN", "127.0.0.1:0")
        .start();
    process.wait_for_line("Press Ctrl-C to stop.");
    let guide = process.lines();
    let gateway = address(&process.wait_for_line("Tidegate is running at"));
    let client = Client::of(gateway);
    let assert_in_guide = |part: &str| {
        let found = guide.iter().any(|line| line.contains(part));
        assert!(found, "the guide does not contain {part:?}: {guide:#?}");
    };

    assert_in_guide(&format!("http://{gateway}/o/client/register"));
    let mut statuses = Vec::new();
    while !statuses.contains(&429) {
        statuses.push(client.get("/o/client/register").send().await.status);
        assert!(statuses.len() < 30, "no request was rejected: {statuses:?}");
    }
    assert!(
        statuses.len() >= 5,
        "a request was rejected before the fifth: {statuses:?}"
    );

    assert_in_guide("X-Forwarded-For: 203.0.113.7");
    let other = client
        .get("/o/client/register")
        .header("X-Forwarded-For", "203.0.113.7");
    assert_eq!(other.send().await.status, 200);

    assert_in_guide("-X POST -d '{\"amount\":1200,\"currency\":\"EUR\"}'");
    let payment = client
        .post("/v1/payments")
        .body("{\"amount\":1200,\"currency\":\"EUR\"}");
    assert_eq!(payment.send().await.status, 201);

    assert_in_guide("Send this request twice");
    let pay = async |amount: u32| {
        let order = format!("{{\"amount\":{amount},\"currency\":\"EUR\"}}");
        let request = client.post("/v1/payments").body(order);
        request.header("Idempotency-Key", "order-17").send().await
    };
    let (first, second) = (pay(1200).await, pay(1200).await);
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.text(), second.text());
    assert_eq!(second.header("idempotent-replayed"), "true");
    assert_eq!(pay(9900).await.status, 422);

    assert_in_guide(&format!("http://{gateway}/flaky/429,429:2,200"));
    let flaky = async || client.get("/flaky/429,429:2,200").send().await;
    let (limited, with_retry_after, succeeded) = (flaky().await, flaky().await, flaky().await);
    let statuses = [limited.status, with_retry_after.status, succeeded.status];
    assert_eq!(statuses, [429, 429, 200]);
    assert_eq!(with_retry_after.header("retry-after"), "2");

    let metrics = Client::of(address(&process.wait_for_line("/metrics")));
    let counted = metrics.get("/metrics").send().await.text();
    let rejected = counted.lines().find(|line| {
        line.starts_with("tidegate_rejected_total{route=\"registration\",limit=\"device\"}")
    });
    assert_eq!(
        rejected,
        Some("tidegate_rejected_total{route=\"registration\",limit=\"device\"} 1")
    );
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
fn explain_shows_the_scenario_of_a_route() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    let config = "[scenario.s]\nsteps = [\"503\", \"delay 1s + 200\"]\nby = \"test\"\nat_end = \"repeat\"\n\
                  [[route]]\nname = \"all\"\npath = \"/v1\"\nscenario = \"s\"\n";
    std::fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap();
    let arguments = [
        "explain",
        "--config",
        file,
        "--method",
        "GET",
        "--path",
        "/t/run-1/v1",
    ];
    let output = Process::run(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "path       /v1\n",
        "s: 503, delay 1s + 200; then the last step repeats; counted by test",
        "upstream   none",
        "decided by the next step of the scenario",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
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
fn explain_shows_the_effect_of_a_key_and_never_a_secret() {
    let explain = |method: &str, more: &[&str]| {
        let file = shipped("demo.toml");
        let path = ["--path", "/v1/payments", "--method", method];
        let mut arguments = vec!["explain", "--config", &file];
        arguments.extend(path.iter().chain(more));
        let output = Process::run(&arguments);
        assert!(
            output.status.success(),
            "the command failed: {}",
            stderr(&output)
        );
        stdout(&output)
    };
    let keyed = explain(
        "POST",
        &[
            "--header",
            "Idempotency-Key: s3cret-17",
            "--header",
            "Authorization: Bearer s3cret",
        ],
    );
    for part in [
        "callers with this authorization header",
        "waits up to 10s",
        "for 24h after",
        "422",
    ] {
        assert!(
            keyed.contains(part),
            "the output does not contain {part:?}:\n{keyed}"
        );
    }
    assert!(
        !keyed.contains("s3cret"),
        "the output contains a secret:\n{keyed}"
    );

    let invalid = explain("POST", &["--header", "Idempotency-Key: two words"]);
    assert!(invalid.contains("outcome    400") && invalid.contains("visible ASCII"));
    assert!(explain("POST", &[]).contains("none is required"));
    assert!(explain("GET", &[]).contains("only POST and PATCH"));
}

/// Writes a configuration file whose only route has the settings `idempotency`. Returns the path of the file.
fn keyed_config(directory: &TempDir, idempotency: &str) -> String {
    let path = directory.path().join("keyed.toml");
    let config = format!(
        "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ {idempotency} }}\n"
    );
    std::fs::write(&path, config).expect("the file is written");
    path.to_str().expect("the path is UTF-8").to_owned()
}

#[test]
fn check_warns_about_a_keyed_route_without_a_scope() {
    let directory = tempfile::tempdir().expect("the directory is created");
    for mode in ["optional", "required"] {
        let check = |scope: &str| {
            let config = keyed_config(&directory, &format!("mode = \"{mode}\"{scope}"));
            let output = Process::run(&["check", &config]);
            assert!(output.status.success());
            stderr(&output)
        };
        let warning = check("");
        for part in [
            "warning: without `scope`, a retry with a refreshed token or from a new address is executed again",
            "keyed.toml:6:24",
            "which is not verified",
            "\"cookie:session\"",
        ] {
            assert!(
                warning.contains(part),
                "the output does not contain {part:?}:\n{warning}"
            );
        }
        assert!(!check(", scope = \"cookie:session\"").contains("warning"));
    }
}

#[test]
fn explain_shows_the_scope_of_a_signed_request_and_of_a_cookie() {
    let directory = tempfile::tempdir().expect("the directory is created");
    let explain = |idempotency: &str, header: &str| {
        let config = keyed_config(&directory, idempotency);
        let arguments = [
            "explain", "--config", &config, "--path", "/", "--method", "POST",
        ];
        let headers = ["--header", "Idempotency-Key: k1", "--header", header];
        let output = Process::run(&[&arguments[..], &headers].concat());
        assert!(
            output.status.success(),
            "the command failed: {}",
            stderr(&output)
        );
        stdout(&output)
    };
    let signed =
        "this client and the identity in its signed authorization header, which is not verified";
    for header in [
        "Authorization: AWS4-HMAC-SHA256 Credential=s3cret/20261117/r/s/aws4_request, SignedHeaders=host, Signature=s3cret",
        "Authorization: Digest username=\"s3cret\", realm=\"r\", response=\"s3cret\"",
    ] {
        let text = explain("mode = \"optional\"", header);
        assert!(
            text.contains(signed),
            "the output does not contain {signed:?}:\n{text}"
        );
        assert!(
            !text.contains("s3cret"),
            "the output contains a secret:\n{text}"
        );
        let unparsed = explain("scope = \"header:Authorization\"", header);
        assert!(
            !unparsed.contains(signed),
            "the output contains {signed:?}:\n{unparsed}"
        );
    }
    let unsigned = explain("mode = \"optional\"", "Authorization: Bearer s3cret");
    assert!(unsigned.contains("callers with this authorization header"));
    let cookie = explain("scope = \"cookie:session\"", "Cookie: session=s3cret");
    assert!(
        cookie.contains("callers with this cookie session"),
        "unexpected output:\n{cookie}"
    );
    assert!(
        !cookie.contains("s3cret"),
        "the output contains a secret:\n{cookie}"
    );
    let without = explain("scope = \"cookie:session\"", "Cookie: other=1");
    assert!(
        without.contains("this client, because cookie session is missing"),
        "unexpected output:\n{without}"
    );
}

#[test]
fn check_warns_about_retries_without_jitter_or_backoff() {
    let directory = tempfile::tempdir().expect("the directory is created");
    let path = directory.path().join("stampede.toml");
    let config = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
                  [upstream.api.retry]\nstrategy = \"constant\"\njitter = \"none\"\n\
                  [[route]]\nname = \"all\"\npath = \"/\"\n";
    std::fs::write(&path, config).expect("the file is written");
    let output = Process::run(&["check", path.to_str().expect("the path is UTF-8")]);
    assert!(output.status.success());
    let assert_in_guide = stderr(&output);
    for part in [
        "stampede.toml:4:12",
        "a constant interval",
        "stampede.toml:5:10",
        "without jitter",
    ] {
        assert!(
            assert_in_guide.contains(part),
            "the output does not contain {part:?}:\n{assert_in_guide}"
        );
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
        let assert_in_guide = stdout(&output) + &stderr(&output);
        assert!(
            !assert_in_guide.contains("s3cret"),
            "the output contains the password:\n{assert_in_guide}"
        );
    }
    write("redis://gate:s3cret@127.0.0.1/cache");
    for arguments in [&["check", name][..], &explain, &["serve", "--config", name]] {
        let output = Process::run(arguments);
        assert!(!output.status.success());
        let assert_in_guide = stdout(&output) + &stderr(&output);
        assert!(
            assert_in_guide.contains("`redis://gate:***@127.0.0.1/cache` has a path"),
            "the error does not show the URL without the password:\n{assert_in_guide}"
        );
        assert!(
            !assert_in_guide.contains("s3cret"),
            "the output contains the password:\n{assert_in_guide}"
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
