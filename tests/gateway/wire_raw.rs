//! Raw bytes on both sides of a running gateway.
//!
//! A client that sends whatever it is told and an upstream that answers whatever its script says and
//! keeps every byte it was sent. Nothing here understands HTTP beyond finding the end of a message:
//! what is tested is what passes between parsers that disagree, so none may stand in between. Sockets
//! block and have deadlines; a test that would hang fails instead.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate::config::{self, Environment, Overrides};
use tidegate::gateway::Gateway;
use tidegate::pipeline::Shared;

/// How long anything may take on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `holds`, and fails if it never does.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A gateway with one worker: `/api` is forwarded, `/limited` once an hour, and nothing else.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    gateway: Option<Gateway>,
}

impl Running {
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Self::with(upstream.address, "", "")
    }

    /// Also with these lines of `[server]` and of `[upstream.api]`.
    pub(crate) fn with(upstream: SocketAddr, server: &str, api: &str) -> Self {
        let text = configuration("127.0.0.1:0", upstream, server, api);
        let environment = Environment::default();
        let loaded = config::parse("test", &text, &environment, &Overrides::default())
            .unwrap_or_else(|errors| panic!("{errors}"));
        let shared = Shared::open(Arc::new(loaded.policy), Clock::real()).expect("memory");
        let gateway = Gateway::start(shared).expect("a gateway on a free port");
        Self {
            address: gateway.addresses()[0],
            gateway: Some(gateway),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stopper().halt();
            let ended = gateway.join();
            assert!(thread::panicking() || ended.is_ok(), "a worker crashed");
        }
    }
}

/// The configuration of [`Running`].
pub(crate) fn configuration(listen: &str, upstream: SocketAddr, server: &str, api: &str) -> String {
    format!(
        r#"
        [server]
        listen = "{listen}"
        workers = 1
        {server}
        [log]
        access = false
        [upstream.api]
        servers = ["http://{upstream}"]
        {api}
        [limit.hourly]
        rate = "1/h"
        burst = 0
        [[route]]
        name = "limited"
        path = "/limited"
        limits = ["hourly"]
        [[route]]
        name = "api"
        path = "/api"
        "#
    )
}

