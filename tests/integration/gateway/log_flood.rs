//! Tests of clients that make the libraries of the gateway write log lines.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::gateway::http2::frames::{ACK, PING, PREFACE, SETTINGS, frame};
use crate::support::{Client, KilledOnDrop, Process, TEST_TIMEOUT, TIDEGATE, eventually};

/// Sends this many acknowledgements of pings that the gateway never sent, and waits until it has read them.
async fn send_ping_acks(gateway: SocketAddr, count: usize) {
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    let acks = frame(PING, ACK, 0, &[1; 8]).repeat(count);
    let [settings, ping] = [frame(SETTINGS, 0, 0, &[]), frame(PING, 0, 0, &[2; 8])];
    let sent = [PREFACE, &settings, &acks, &ping].concat();
    socket.write_all(&sent).await.unwrap();
    let answer = frame(PING, ACK, 0, &[2; 8]);
    let mut received = Vec::new();
    let answered = async {
        while !received.ends_with(&answer) {
            let count = socket.read_buf(&mut received).await.unwrap();
            assert_ne!(count, 0, "the gateway closed the connection");
        }
    };
    let answered = tokio::time::timeout(TEST_TIMEOUT, answered).await;
    answered.expect("the gateway answers the last ping");
}

fn arguments() -> [&'static str; 5] {
    [
        "serve",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
    ]
}

#[tokio::test]
async fn unsolicited_ping_acks_write_no_log_lines() {
    for filter in ["", "info"] {
        let process = Process::with(&arguments()).env("RUST_LOG", filter).start();
        send_ping_acks(process.address(), 20_000).await;
        process.client().get("/").send().await;
        process.wait_for_line("tidegate::access");
        let count = process.lines().len();
        assert!(count < 20, "{count} lines with RUST_LOG={filter}");
    }
}

#[tokio::test]
async fn lines_that_standard_error_does_not_take_are_dropped_and_counted() {
    let child = Command::new(TIDEGATE)
        .args(arguments())
        .env("TIDEGATE__ADMIN__LISTEN", "127.0.0.1:0")
        .env("RUST_LOG", "info,h2=trace")
        .env("NO_COLOR", "1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = KilledOnDrop(child);
    let mut log = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let [gateway, admin] = ["gateway listening", "admin listening"].map(|message| {
        let line = log.find_map(|line| Some(line.unwrap()).filter(|line| line.contains(message)));
        let line = line.expect("the gateway logs its addresses");
        let address = line.rsplit("//").next().unwrap();
        address.parse::<SocketAddr>().expect("an address")
    });
    // From here on nobody reads the log: the pipe fills, and then the queue of 65,536 lines.
    let admin = Client::of(admin);
    let dropped = async || admin.metric::<u64>("log_lines_dropped_total").await;
    assert_eq!(dropped().await, 0);
    send_ping_acks(gateway, 20_000).await;
    eventually("lines are dropped", async || dropped().await > 0).await;
}
