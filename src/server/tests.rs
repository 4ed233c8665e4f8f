//! Tests of the gateway as a whole: it starts with each shipped configuration file, and its listeners can be paused.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::live::{Live, LiveWorker};
use super::{Gateway, Refusal};
use crate::clock::Clock;
use crate::config::{self, Environment, Overrides, Policy};
use crate::pipeline::{GatewayState, Pipeline};

fn load(path: &Path) -> Policy {
    let environment: Environment = [
        ("TEST_HOST", "127.0.0.1"),
        ("TEST_RATE", "5/s"),
        ("TEST_TOKEN", "t0p"),
    ]
    .into_iter()
    .collect();
    let loaded = config::load_without_files(path, &environment, &Overrides::default());
    loaded.unwrap_or_else(|errors| panic!("{errors}")).policy
}

fn files_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).expect("the folder is part of the repository");
    let paths = entries.map(|entry| entry.expect("the folder is readable").path());
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|end| end == "toml");
    paths.filter(is_toml).collect()
}

#[test]
fn every_valid_configuration_starts_a_gateway() {
    let shipped = files_in("config");
    for path in files_in("tests/configs/valid").iter().chain(&shipped) {
        let mut policy = load(path);
        policy.server.listen = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        policy.server.workers = 1;
        let shared = GatewayState::new(Arc::new(policy), Clock::real());
        let gateway =
            Gateway::start(shared).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut client = TcpStream::connect(gateway.addresses()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).unwrap();
        // The request has no `Host`.
        let expected = b"HTTP/1.1 400 ";
        assert!(
            response.starts_with(expected),
            "{}: {}",
            path.display(),
            response.escape_ascii()
        );
        gateway.stopper().halt();
        gateway.join().unwrap();
    }
}

/// Starts a gateway with two workers on a free port. Requests get 404.
fn gateway_with_refusal() -> (Gateway, Refusal) {
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\nshutdown_grace = \"1s\"\n\
                [upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n[[route]]\nname = \"api\"\npath = \"/api\"\n";
    let environment = Environment::default();
    let loaded = config::parse("test.toml", text, &environment, &Overrides::default());
    let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
    Gateway::start_with_refusal(GatewayState::new(Arc::new(policy), Clock::real())).unwrap()
}

/// Sends a request on an open connection, and returns the head of its response.
fn head_on(mut client: &TcpStream) -> String {
    client
        .write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let lines = BufReader::new(client).lines().map(Result::unwrap);
    lines.take_while(|line| !line.is_empty()).collect()
}

#[tokio::test]
async fn a_refusal_refuses_connections_for_its_time_and_keeps_open_ones() {
    let (gateway, refusal) = gateway_with_refusal();
    let address = gateway.addresses()[0];
    let open = TcpStream::connect(address).unwrap();
    assert!(head_on(&open).starts_with("HTTP/1.1 404"));
    // The second refusal starts during the first one and extends it.
    let mut began = Instant::now();
    for duration in [Duration::from_millis(500), Duration::from_secs(1)] {
        began = Instant::now();
        refusal.refuse_for(duration);
        refuses(address, &refusal);
    }
    assert!(head_on(&open).starts_with("HTTP/1.1 404"));
    while TcpStream::connect(address).is_err() {
        assert!(began.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
    // Both workers accept again: the kernel distributes connections by their ports.
    for _ in 0..16 {
        let client = TcpStream::connect(address).unwrap();
        assert!(head_on(&client).starts_with("HTTP/1.1 404"));
    }
    gateway.stopper().halt();
    gateway.join().unwrap();
}

#[tokio::test]
async fn a_drain_ends_a_refusal_and_listening() {
    let (gateway, refusal) = gateway_with_refusal();
    let address = gateway.addresses()[0];
    refusal.refuse_for(Duration::from_hours(1));
    gateway.stopper().drain();
    let joined = tokio::task::spawn_blocking(|| gateway.join());
    let joined = tokio::time::timeout(Duration::from_secs(20), joined).await;
    joined.expect("the drain ends").unwrap().unwrap();
    // The refusal still has handles of the sockets.
    refuses(address, &refusal);

    let (gateway, refusal) = gateway_with_refusal();
    let address = gateway.addresses()[0];
    gateway.stopper().drain();
    gateway.join().unwrap();
    refuses(address, &refusal);
}

fn refuses(address: SocketAddr, _: &Refusal) {
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// Returns a policy with an upstream of each name, whose server has health checks.
fn checking(names: &[&str]) -> Policy {
    let upstreams = names.iter().map(|name| {
        format!(
            "[upstream.{name}]\nservers = [\"http://127.0.0.1:9\"]\nhealth = {{ path = \"/\" }}\n\
             [[route]]\nname = \"{name}\"\npath = \"/{name}\"\nupstream = \"{name}\"\n"
        )
    });
    let text = format!("server.workers = 1\n{}", upstreams.collect::<String>());
    let environment = Environment::default();
    let loaded = config::parse("test.toml", &text, &environment, &Overrides::default());
    loaded.unwrap_or_else(|errors| panic!("{errors}")).policy
}

#[tokio::test(start_paused = true)]
async fn health_checks_end_when_a_reload_removes_their_upstream_and_with_the_gateway() {
    let shared = GatewayState::new(Arc::new(checking(&["a", "b"])), Clock::real());
    let pipeline = Pipeline::new(&shared, 0, TaskTracker::new());
    let worker = LiveWorker {
        pipeline: Arc::new(ArcSwap::from_pointee(pipeline)),
        runtime: Handle::current(),
    };
    let running = async || {
        tokio::time::sleep(Duration::from_mins(5)).await;
        Handle::current().metrics().num_alive_tasks()
    };
    let before = running().await;
    let live = Live::new(shared, vec![worker]);
    assert_eq!(running().await, before + 2);
    live.apply(checking(&["b"]));
    assert_eq!(running().await, before + 1);
    drop(live);
    assert_eq!(running().await, before);
}
