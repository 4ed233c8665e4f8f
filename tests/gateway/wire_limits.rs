//! What one client can make the gateway hold: heads are capped, bodies pass through, rest is cheap.
//!
//! Memory is measured on a gateway that is a process of its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::wire_raw::{Client, Running, Upstream, configuration, contains, ok};

#[test]
fn a_head_too_large_is_refused_with_431() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    for head in [
        format!("X: {}\r\n", "x".repeat(1 << 20)),
        "X: y\r\n".repeat(10_000),
        "X: y\r\n".repeat(101),
        format!("{}: y\r\n", "x".repeat(1 << 20)),
    ] {
        let mut client = gateway.client();
        let request = format!("GET /api HTTP/1.1\r\nHost: a\r\n{head}\r\n");
        let sending = client.send_meanwhile(request.into_bytes());
        assert_eq!(client.answer().status, 431);
        client.is_hung_up();
        sending.join().unwrap();
    }
    let mut client = gateway.client();
    let target = format!(
        "GET /api/{} HTTP/1.1\r\nHost: a\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let sending = client.send_meanwhile(target.into_bytes());
    assert!(matches!(client.answer().status, 414 | 431));
    client.is_hung_up();
    sending.join().unwrap();
    upstream.got_nothing_by(&gateway);
}

#[test]
fn a_head_as_large_as_allowed_is_served() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    let long = "x".repeat(31 * 1024);
    client.send(format!("GET /api HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"));
    assert_eq!(client.answer().status, 200);
    let many = "X: y\r\n".repeat(99);
    client.send(format!("GET /api HTTP/1.1\r\nHost: a\r\n{many}\r\n"));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn ten_thousand_hops_are_bounded_work() {
    let upstream = Upstream::repeating();
    let server = "max_header_bytes = \"256KiB\"\n[client]\ntrusted_proxies = [\"127.0.0.0/8\"]";
    let gateway = Running::with(upstream.address, server, "");
    let mut client = gateway.client();
    let hops = vec!["127.0.0.1"; 10_000].join(", ");
    client.send(format!(
        "GET /api HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {hops}\r\n\r\n"
    ));
    assert!(matches!(client.answer().status, 400 | 431));
    upstream.got_nothing_by(&gateway);
}

/// A gateway as a process of its own.
struct Process {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Process {
    fn before(upstream: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("tidegate.toml");
        let text = configuration("127.0.0.1:0", upstream, "", "");
        std::fs::write(&file, text).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--log-format", "text", "--config"])
            .arg(&file)
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        // Wherever it logs, it says where it listens.
        let (said, hears) = std::sync::mpsc::channel();
        let outputs: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("piped")),
            Box::new(child.stderr.take().expect("piped")),
        ];
        for output in outputs {
            let said = said.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // Nobody listens once the address is known.
                    let _ = said.send(line);
                }
            });
        }
        let address = loop {
            let line = hears
                .recv_timeout(crate::wire_raw::PATIENCE)
                .expect("a line with its address");
            if let Some((_, address)) = line.split_once("listening address=http://") {
                break address.trim().parse().expect("an address");
            }
        };
        Self {
            child,
            address,
            _directory: directory,
        }
    }

    /// A figure of its memory in KiB.
    fn memory(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("a process that runs");
        let line = status.lines().find(|line| line.starts_with(name));
        let figure = line.and_then(|line| line.split_whitespace().nth(1));
        figure.expect("a figure").parse().expect("a number")
    }

    /// One request, so that what is made once is made.
    fn warmed_up(self) -> Self {
        let mut client = Client::connect(self.address);
        client.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.answer().status, 200);
        self
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How much is streamed: a GiB where there is time for it.
fn amount() -> u64 {
    if std::env::var_os("TIDEGATE_FULL").is_some_and(|full| full == "1") {
        1 << 30
    } else {
        256 << 20
    }
}

/// An upstream that keeps nothing: `/api/down` is answered with [`amount`] bytes, anything else with
/// the number of bytes it came with.
fn streaming_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || while serve(&mut stream).is_some() {});
        }
    });
    address
}

fn serve(stream: &mut TcpStream) -> Option<()> {
    let mut buf = vec![0; 256 * 1024];
    let mut head = Vec::new();
    while !contains(&head, b"\r\n\r\n") {
        let n = stream.read(&mut buf[..1]).ok().filter(|&n| n > 0)?;
        head.extend_from_slice(&buf[..n]);
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    if head.starts_with("get /api/down ") {
        let len = amount();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").ok()?;
        return write_zeros(stream, len).ok();
    }
    let len = head.split("\r\ncontent-length: ").nth(1);
    let len: u64 = len.map_or(Some(0), |rest| rest.split("\r\n").next()?.parse().ok())?;
    let mut left = len;
    while left > 0 {
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = stream.read(&mut buf[..most]).ok().filter(|&n| n > 0)?;
        left -= n as u64;
    }
    stream.write_all(ok(&len.to_string()).as_bytes()).ok()
}

fn write_zeros(stream: &mut TcpStream, mut left: u64) -> std::io::Result<()> {
    let zeros = vec![0; 256 * 1024];
    while left > 0 {
        let most = zeros.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&zeros[..most])?;
        left -= most as u64;
    }
    Ok(())
}

const MOST_GROWTH: u64 = 32 * 1024;

#[test]
fn a_huge_request_body_passes_through_without_being_kept() {
    let gateway = Process::before(streaming_upstream()).warmed_up();
    let before = gateway.memory("VmRSS");
    let mut client = Client::connect(gateway.address);
    let len = amount();
    client.send(format!(
        "POST /api/up HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
    ));
    write_zeros(&mut client.stream, len).unwrap();
    assert_eq!(client.answer().body, len.to_string().as_bytes());
    let growth = gateway.memory("VmHWM").saturating_sub(before);
    println!("a request body of {} MiB cost {growth} KiB", len >> 20);
    assert!(growth < MOST_GROWTH, "{growth} KiB");
}

#[test]
fn a_huge_response_body_passes_through_without_being_kept() {
    let gateway = Process::before(streaming_upstream()).warmed_up();
    let before = gateway.memory("VmRSS");
    let mut client = Client::connect(gateway.address);
    client.send("GET /api/down HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut buf = vec![0; 256 * 1024];
    let mut received = 0;
    while let n @ 1.. = client.stream.read(&mut buf).unwrap() {
        received += n as u64;
    }
    assert!(
        (amount()..amount() + 1024).contains(&received),
        "{received}"
    );
    let growth = gateway.memory("VmHWM").saturating_sub(before);
    println!(
        "a response body of {} MiB cost {growth} KiB",
        amount() >> 20
    );
    assert!(growth < MOST_GROWTH, "{growth} KiB");
}

#[test]
fn ten_thousand_connections_at_rest_cost_little() {
    const CONNECTIONS: u64 = 10_000;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to its own maximum");
    if limit.maximum.is_some_and(|most| most < CONNECTIONS + 1_000) {
        println!(
            "skipped: {:?} open files are too few for {CONNECTIONS} connections",
            limit.maximum
        );
        return;
    }
    let gateway = Process::before(streaming_upstream()).warmed_up();
    let before = gateway.memory("VmRSS");
    let clients: Vec<Client> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = Client::connect(gateway.address);
            client.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.answer().status, 200);
            client
        })
        .collect();
    let each = gateway.memory("VmRSS").saturating_sub(before) * 1024 / CONNECTIONS;
    println!("{CONNECTIONS} connections at rest cost {each} bytes each");
    assert!(each <= 16 * 1024, "{each} bytes");
    drop(clients);
}
