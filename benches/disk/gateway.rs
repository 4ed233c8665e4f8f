//! Throughput of requests with idempotency keys through a gateway process with a disk store.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::BenchResult;

const CLIENTS: u64 = 64;
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(10);

/// The response that the upstream sends to every request.
const RESPONSE: &[u8] =
    b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 28\r\n\r\n\
    {\"id\":4711,\"state\":\"done\"}\r\n";

/// A running gateway process. Dropping this value kills the process.
struct Gateway {
    child: Child,
    address: SocketAddr,
}

/// Returns the number of requests per second of 64 clients, with a new idempotency key for each request.
pub(crate) fn rate(dir: &Path) -> BenchResult<f64> {
    let upstream = upstream()?;
    let gateway = Gateway::start(dir, upstream)?;
    let done = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let address = gateway.address;
    let clients = thread::spawn({
        let (done, over) = (Arc::clone(&done), Arc::clone(&over));
        move || send_until(address, &done, &over)
    });
    thread::sleep(WARM_UP);
    let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
    thread::sleep(MEASURED);
    let (after, took) = (done.load(Ordering::Relaxed), started.elapsed());
    over.store(true, Ordering::Relaxed);
    clients.join().map_err(|_| "the client thread panicked")??;
    Ok((after - before) as f64 / took.as_secs_f64())
}

/// Starts an upstream that sends [`RESPONSE`] to each request. Returns its address.
fn upstream() -> BenchResult<SocketAddr> {
    let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let listener = TcpListener::from_std(socket)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(respond_to_all(stream));
            }
            #[expect(unreachable_code, reason = "sets the return type of the endless loop")]
            std::io::Result::Ok(())
        })
    });
    Ok(address)
}

async fn respond_to_all(mut stream: TcpStream) {
    let mut head = Vec::new();
    while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            if stream.write_all(RESPONSE).await.is_err() {
                return;
            }
        }
    }
}

fn send_until(
    gateway: SocketAddr,
    done: &Arc<AtomicU64>,
    over: &Arc<AtomicBool>,
) -> BenchResult<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (done, over) = (Arc::clone(done), Arc::clone(over));
            clients.spawn(send_all(gateway, client, done, over));
        }
        clients.join_all().await.into_iter().collect()
    })
}

/// Sends requests one after another on one connection until `over` is set. Each request has a new idempotency key.
/// `done` counts the responses.
async fn send_all(
    gateway: SocketAddr,
    client: u64,
    done: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
) -> BenchResult<()> {
    let mut stream = TcpStream::connect(gateway).await?;
    stream.set_nodelay(true)?;
    let mut response = Vec::new();
    for number in 0_u64.. {
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let request = format!(
            "POST /payments HTTP/1.1\r\nhost: bench\r\nidempotency-key: {client}-{number}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        response.clear();
        while !response.ends_with(b"}\r\n") {
            if stream.read_buf(&mut response).await? == 0 {
                return Err(
                    "the gateway closed the connection before the end of a response".into(),
                );
            }
        }
        if !response.starts_with(b"HTTP/1.1 201 ") {
            return Err(String::from_utf8_lossy(&response).into());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

impl Gateway {
    fn start(dir: &Path, upstream: SocketAddr) -> BenchResult<Self> {
        let binary = std::env::var_os("DISK_TIDEGATE")
            .ok_or("DISK_TIDEGATE is not set; set it to the path of the gateway binary")?;
        let config = dir.join("tidegate.toml");
        let store = dir.join("gateway");
        let text = format!(
            r#"
            server = {{ listen = "127.0.0.1:0" }}
            log = {{ access = false }}
            store = {{ backend = "disk", path = "{}" }}
            upstream.api.servers = ["http://{upstream}"]
            [[route]]
            name = "payments"
            path = "/"
            idempotency = {{ mode = "required", scope = "shared", max_keys_per_scope = 1_000_000 }}
            "#,
            store.display()
        );
        std::fs::write(&config, text)?;
        let mut child = Command::new(binary)
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (addresses, address) = std::sync::mpsc::channel();
        for output in [
            child
                .stdout
                .take()
                .map(|output| Box::new(output) as Box<dyn std::io::Read + Send>),
            child
                .stderr
                .take()
                .map(|output| Box::new(output) as Box<dyn std::io::Read + Send>),
        ] {
            let (Some(output), addresses) = (output, addresses.clone()) else {
                continue;
            };
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    match address_in(&line) {
                        Some(address) => drop(addresses.send(address)),
                        None => eprintln!("{line}"),
                    }
                }
            });
        }
        let mut gateway = Self {
            child,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        };
        gateway.address = address.recv_timeout(Duration::from_secs(10))?;
        Ok(gateway)
    }
}

/// Parses the listener address in a log line of the gateway. Returns `None` for log lines of other events.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line
        .split_once("http://")
        .filter(|_| line.contains("listening"))?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:".contains(c)));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Errors are ignored, because they mean that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
