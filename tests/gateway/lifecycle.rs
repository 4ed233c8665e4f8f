//! Starting, draining and ending, as a process.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Certificates, PATIENCE, Process, Upstream, eventually};

/// A configuration in a file.
struct File {
    path: PathBuf,
    _directory: TempDir,
}

impl File {
    /// Everything goes to `upstream`, with `server` under `[server]`.
    fn new(server: &str, upstream: &Upstream) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gateway.toml");
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [upstream.api]\nservers = [\"{}\"]\n\
             [[route]]\nname = \"quiet\"\npath = \"/quiet\"\naccess_log = false\n\
             [[route]]\nname = \"loud\"\npath = \"/\"\n",
            upstream.url()
        );
        std::fs::write(&path, config).expect("a file");
        Self {
            path,
            _directory: directory,
        }
    }

    fn serve(&self) -> Process {
        Process::start(&["serve", "--config", self.name()])
    }

    fn name(&self) -> &str {
        self.path.to_str().expect("a plain name")
    }
}

#[tokio::test]
async fn sigterm_lets_what_is_in_flight_finish_and_takes_nothing_new() {
    let (upstream, permits) = Upstream::held();
    let file = File::new("", &upstream);
    let mut process = file.serve();
    let (client, admin) = (process.client(), process.admin());
    assert_eq!(admin.get("/readyz").send().await.status, 200);
    let slow = tokio::spawn(client.get("/slow").send());
    eventually("the slow request arrives", || upstream.count() == 1).await;

    process.signal(Signal::TERM);
    process.line_with("draining");
    let ready = admin.get("/readyz").send().await;
    assert_eq!(ready.status, 503);
    assert_eq!(admin.get("/livez").send().await.status, 200);
    let deadline = Instant::now() + PATIENCE;
    while client.connect().await.is_ok() {
        assert!(Instant::now() < deadline, "it still takes connections");
    }
    assert!(process.is_running());
    assert!(!slow.is_finished());

    permits.add_permits(1);
    let answer = slow.await.expect("an answer");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "late, but whole")
    );
    assert_eq!(process.end().code(), Some(0));
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_a_drain() {
    let upstream = Upstream::echo();
    let file = File::new("shutdown_grace = \"10m\"", &upstream);
    let mut process = file.serve();
    let client = process.client();
    let silent = client.connect().await.expect("a connection");
    let mut kept = Vec::new();
    for client in [client.clone(), client.h2()] {
        let mut connection = client.keep_alive().await;
        assert_eq!(connection.send(client.get("/")).await.status, 200);
        kept.push(connection);
    }
    process.signal(Signal::INT);
    // The clients' side lives on this thread, and has to be let answer a GOAWAY.
    eventually("it ends", || !process.is_running()).await;
    assert_eq!(process.end().code(), Some(0));
    drop((silent, kept));
}

#[tokio::test]
async fn an_admin_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let variables = [("TIDEGATE__ADMIN__LISTEN", address.as_str())];
    let file = File::new("", &Upstream::echo());
    let mut process = Process::start_in(&variables, &["serve", "--config", file.name()]);
    assert!(!process.end().success());
    let said = process.line_with(&address);
    assert!(said.contains("in use"), "{said}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let (upstream, _permits) = Upstream::held();
    let file = File::new("shutdown_grace = \"10m\"", &upstream);
    let mut process = file.serve();
    let slow = tokio::spawn(process.client().get("/slow").try_send());
    eventually("the slow request arrives", || upstream.count() == 1).await;
    process.signal(Signal::TERM);
    process.line_with("draining");
    process.signal(Signal::TERM);
    process.end();
    assert!(slow.await.expect("no panic").is_err());
}

#[tokio::test]
async fn the_grace_bounds_a_drain() {
    let (upstream, _permits) = Upstream::held();
    let file = File::new("shutdown_grace = \"300ms\"", &upstream);
    let mut process = file.serve();
    let slow = tokio::spawn(process.client().get("/slow").try_send());
    eventually("the slow request arrives", || upstream.count() == 1).await;
    let told = Instant::now();
    process.signal(Signal::TERM);
    process.end();
    assert!(told.elapsed() >= Duration::from_millis(300));
    assert!(slow.await.expect("no panic").is_err());
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = Process::run(&[
        "serve",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        &address,
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains(&address), "{said}");
    assert!(
        said.contains("in use") && said.contains("choose another port"),
        "{said}"
    );
}

#[tokio::test]
async fn two_gateways_never_share_a_port_unnoticed() {
    let upstream = Upstream::echo();
    let file = File::new("", &upstream);
    let first = file.serve();
    let address = first.line_with("listening address=http://127.");
    let address = address.rsplit("//").next().expect("an address");
    let second = Process::run(&["serve", "--config", file.name(), "--listen", address]);
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains(address));
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_is_named() {
    let upstream = Upstream::echo();
    let certificates = Certificates::for_localhost();
    let key = certificates.key_file();
    let missing = key.with_file_name("missing.pem");
    let junk = key.with_file_name("junk.pem");
    std::fs::write(&junk, "not a certificate").expect("a file");
    for cert in [&missing, &junk] {
        let tls = format!(
            "tls = {{ cert = \"{}\", key = \"{}\" }}",
            cert.display(),
            key.display()
        );
        let file = File::new(&tls, &upstream);
        let output = Process::run(&["serve", "--config", file.name()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(said.contains(&cert.display().to_string()), "{said}");
    }
}

#[tokio::test]
async fn a_url_alone_is_enough_to_start() {
    let upstream = Upstream::echo();
    let process = Process::start(&[
        "serve",
        "--upstream",
        &upstream.url(),
        "--listen",
        "127.0.0.1:0",
    ]);
    let client = process.client();
    let answer = client.get("/anything").send().await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("ratelimit-policy"), "\"client\";q=4;w=4");
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(client.get("/").send().await.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn the_json_log_is_one_object_a_line() {
    let upstream = Upstream::echo();
    let file = File::new("", &upstream);
    let process = Process::start(&["serve", "--config", file.name(), "--log-format", "json"]);
    process.client().get("/loud\"quoted\"").send().await;
    process.line_with("\"request\"");
    let lines = process.lines();
    let mut access = Vec::new();
    for line in &lines {
        let event: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        assert!(event.is_object(), "{line}");
        if event["target"] == "tidegate::access" {
            access.push(event);
        }
    }
    let [event] = &access[..] else {
        panic!("one request, one line: {lines:#?}");
    };
    assert_eq!(event["route"], "loud");
    assert_eq!(event["status"], 200);
    assert_eq!(event["method"], "GET");
    assert_eq!(event["client"], "127.0.0.1");
}

#[tokio::test]
async fn a_route_may_keep_out_of_the_access_log() {
    let upstream = Upstream::echo();
    let file = File::new("", &upstream);
    let process = file.serve();
    assert_eq!(process.client().get("/quiet").send().await.status, 200);
    assert_eq!(process.client().get("/loud").send().await.status, 200);
    process.line_with("route=\"loud\"");
    let lines = process.lines();
    assert!(
        !lines.iter().any(|line| line.contains("quiet")),
        "{lines:#?}"
    );
}