/// A client that knows where an answer ends, and no more.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// One response as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and header lines.
    pub(crate) head: String,
    /// The body without its framing.
    pub(crate) body: Vec<u8>,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).expect("a connection to the gateway"))
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("an open socket");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("an open socket");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("an open socket");
        Self {
            stream,
            received: Vec::new(),
        }
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream
            .write_all(bytes.as_ref())
            .expect("the gateway takes what is sent");
        self
    }

    /// Sends on a thread of its own, as much as the gateway takes.
    pub(crate) fn send_meanwhile(&self, bytes: Vec<u8>) -> thread::JoinHandle<()> {
        let mut stream = self.stream.try_clone().expect("an open socket");
        thread::spawn(move || {
            // The gateway may well close before it has all; what matters is what it answered.
            let _ = stream.write_all(&bytes);
        })
    }

    /// The next answer, whole.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        loop {
            if let Some((answer, len)) = parse_answer(&self.received) {
                self.received.drain(..len);
                return answer;
            }
            if let Err(end) = self.receive() {
                panic!(
                    "{end:?} amid {:?}",
                    self.received.escape_ascii().to_string()
                );
            }
        }
    }

    /// Everything up to the end of the connection, and how it ended.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> (Vec<u8>, End) {
        loop {
            if let Err(end) = self.receive() {
                return (std::mem::take(&mut self.received), end);
            }
        }
    }

    /// Holds that the gateway closes and says nothing more.
    #[track_caller]
    pub(crate) fn is_hung_up(&mut self) {
        let (rest, end) = self.rest();
        assert_eq!(rest.escape_ascii().to_string(), "", "{end:?}");
    }

    /// Reads until `bytes` have come, and gives back all that came.
    #[track_caller]
    pub(crate) fn until(&mut self, bytes: &[u8]) -> Vec<u8> {
        while !contains(&self.received, bytes) {
            if let Err(end) = self.receive() {
                panic!(
                    "{end:?} amid {:?}",
                    self.received.escape_ascii().to_string()
                );
            }
        }
        std::mem::take(&mut self.received)
    }

    #[track_caller]
    fn receive(&mut self) -> Result<(), End> {
        let mut buf = [0; 16 * 1024];
        match self.stream.read(&mut buf) {
            Ok(0) => Err(End::Closed),
            Ok(n) => {
                self.received.extend_from_slice(&buf[..n]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(End::Reset),
            Err(error) => panic!(
                "{error} after {:?}",
                self.received.escape_ascii().to_string()
            ),
        }
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.split("\r\n").skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// The answer that `bytes` begin with and its length, if all of it is there. One without a declared
/// length is taken to have no body.
fn parse_answer(bytes: &[u8]) -> Option<(Answer, usize)> {
    let head_len = find(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_len]).into_owned();
    let status = head.get(9..12)?.parse().ok()?;
    let (body, body_len) = parse_body(&head, &bytes[head_len..])?;
    let answer = Answer { status, head, body };
    Some((answer, head_len + body_len))
}

/// The body that `bytes` begin with, as `head` declares it, and how many bytes it takes up.
fn parse_body(head: &str, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let head = head.to_ascii_lowercase();
    if head.contains("\r\ntransfer-encoding: chunked\r\n") {
        let mut body = Vec::new();
        let mut at = 0;
        loop {
            let line = find(&bytes[at..], b"\r\n")?;
            let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
            let size = usize::from_str_radix(size.split(';').next()?, 16).ok()?;
            at += line + 2;
            if size == 0 {
                // The last line of the trailers is empty; without any it is the only one.
                let rest = &bytes[at - 2..];
                return Some((body, at - 2 + find(rest, b"\r\n\r\n")? + 4));
            }
            body.extend_from_slice(bytes.get(at..at + size)?);
            at += size + 2;
            if bytes.len() < at {
                return None;
            }
        }
    }
    let len = match head.split("\r\ncontent-length: ").nth(1) {
        Some(rest) => rest.split("\r\n").next()?.trim().parse().ok()?,
        None => 0,
    };
    Some((bytes.get(..len)?.to_vec(), len))
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

pub(crate) fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    find(bytes, wanted).is_some()
}

/// An upstream that follows a script on each connection and keeps every byte it was sent.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    record: Arc<Mutex<Vec<Vec<u8>>>>,
    ended: Arc<AtomicBool>,
}

/// One connection of an [`Upstream`].
pub(crate) struct Conversation {
    pub(crate) stream: TcpStream,
    /// Which connection it is, counted from 0.
    pub(crate) number: usize,
    record: Arc<Mutex<Vec<Vec<u8>>>>,
    unread: Vec<u8>,
}

/// A request as it reached upstream.
pub(crate) struct Request {
    /// Request line and header lines.
    pub(crate) head: String,
    /// The body without its framing.
    pub(crate) body: Vec<u8>,
}

impl Upstream {
    pub(crate) fn scripted(script: impl Fn(&mut Conversation) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let record = Arc::new(Mutex::new(Vec::new()));
        let ended = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let (records, over) = (Arc::clone(&record), Arc::clone(&ended));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let stream = stream.expect("a connection");
                let (record, script) = (Arc::clone(&records), Arc::clone(&script));
                let number = {
                    let mut connections = record.lock().expect("no test panics holding it");
                    connections.push(Vec::new());
                    connections.len() - 1
                };
                thread::spawn(move || {
                    script(&mut Conversation::new(stream, number, record));
                });
            }
        });
        Self {
            address,
            record,
            ended,
        }
    }

    /// Answers every request with 200 and the request line.
    pub(crate) fn repeating() -> Self {
        Self::scripted(|conversation| {
            while let Some(request) = conversation.request() {
                conversation.send(ok(request.line()));
            }
        })
    }

    /// Where it is, for a configuration.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All bytes received, one connection after the other.
    pub(crate) fn received(&self) -> String {
        let connections = self.record.lock().expect("no test panics holding it");
        String::from_utf8_lossy(&connections.concat()).into_owned()
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.record.lock().expect("no test panics holding it").len()
    }

    /// Forgets what was received so far.
    pub(crate) fn forget(&self) {
        let mut connections = self.record.lock().expect("no test panics holding it");
        connections.iter_mut().for_each(Vec::clear);
    }

    /// Holds that nothing was received, and nothing is on its way: what a gateway of one worker did
    /// before it answered this, it has done.
    #[track_caller]
    pub(crate) fn got_nothing_by(&self, gateway: &Running) {
        let mut client = gateway.client();
        client.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.answer().body, b"GET /api/after HTTP/1.1");
        let received = self.received();
        assert!(received.starts_with("GET /api/after "), "{received:?}");
        assert_eq!(received.matches(" HTTP/1.1").count(), 1, "{received:?}");
        self.forget();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; it ends with the process where this fails.
        let _ = TcpStream::connect(self.address);
    }
}

impl Conversation {
    fn new(stream: TcpStream, number: usize, record: Arc<Mutex<Vec<Vec<u8>>>>) -> Self {
        stream.set_nodelay(true).expect("an open socket");
        Self {
            stream,
            number,
            record,
            unread: Vec::new(),
        }
    }

    /// The head of the next request; `None` at the end of the connection.
    pub(crate) fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Some(String::from_utf8_lossy(&head).into_owned());
            }
            self.receive()?;
        }
    }

    /// The next request with its body; `None` at the end of the connection.
    pub(crate) fn request(&mut self) -> Option<Request> {
        let head = self.head()?;
        loop {
            if let Some((body, len)) = parse_body(&head, &self.unread) {
                self.unread.drain(..len);
                return Some(Request { head, body });
            }
            self.receive()?;
        }
    }

    /// Sends as much as the gateway takes.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A gateway that hangs up is what some scripts are about.
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Has the connection end with a reset when this is dropped.
    pub(crate) fn will_reset(&self) {
        let lingers = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        lingers.expect("an open socket");
    }

    /// Reads to the end of the connection.
    pub(crate) fn until_closed(&mut self) {
        while self.receive().is_some() {}
    }

    /// Reads on; `None` at the end of the connection.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        let mut buf = [0; 16 * 1024];
        let n = self.stream.read(&mut buf).ok().filter(|&n| n > 0)?;
        let mut connections = self.record.lock().expect("no test panics holding it");
        connections[self.number].extend_from_slice(&buf[..n]);
        self.unread.extend_from_slice(&buf[..n]);
        Some(&self.unread)
    }
}

impl Request {
    pub(crate) fn line(&self) -> &str {
        self.head.split("\r\n").next().unwrap_or_default()
    }
}

/// A response with this body.
pub(crate) fn ok(body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}")
}
