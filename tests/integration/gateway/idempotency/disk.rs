//! Tests of idempotency records on disk: they survive a restart and a crash of the process.

use std::path::{Path, PathBuf};

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions, url};
use crate::support::raw_http;
use crate::support::{ClientResponse, Process, ProcessBuilder, Upstream, eventually, full};

/// Gateway whose idempotency store survives a restart.
struct StoreFixture {
    gateway: ProcessBuilder,
}

impl StoreFixture {
    fn new(upstream: &str) -> Self {
        let fixture = Self {
            gateway: Process::serving(""),
        };
        fixture.write_config(&fixture.store(), upstream);
        fixture
    }

    fn write_config(&self, store: &Path, upstream: &str) {
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nbackend = \"disk\"\npath = \"{}\"\n\
             [upstream.api]\nservers = [\"{upstream}\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ mode = \"optional\" }}\n",
            store.display()
        );
        std::fs::write(self.config(), config).expect("the test file should be accessible");
    }

    fn store(&self) -> PathBuf {
        self.gateway.directory().join("store")
    }

    fn config(&self) -> PathBuf {
        self.gateway.directory().join("tidegate.toml")
    }

    fn serve(&self) -> Process {
        self.gateway.start()
    }

    /// Runs a gateway that must exit with status 1 at startup, and returns its standard error output.
    fn startup_error(&self) -> String {
        let output = self.gateway.run();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(!error.contains("panicked"), "{error}");
        error
    }
}

async fn send(process: &Process) -> ClientResponse {
    let request = process.client().post("/pay").header("Host", "a").key("k1");
    request.body("amount=1").send().await
}

