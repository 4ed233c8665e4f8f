//! Restarts of a gateway whose listening socket a supervisor holds, as systemd does with socket activation. The
//! environment variable `RESTART_ROUNDS` sets the number of restarts.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::reload::traffic::{Executions, ROUTES, Traffic};
use crate::support::redis::RedisServer;
use crate::support::{Client, Process, TEST_TIMEOUT, Upstream, env_number, eventually};

const DEFAULT_ROUNDS: u64 = 3;

fn supervised(upstream: &Upstream, address: &str, rest: &str) -> String {
    format!(
        "[server]\nlisten = \"{address}\"\n[log]\naccess = false\n[upstream.api]\nservers = [\"{}\"]\n\
         {rest}[limit.device]\nrate = \"1000/s\"\n{ROUTES}",
        upstream.url()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_with_the_memory_store() {
    // The keys of the memory store do not survive a restart.
    assert_no_errors("", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_with_the_disk_store() {
    assert_no_errors("[store]\nbackend = \"disk\"\npath = \"data\"\n", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_with_redis() {
    let redis = RedisServer::start();
    let store = format!("[store]\nbackend = \"redis\"\nurl = \"{}\"\n", redis.url());
    assert_no_errors(&store, true).await;
}

async fn assert_no_errors(store: &str, keeps_keys: bool) {
    let rounds = env_number("RESTART_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let executions = Executions::default();
    let upstream = executions.upstream();
    let config = supervised(&upstream, &address.to_string(), store);
    let gateway = Process::serving(&config).binary_from_env("RELOAD_TIDEGATE");
    let gateway = gateway.inheriting(&socket);
    let mut process = gateway.start();
    process.address();
    let traffic = Traffic::start(&Client::of(address), true, keeps_keys);
    for _ in 0..rounds {
        sleep(Duration::from_millis(300)).await;
        process.signal(Signal::TERM);
        eventually("the process exits", async || !process.is_running()).await;
        assert!(process.wait_for_exit().success(), "{}", process.log());
        process = gateway.start();
        process.address();
    }
    sleep(Duration::from_millis(300)).await;
    let tally = traffic.stop().await;
    println!(
        "restart: {rounds} restarts, {} requests, {} keys",
        tally.requests, tally.keys
    );
    if keeps_keys {
        assert_eq!(executions.repeated(), Vec::<String>::new());
    }
    process.stop();
}

#[tokio::test]
async fn an_inherited_socket_that_is_not_configured_is_an_error_at_start() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let config = supervised(&Upstream::echo(), "127.0.0.1:0", "");
    let mut process = Process::serving(&config).inheriting(&socket).start();
    assert!(!process.wait_for_exit().success());
    let error = process.wait_for_line("is for no listener");
    assert!(error.contains(&address.to_string()), "{error}");
}

#[test]
fn a_supervisor_is_told_about_start_reload_watchdog_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let next = || {
        let mut message = [0; 256];
        let length = socket
            .recv(&mut message)
            .expect("the gateway reports its state");
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let config = supervised(&Upstream::echo(), "127.0.0.1:0", "");
    let process = Process::serving(&config)
        .env("NOTIFY_SOCKET", path.to_str().unwrap())
        .env("WATCHDOG_USEC", "300000")
        .start();
    let expect = |wanted: &str| {
        let mut message = next();
        while message == "WATCHDOG=1\n" && !wanted.starts_with("WATCHDOG") {
            message = next();
        }
        assert!(message.starts_with(wanted), "{message}");
        message
    };
    expect("READY=1");
    assert!(process.client().address().port() > 0);
    expect("WATCHDOG=1");
    process.signal(Signal::HUP);
    let reloading = expect("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    expect("READY=1");
    process.signal(Signal::TERM);
    expect("STOPPING=1");
    process.stop();
}
