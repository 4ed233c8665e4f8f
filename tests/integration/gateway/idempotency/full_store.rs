//! Campaign against a store that is full all the time: many more keyed requests than `max_keys`.
//!
//! No request is rejected, because keys older than `min_ttl` exist. No key is executed twice within `min_ttl`. Memory
//! stays bounded, and the warnings state the right time until the store is full.
//!
//! The environment variable `KEYS_REQUESTS` sets the number of requests, and `KEYS_TIDEGATE` the path of the gateway
//! binary.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{Process, env_number};

const DEFAULT_REQUESTS: u64 = 3_000_000;
const MAX_KEYS: u64 = 100_000;
/// At more than 80,000 requests per second one caller would use its share of the store within this time, and would be
/// rejected.
const MIN_TTL: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 32;

/// Pause of a connection before each of the first `MAX_KEYS` requests. The store thus fills in about 10 s, so that a
/// warning once per second can state when it will be full.
const PAUSE: Duration = Duration::from_millis(3);

/// One of this many requests repeats a recent key.
const REPEAT: u64 = 20;

/// Number of recent keys from which a connection selects the key that it repeats.
const RECENT: usize = 64;

/// What clients and upstream observe.
struct Campaign {
    started: Instant,
    requests: u64,
    callers: u64,
    next_key: AtomicU64,
    replays: AtomicU64,
    /// Time of the last execution of each key, in milliseconds after the start plus 1; 0 if it was not executed.
    executed: Vec<AtomicU64>,
    executed_twice: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: `make keys`"]
async fn keys_of_one_caller_in_memory() {
    Campaign::run(1, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: `make keys`"]
async fn keys_of_many_callers_in_memory() {
    Campaign::run(1_000, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: `make keys`"]
async fn keys_of_one_caller_on_disk() {
    Campaign::run(1, "backend = \"disk\"\npath = \"store\"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: `make keys`"]
async fn keys_of_many_callers_on_disk() {
    Campaign::run(1_000, "backend = \"disk\"\npath = \"store\"").await;
}

impl Campaign {
    async fn run(callers: u64, store: &str) {
        let requests = env_number("KEYS_REQUESTS").unwrap_or(DEFAULT_REQUESTS);
        let campaign = Arc::new(Self {
            started: Instant::now(),
            requests,
            callers,
            next_key: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            executed: (0..requests).map(|_| AtomicU64::new(0)).collect(),
            executed_twice: AtomicU64::new(0),
        });
        let upstream = campaign.serve().await;
        let gateway = Process::serving(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = false\n\
             [client]\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
             [store]\nmax_keys = {MAX_KEYS}\nmin_ttl = \"{MIN_TTL:?}\"\n{store}\n\
             [upstream.api]\nservers = [\"http://{upstream}\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ ttl = \"10m\" }}\n"
        ))
        .binary_from_env("KEYS_TIDEGATE")
        .start();
        let address = gateway.address();
        let mut clients = JoinSet::new();
        for _ in 0..CONNECTIONS {
            clients.spawn(Arc::clone(&campaign).send_all(address));
        }
        let began = Instant::now();
        let observed = campaign.observe(&gateway, clients).await;
        let elapsed = began.elapsed();
        let forgotten = gateway.metric("idempotency_forgotten_total").await;
        let keys = gateway.metric("idempotency_keys").await;
        let effective_ttl = gateway.metric("idempotency_effective_ttl_seconds").await;
        println!(
            "{requests} requests of {callers} callers in {elapsed:.0?}, {} replays, {keys} keys stored, {forgotten} \
             forgotten, effective TTL {effective_ttl} s, memory {} MiB at a third, {} MiB at the end; {observed:?}",
            campaign.replays.load(Ordering::Relaxed),
            observed.third_kib / 1_024,
            observed.end_kib / 1_024,
        );
        assert_eq!(campaign.executed_twice.load(Ordering::Relaxed), 0);
        // One caller can use 80 % of the store, all together 100 %.
        let (level, expected) = if callers == 1 {
            ("reached 80 %", MAX_KEYS / 10 * 8 + 1)
        } else {
            ("reached 95 %", MAX_KEYS)
        };
        assert_eq!((keys, forgotten), (expected, requests - expected));
        assert_eq!(gateway.count_lines(level), 1, "{}", gateway.log());
        assert_eq!(gateway.count_lines("reached 50 %"), 1, "{}", gateway.log());
        assert!(effective_ttl >= MIN_TTL.as_secs(), "{effective_ttl} s");
        let readyz = gateway.readyz().await;
        assert!(readyz.contains("% of max_keys in use"), "{readyz}");
        observed.check_projection(callers);
        assert!(
            observed.end_kib <= observed.third_kib * 5 / 4,
            "memory grows: {observed:?}"
        );
    }

    /// Starts an upstream server that counts executions. Its requests have no body.
    async fn serve(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let campaign = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let campaign = Arc::clone(&campaign);
                tokio::spawn(async move { campaign.serve_connection(stream).await });
            }
        });
        address
    }

    async fn serve_connection(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut received = Vec::new();
        loop {
            let head = read_head(&mut stream, &mut received).await?;
            let key = header(&head, "idempotency-key").expect("every request has a key");
            let key: usize = key.parse().expect("the key is a number");
            let now = u64::try_from(self.started.elapsed().as_millis()).unwrap() + 1;
            let last = self.executed[key].swap(now, Ordering::Relaxed);
            if last > 0 && u128::from(now - last) < MIN_TTL.as_millis() {
                self.executed_twice.fetch_add(1, Ordering::Relaxed);
            }
            let response = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(response).await?;
        }
    }

    /// Sends requests with new keys until all keys are used. Some of them are repeated and must be replayed.
    async fn send_all(self: Arc<Self>, address: SocketAddr) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut received = Vec::new();
        let mut recent = VecDeque::new();
        loop {
            let key = self.next_key.fetch_add(1, Ordering::Relaxed);
            if key >= self.requests {
                return;
            }
            if key < MAX_KEYS {
                sleep(PAUSE).await;
            }
            let head = self.exchange(&mut stream, &mut received, key).await;
            assert!(head.starts_with("http/1.1 201"), "key {key}: {head}");
            recent.push_back((key, Instant::now()));
            if recent.len() > RECENT {
                recent.pop_front();
            }
            if key.is_multiple_of(REPEAT) {
                let (key, completed) = recent[fastrand::usize(..recent.len())];
                let head = self.exchange(&mut stream, &mut received, key).await;
                if header(&head, "idempotent-replayed").is_some() {
                    self.replays.fetch_add(1, Ordering::Relaxed);
                } else {
                    assert!(completed.elapsed() >= MIN_TTL, "key {key}: {head}");
                }
            }
        }
    }

    async fn exchange(&self, stream: &mut TcpStream, received: &mut Vec<u8>, key: u64) -> String {
        let caller = key % self.callers;
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.{}.{}\r\nIdempotency-Key: {key}\r\n\
             Content-Length: 0\r\n\r\n",
            caller / 256,
            caller % 256
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        read_head(stream, received).await.unwrap()
    }

    /// Observes the gateway until all clients have ended.
    async fn observe(&self, gateway: &Process, mut clients: JoinSet<()>) -> Observed {
        let mut observed = Observed::default();
        while !clients.is_empty() {
            while let Some(ended) = clients.try_join_next() {
                ended.unwrap();
            }
            let now = self.started.elapsed();
            for line in gateway.lines() {
                let seen = if line.contains("reached 50 %") {
                    observed.full_in.get_or_insert_with(|| full_in(&line));
                    &mut observed.half
                } else if line.contains("reached 80 %") {
                    &mut observed.four_fifths
                } else if line.contains("forgotten before") {
                    &mut observed.full
                } else {
                    continue;
                };
                seen.get_or_insert(now);
            }
            observed.end_kib = gateway.memory("VmRSS:");
            if self.next_key.load(Ordering::Relaxed) < (self.requests / 3).max(2 * MAX_KEYS) {
                observed.third_kib = observed.end_kib;
            }
            sleep(Duration::from_millis(100)).await;
        }
        observed
    }
}

/// Log messages of the gateway with the time at which they were seen, and its memory.
#[derive(Debug, Default)]
struct Observed {
    half: Option<Duration>,
    four_fifths: Option<Duration>,
    full: Option<Duration>,
    /// Time until full, as the warning at 50 % states it.
    full_in: Option<Duration>,
    third_kib: u64,
    end_kib: u64,
}

impl Observed {
    fn check_projection(&self, callers: u64) {
        let half = self.half.unwrap();
        // The store of one caller stops at 80 %, after three fifths of the time from 50 % to 100 %.
        let actual = if callers == 1 {
            self.four_fifths.unwrap().abs_diff(half).mul_f64(5.0 / 3.0)
        } else {
            self.full.unwrap().abs_diff(half)
        };
        let stated = self.full_in.unwrap();
        let tolerance = Duration::from_secs(3) + actual / 2;
        assert!(stated.abs_diff(actual) <= tolerance, "{self:?}");
    }
}

/// Returns the time in the field `full_in` of a log line.
fn full_in(line: &str) -> Duration {
    let (_, value) = line.split_once("full_in=").expect("the line has the field");
    let value = value.split([' ', '"']).find(|part| !part.is_empty());
    let value = value.unwrap();
    let (number, unit) = value.split_at(value.len() - 1);
    let number: u64 = number.parse().unwrap_or_else(|_| panic!("{line}"));
    Duration::from_secs(match unit {
        "s" => number,
        "m" => number * 60,
        _ => panic!("{line}"),
    })
}

/// Reads a message without a body. Returns its head in lower case.
async fn read_head(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<String> {
    loop {
        if let Some(end) = received.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = received.drain(..end + 4).collect::<Vec<_>>();
            return Ok(String::from_utf8_lossy(&head).to_ascii_lowercase());
        }
        if stream.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}
