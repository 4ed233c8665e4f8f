//! Tests of start, drain and shutdown of the gateway process.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Process, ProcessBuilder, Upstream, eventually};

/// Prepares a gateway that forwards all requests to `upstream`. `server` contains additional lines for `[server]`.
fn gateway_to(upstream: &Upstream, server: &str) -> ProcessBuilder {
    Process::serving(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [upstream.api]\nservers = [\"{}\"]\n\
         [[route]]\nname = \"quiet\"\npath = \"/quiet\"\naccess_log = false\n\
         [[route]]\nname = \"loud\"\npath = \"/\"\n",
        upstream.url()
    ))
}

/// Binds a free port. Returns the listener and its address.
fn taken_port() -> (TcpListener, String) {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port should be available");
    let address = taken.local_addr();
    let address = address.expect("the listen address should be known");
    (taken, address.to_string())
}

#[tokio::test]
async fn sigterm_finishes_requests_in_flight_and_accepts_no_connections() {
    assert_drains_on(Signal::TERM).await;
}

#[tokio::test]
async fn sigquit_drains_like_sigterm() {
    assert_drains_on(Signal::QUIT).await;
}

async fn assert_drains_on(signal: Signal) {
    let (upstream, permits) = Upstream::responding_on_permit();
    let mut process = gateway_to(&upstream, "").start();
    let (client, admin) = (process.client(), process.admin());
    assert_eq!(admin.get("/readyz").send().await.status, 200);
    let slow = tokio::spawn(client.get("/slow").send());
    eventually("upstream has the slow request", async || {
        upstream.count() == 1
    })
    .await;

    process.signal(signal);
    process.wait_for_line("draining");
    let ready = admin.get("/readyz").send().await;
    assert_eq!(ready.status, 503);
    assert_eq!(admin.get("/livez").send().await.status, 200);
    eventually("the gateway accepts no connections", async || {
        client.connect().await.is_err()
    })
    .await;
    assert!(process.is_running());
    assert!(!slow.is_finished());

    permits.add_permits(1);
    let response = slow.await.expect("the request should get a response");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "late, but whole")
    );
    assert_eq!(process.wait_for_exit().code(), Some(0));
}

#[tokio::test]
async fn idle_connections_do_not_delay_a_drain() {
    let upstream = Upstream::echo();
    let mut process = gateway_to(&upstream, "shutdown_grace = \"10m\"").start();
    let client = process.client();
    let silent = client
        .connect()
        .await
        .expect("the connection should be established");
    let mut connections = Vec::new();
    for client in [client.clone(), client.h2()] {
        let mut connection = client.keep_alive().await;
        assert_eq!(connection.send(client.get("/")).await.status, 200);
        connections.push(connection);
    }
    process.signal(Signal::INT);
    // The test polls and does not block this thread: the clients run on the same thread and must respond to GOAWAY.
    eventually("the process exits", async || !process.is_running()).await;
    assert_eq!(process.wait_for_exit().code(), Some(0));
    drop((silent, connections));
}

#[tokio::test]
async fn an_admin_port_in_use_is_reported() {
    let (_taken, address) = taken_port();
    let mut process = gateway_to(&Upstream::echo(), "")
        .env("TIDEGATE__ADMIN__LISTEN", &address)
        .start();
    assert!(!process.wait_for_exit().success());
    let error = process.wait_for_line(&address);
    assert!(error.contains("in use"), "{error}");
}

#[tokio::test]
async fn a_second_signal_ends_the_process_immediately() {
    let (upstream, _permits) = Upstream::responding_on_permit();
    let mut process = gateway_to(&upstream, "shutdown_grace = \"10m\"").start();
    let slow = tokio::spawn(process.client().get("/slow").try_send());
    eventually("upstream has the slow request", async || {
        upstream.count() == 1
    })
    .await;
    process.signal(Signal::TERM);
    process.wait_for_line("draining");
    process.signal(Signal::TERM);
    process.wait_for_exit();
    assert!(slow.await.expect("the task should not panic").is_err());
}

#[tokio::test]
async fn sighup_does_not_end_the_gateway_or_its_drain() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let mut process = gateway_to(&upstream, "shutdown_grace = \"10m\"").start();
    let client = process.client();
    process.signal(Signal::HUP);
    process.wait_for_line("configuration reloaded");
    let slow = tokio::spawn(client.get("/slow").send());
    eventually("upstream has the slow request", async || {
        upstream.count() == 1
    })
    .await;
    process.signal(Signal::TERM);
    process.wait_for_line("draining");
    process.signal(Signal::HUP);
    process.wait_for_line("configuration not reloaded");
    process.wait_for_line("the gateway is shutting down");
    permits.add_permits(1);
    assert_eq!(slow.await.expect("the task should not panic").status, 200);
    assert_eq!(process.wait_for_exit().code(), Some(0));
}

#[tokio::test]
async fn sigusr1_sigusr2_and_sigalrm_are_logged_and_end_neither_the_gateway_nor_its_drain() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let mut process = gateway_to(&upstream, "shutdown_grace = \"10m\"").start();
    let slow = tokio::spawn(process.client().get("/slow").send());
    eventually("upstream has the slow request", async || {
        upstream.count() == 1
    })
    .await;
    let ignored = [
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
    ];
    for times in 1..=2 {
        for (signal, name) in ignored {
            process.signal(signal);
            let line = format!("signal ignored signal=\"{name}\"");
            eventually(&line, async || process.count_lines(&line) == times).await;
        }
        if times == 1 {
            process.signal(Signal::TERM);
            process.wait_for_line("draining");
        }
    }
    permits.add_permits(1);
    assert_eq!(slow.await.expect("the task should not panic").status, 200);
    assert_eq!(process.wait_for_exit().code(), Some(0));
}

#[tokio::test]
async fn sighup_stops_the_demo() {
    let mut process = Process::with(&["demo", "--listen", "127.0.0.1:0"])
        .env("TIDEGATE__ADMIN__LISTEN", "127.0.0.1:0")
        .start();
    process.wait_for_line("Tidegate is running");
    process.signal(Signal::HUP);
    assert_eq!(process.wait_for_exit().code(), Some(0));
}

#[tokio::test]
async fn shutdown_grace_bounds_a_drain() {
    let (upstream, _permits) = Upstream::responding_on_permit();
    let mut process = gateway_to(&upstream, "shutdown_grace = \"300ms\"").start();
    let slow = tokio::spawn(process.client().get("/slow").try_send());
    eventually("upstream has the slow request", async || {
        upstream.count() == 1
    })
    .await;
    let signalled_at = Instant::now();
    process.signal(Signal::TERM);
    process.wait_for_exit();
    assert!(signalled_at.elapsed() >= Duration::from_millis(300));
    assert!(slow.await.expect("the task should not panic").is_err());
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_a_remedy() {
    let (_taken, address) = taken_port();
    let output = Process::run(&[
        "serve",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        &address,
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains(&address), "{error}");
    assert!(
        error.contains("in use") && error.contains("choose another port"),
        "{error}"
    );
}

#[tokio::test]
async fn a_route_can_disable_its_access_log() {
    let upstream = Upstream::echo();
    let process = gateway_to(&upstream, "").start();
    assert_eq!(process.client().get("/quiet").send().await.status, 200);
    assert_eq!(process.client().get("/loud").send().await.status, 200);
    process.wait_for_line("route=\"loud\"");
    let lines = process.lines();
    assert!(
        !lines.iter().any(|line| line.contains("quiet")),
        "{lines:#?}"
    );
}
