//! Records on disk, from one process to the next.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{is_execution, is_problem, is_replay_of, numbering, url};
use crate::harness::{Answer, Process, Upstream, eventually, full};
use crate::wire_raw;

/// A configuration whose records are in a directory beside it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new(upstream: &str) -> Self {
        let place = Self {
            directory: tempfile::tempdir().expect("a directory"),
        };
        place.keep_records_in(&place.store(), upstream);
        place
    }

    fn keep_records_in(&self, store: &Path, upstream: &str) {
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nbackend = \"disk\"\npath = \"{}\"\n\
             [upstream.api]\nservers = [\"{upstream}\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ mode = \"optional\" }}\n",
            store.display()
        );
        std::fs::write(self.config(), config).expect("a file");
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("gateway.toml")
    }

    fn serve(&self) -> Process {
        let config = self.config();
        Process::start(&["serve", "--config", config.to_str().expect("a plain name")])
    }

    /// What a gateway says that cannot start here.
    fn refused(&self) -> String {
        let config = self.config();
        let output = Process::run(&["serve", "--config", config.to_str().expect("a plain name")]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

async fn ask(process: &Process) -> Answer {
    let asking = process.client().post("/pay").header("Host", "a").key("k1");
    asking.body("amount=1").send().await
}

fn stop(mut process: Process) {
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}

#[tokio::test]
async fn an_answer_is_replayed_after_a_restart_byte_for_byte() {
    let head = b"HTTP/1.1 201 Created\r\nSet-Cookie: a=1, b\r\nX-Latin: caf\xe9\r\n\
                 Set-Cookie: c=2\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: 6\r\n\r\n";
    let answer = [&head[..], b"\0\xff\r\n\0."].concat();
    let upstream = wire_raw::Upstream::scripted(move |conversation| {
        while conversation.request().is_some() {
            conversation.send(&answer);
        }
    });
    let place = Place::new(&url(upstream.address));
    let process = place.serve();
    let first = ask(&process).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    stop(process);
    // Once more, because what is read back is also written again.
    for _ in 0..2 {
        let process = place.serve();
        let mut replay = ask(&process).await;
        assert!(replay.is_replay());
        assert_ne!(replay.header("x-request-id"), first.header("x-request-id"));
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
        stop(process);
    }
    assert_eq!(upstream.received().matches("POST /pay").count(), 1);
}

#[tokio::test]
async fn a_request_that_was_running_when_the_gateway_was_killed_is_unknown() {
    let upstream = Upstream::silent();
    let place = Place::new(&upstream.url());
    let mut process = place.serve();
    let lost = tokio::spawn(process.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", || upstream.count() == 1).await;
    process.signal(Signal::KILL);
    process.end();
    assert!(lost.await.expect("no panic").is_err());

    let process = place.serve();
    for _ in 0..2 {
        let asking = process.client().post("/pay").key("k1");
        is_problem(&asking.send().await, 409, "idempotency-outcome-unknown");
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_gateway_that_was_killed_has_kept_what_it_answered() {
    let upstream = numbering();
    let place = Place::new(&upstream.url());
    let mut process = place.serve();
    is_execution(&ask(&process).await, 1);
    process.signal(Signal::KILL);
    process.end();
    let process = place.serve();
    is_replay_of(&ask(&process).await, 1);
}

#[tokio::test]
async fn a_second_gateway_on_a_directory_names_the_first() {
    let upstream = numbering();
    let place = Place::new(&upstream.url());
    let process = place.serve();
    is_execution(&ask(&process).await, 1);
    let holder = std::fs::read_to_string(place.store().join("lock")).expect("a lock");
    let said = place.refused();
    assert!(
        said.contains(&format!("in use by process {holder}")),
        "{said}"
    );
    assert!(said.contains(&*place.store().to_string_lossy()), "{said}");
    assert!(said.contains("a directory of its own"), "{said}");
    // The first is none the worse for it.
    is_replay_of(&ask(&process).await, 1);
    stop(process);
    is_replay_of(&ask(&place.serve()).await, 1);
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_named_with_a_remedy() {
    let place = Place::new("http://127.0.0.1:9");
    // Not even root makes a directory below a file.
    let below = place.config().join("store");
    place.keep_records_in(&below, "http://127.0.0.1:9");
    let said = place.refused();
    assert!(said.contains("cannot use the store directory"), "{said}");
    assert!(said.contains(&*below.to_string_lossy()), "{said}");
    assert!(said.contains("store.path"), "{said}");
}

#[tokio::test]
async fn a_directory_of_another_format_is_left_unchanged() {
    let upstream = numbering();
    let place = Place::new(&upstream.url());
    let process = place.serve();
    is_execution(&ask(&process).await, 1);
    stop(process);
    let identity = place.store().join("identity");
    let ours = std::fs::read_to_string(&identity).expect("an identity");
    for format in [1, 99] {
        let other = ours.replace("\"format\": 2", &format!("\"format\": {format}"));
        assert_ne!(other, ours);
        std::fs::write(&identity, &other).expect("a file");
        let said = place.refused();
        assert!(said.contains(&format!("has format {format}")), "{said}");
        assert!(said.contains("version that wrote it"), "{said}");
        assert_eq!(std::fs::read_to_string(&identity).expect("a file"), other);
    }
    // The version that wrote the directory finds its records.
    std::fs::write(&identity, ours).expect("a file");
    is_replay_of(&ask(&place.serve()).await, 1);
}

#[tokio::test]
async fn a_replay_beyond_the_memory_for_bodies_gets_503_and_is_served_with_more() {
    let upstream = Upstream::with(|_| async { full("x".repeat(20_000)) });
    let place = Place::new(&upstream.url());
    let process = place.serve();
    assert_eq!(ask(&process).await.status, 200);
    stop(process);
    let roomy = std::fs::read_to_string(place.config()).expect("a file");
    let tight = roomy
        .replace("[server]\n", "[server]\nmax_buffered = \"8KiB\"\n")
        .replace("mode = \"optional\"", "max_request = \"1KiB\"");
    std::fs::write(place.config(), tight).expect("a file");
    let process = place.serve();
    is_problem(&ask(&process).await, 503, "store-unavailable");
    stop(process);
    std::fs::write(place.config(), roomy).expect("a file");
    let replay = ask(&place.serve()).await;
    assert!(
        replay.is_replay() && replay.body.len() == 20_000,
        "{replay:?}"
    );
    assert_eq!(upstream.count(), 1);
}