#[tokio::test]
async fn a_response_is_replayed_byte_for_byte_after_a_restart() {
    let head = b"HTTP/1.1 201 Created\r\nSet-Cookie: a=1, b\r\nX-Latin: caf\xe9\r\n\
                 Set-Cookie: c=2\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: 6\r\n\r\n";
    let response = [&head[..], b"\0\xff\r\n\0."].concat();
    let upstream = raw_http::RawUpstream::scripted(move |connection| {
        while connection.request().is_some() {
            connection.send(&response);
        }
    });
    let fixture = StoreFixture::new(&url(upstream.address));
    let process = fixture.serve();
    let first = send(&process).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    process.stop();
    // The test restarts the gateway twice. The first restart rewrites the records on disk, and the second restart reads
    // the rewritten records.
    for _ in 0..2 {
        let process = fixture.serve();
        let mut replay = send(&process).await;
        assert!(replay.is_replay());
        assert_ne!(replay.header("x-request-id"), first.header("x-request-id"));
        let original = replay.headers.remove("idempotent-original-request-id");
        assert_eq!(original.as_ref(), first.headers.get("x-request-id"));
        let mut expected = first.headers.clone();
        for headers in [&mut replay.headers, &mut expected] {
            headers.remove("idempotent-replayed");
            headers.remove("x-request-id");
        }
        let lines = |headers: &http::HeaderMap| -> Vec<_> {
            let lines = headers.iter();
            lines
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        assert_eq!(lines(&replay.headers), lines(&expected));
        assert_eq!((replay.status, &replay.body), (201, &first.body));
        process.stop();
    }
    assert_eq!(upstream.received().matches("POST /pay").count(), 1);
}

#[tokio::test]
async fn a_request_in_progress_when_the_gateway_is_killed_becomes_unknown() {
    let upstream = Upstream::silent();
    let fixture = StoreFixture::new(&upstream.url());
    let mut process = fixture.serve();
    let lost = tokio::spawn(process.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", async || upstream.count() == 1).await;
    process.kill();
    assert!(lost.await.expect("the task should not panic").is_err());

    let process = fixture.serve();
    for _ in 0..2 {
        let request = process.client().post("/pay").key("k1");
        assert_problem(&request.send().await, 409, "idempotency-outcome-unknown");
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_response_is_replayed_after_the_gateway_was_killed() {
    let upstream = numbered_executions();
    let fixture = StoreFixture::new(&upstream.url());
    let mut process = fixture.serve();
    assert_execution(&send(&process).await, 1);
    process.kill();
    let process = fixture.serve();
    assert_replay_of(&send(&process).await, 1);
}

#[tokio::test]
async fn a_second_gateway_on_a_directory_fails_and_names_the_first() {
    let upstream = numbered_executions();
    let fixture = StoreFixture::new(&upstream.url());
    let process = fixture.serve();
    assert_execution(&send(&process).await, 1);
    let holder = std::fs::read_to_string(fixture.store().join("lock"))
        .expect("the lock file should be readable");
    let error = fixture.startup_error();
    assert!(
        error.contains(&format!("in use by process {holder}")),
        "{error}"
    );
    assert!(
        error.contains(&*fixture.store().to_string_lossy()),
        "{error}"
    );
    assert!(error.contains("another directory"), "{error}");
    // The failed start of the second gateway does not affect the first gateway.
    assert_replay_of(&send(&process).await, 1);
    process.stop();
    assert_replay_of(&send(&fixture.serve()).await, 1);
}

#[tokio::test]
async fn an_unusable_directory_is_reported_with_a_remedy() {
    let fixture = StoreFixture::new("http://127.0.0.1:9");
    // Creating a directory below a regular file fails even for root.
    let below = fixture.config().join("store");
    fixture.write_config(&below, "http://127.0.0.1:9");
    let error = fixture.startup_error();
    assert!(error.contains("cannot use the store directory"), "{error}");
    assert!(error.contains(&*below.to_string_lossy()), "{error}");
    assert!(error.contains("store.path"), "{error}");
}

#[tokio::test]
async fn a_directory_of_another_format_is_left_unchanged() {
    let upstream = numbered_executions();
    let fixture = StoreFixture::new(&upstream.url());
    let process = fixture.serve();
    assert_execution(&send(&process).await, 1);
    process.stop();
    let identity = fixture.store().join("identity");
    let original =
        std::fs::read_to_string(&identity).expect("the identity file should be readable");
    for format in [1, 99] {
        let other = original.replace("\"format\": 2", &format!("\"format\": {format}"));
        assert_ne!(other, original);
        std::fs::write(&identity, &other).expect("the test file should be accessible");
        let error = fixture.startup_error();
        assert!(error.contains(&format!("has format {format}")), "{error}");
        assert!(
            error.contains("version that wrote the directory"),
            "{error}"
        );
        assert_eq!(
            std::fs::read_to_string(&identity).expect("the test file should be accessible"),
            other
        );
    }
    // The failed starts change no records: the gateway replays the response after the test has restored the original
    // format number.
    std::fs::write(&identity, original).expect("the test file should be accessible");
    assert_replay_of(&send(&fixture.serve()).await, 1);
}

#[tokio::test]
async fn a_replay_beyond_the_memory_for_bodies_gets_503_and_is_served_with_more() {
    let upstream = Upstream::with(|_| async { full("x".repeat(20_000)) });
    let fixture = StoreFixture::new(&upstream.url());
    let process = fixture.serve();
    assert_eq!(send(&process).await.status, 200);
    process.stop();
    let large_memory =
        std::fs::read_to_string(fixture.config()).expect("the test file should be accessible");
    let small_memory = large_memory
        .replace("[server]\n", "[server]\nmax_buffered = \"8KiB\"\n")
        .replace("mode = \"optional\"", "max_request = \"1KiB\"");
    std::fs::write(fixture.config(), small_memory).expect("the test file should be accessible");
    let process = fixture.serve();
    assert_problem(&send(&process).await, 503, "store-unavailable");
    process.stop();
    std::fs::write(fixture.config(), large_memory).expect("the test file should be accessible");
    let replay = send(&fixture.serve()).await;
    assert!(
        replay.is_replay() && replay.body.len() == 20_000,
        "{replay:?}"
    );
    assert_eq!(upstream.count(), 1);
}
