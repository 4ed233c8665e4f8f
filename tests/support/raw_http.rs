//! Client and upstream for tests that send and receive raw bytes on both sides of a gateway.
//!
//! The client sends arbitrary bytes. The upstream runs a script and records every byte that it receives. Both only find
//! the end of a message and do not otherwise parse HTTP. The tests send messages that two HTTP parsers could read
//! differently. A complete parser here could hide such a difference.
//!
//! The sockets of the client block and have timeouts, so a test fails instead of hanging.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Gateway, TEST_TIMEOUT};

/// Gateway with one worker. It forwards `/api`, forwards one `/limited` request per hour, and rejects everything else.
pub(crate) struct WireGateway(Gateway);

impl WireGateway {
    pub(crate) fn forwarding_to(upstream: &RawUpstream) -> Self {
        Self::with(upstream.address, "", "")
    }

    /// Starts a gateway that forwards to `upstream`. `server` and `api` contain additional lines for `[server]` and
    /// `[upstream.api]`.
    pub(crate) fn with(upstream: SocketAddr, server: &str, api: &str) -> Self {
        Self(Gateway::with(&configuration(upstream, server, api)).start())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    pub(crate) fn client(&self) -> RawClient {
        RawClient::connect(self.address())
    }
}

/// Returns the configuration of a [`WireGateway`] as TOML text.
pub(crate) fn configuration(upstream: SocketAddr, server: &str, api: &str) -> String {
    format!(
        r#"
        [server]
        listen = "127.0.0.1:0"
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

/// Client that finds the end of each response and does not otherwise parse it.
pub(crate) struct RawClient {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// Response as the client received it.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    /// Status line and header lines.
    pub(crate) head: String,
    /// Body without its framing.
    pub(crate) body: Vec<u8>,
}

/// How the gateway ended a connection: with FIN (`Closed`) or with RST (`Reset`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
}

impl RawClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).expect("connecting to the gateway should succeed"))
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("the socket should be open");
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("the socket should be open");
        stream
            .set_write_timeout(Some(TEST_TIMEOUT))
            .expect("the socket should be open");
        Self {
            stream,
            received: Vec::new(),
        }
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream
            .write_all(bytes.as_ref())
            .expect("the gateway should accept the bytes");
        self
    }

    /// Sends `bytes` on a separate thread until the gateway has accepted all of them or closes the connection.
    pub(crate) fn send_in_background(&self, bytes: Vec<u8>) -> thread::JoinHandle<()> {
        let mut stream = self.stream.try_clone().expect("the socket should be open");
        thread::spawn(move || {
            // A write error is ignored: the gateway can close the connection before it has read all bytes. The tests
            // check only its response.
            let _ = stream.write_all(&bytes);
        })
    }

    /// Reads the next complete response and returns it. Panics if the connection ends before the end of the response.
    #[track_caller]
    pub(crate) fn response(&mut self) -> RawResponse {
        loop {
            if let Some((response, len)) = parse_response(&self.received) {
                self.received.drain(..len);
                return response;
            }
            if let Err(end) = self.receive() {
                panic!(
                    "the connection ended ({end:?}) before all expected bytes arrived, received: {:?}",
                    self.received.escape_ascii().to_string()
                );
            }
        }
    }

    /// Reads until the connection ends. Returns all bytes received and how the connection ended.
    #[track_caller]
    pub(crate) fn read_to_end(&mut self) -> (Vec<u8>, End) {
        loop {
            if let Err(end) = self.receive() {
                return (std::mem::take(&mut self.received), end);
            }
        }
    }

    /// Asserts that the gateway closes the connection without sending more bytes.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        let (received, end) = self.read_to_end();
        assert_eq!(received.escape_ascii().to_string(), "", "{end:?}");
    }

    /// Reads until `bytes` have arrived, and returns everything received so far. Panics if the connection ends before
    /// that.
    #[track_caller]
    pub(crate) fn read_until(&mut self, bytes: &[u8]) -> Vec<u8> {
        while !contains(&self.received, bytes) {
            if let Err(end) = self.receive() {
                panic!(
                    "the connection ended ({end:?}) before all expected bytes arrived, received: {:?}",
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
                "cannot read from the gateway ({error}), received: {:?}",
                self.received.escape_ascii().to_string()
            ),
        }
    }
}

impl RawResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.split("\r\n").skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Parses the response at the start of `bytes`. Returns it with its length in bytes, or `None` if it is incomplete. A
/// response with neither `Content-Length` nor chunked encoding is parsed without a body.
fn parse_response(bytes: &[u8]) -> Option<(RawResponse, usize)> {
    let head_len = find(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_len]).into_owned();
    let status = head.get(9..12)?.parse().ok()?;
    let (body, body_len) = parse_body(&head, &bytes[head_len..])?;
    let response = RawResponse { status, head, body };
    Some((response, head_len + body_len))
}

/// Parses the body at the start of `bytes` with the framing that `head` declares. Returns the body and its encoded
/// length in bytes, or `None` if it is incomplete.
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
                // The search starts at the CRLF of the last chunk line, so that it also finds the end of a body without
                // trailers.
                let tail = &bytes[at - 2..];
                return Some((body, at - 2 + find(tail, b"\r\n\r\n")? + 4));
            }
            body.extend_from_slice(bytes.get(at..at + size)?);
            at += size + 2;
            if bytes.len() < at {
                return None;
            }
        }
    }
    let len = match head.split("\r\ncontent-length: ").nth(1) {
        Some(value) => value.split("\r\n").next()?.trim().parse().ok()?,
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

/// Upstream that runs a script on each connection and records every byte that it receives.
pub(crate) struct RawUpstream {
    pub(crate) address: SocketAddr,
    record: Arc<Mutex<Vec<Vec<u8>>>>,
    ended: Arc<AtomicBool>,
}

/// One connection of a [`RawUpstream`].
pub(crate) struct UpstreamConnection {
    pub(crate) stream: TcpStream,
    /// Number of this connection, in the order of acceptance. The first connection is 0.
    pub(crate) number: usize,
    record: Arc<Mutex<Vec<Vec<u8>>>>,
    unread: Vec<u8>,
}

/// Request as the upstream received it.
pub(crate) struct RawRequest {
    /// Request line and header lines.
    pub(crate) head: String,
    /// Body without its framing.
    pub(crate) body: Vec<u8>,
}

impl RawUpstream {
    pub(crate) fn scripted(
        script: impl Fn(&mut UpstreamConnection) + Send + Sync + 'static,
    ) -> Self {
        Self::scripted_on(([127, 0, 0, 1], 0).into(), script)
    }

    /// Creates an upstream like [`scripted`](Self::scripted) that listens on `address`.
    pub(crate) fn scripted_on(
        address: SocketAddr,
        script: impl Fn(&mut UpstreamConnection) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("the port should be free");
        let address = listener
            .local_addr()
            .expect("the listener should have an address");
        let record = Arc::new(Mutex::new(Vec::new()));
        let ended = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let (records, stopped) = (Arc::clone(&record), Arc::clone(&ended));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let stream = stream.expect("the connection should be established");
                let (record, script) = (Arc::clone(&records), Arc::clone(&script));
                let number = {
                    let mut connections = record.lock();
                    connections.push(Vec::new());
                    connections.len() - 1
                };
                thread::spawn(move || {
                    script(&mut UpstreamConnection::new(stream, number, record));
                });
            }
        });
        Self {
            address,
            record,
            ended,
        }
    }

    /// Creates an upstream that responds to every request with 200 and the request line as the body.
    pub(crate) fn echoing_request_line() -> Self {
        Self::scripted(|connection| {
            while let Some(request) = connection.request() {
                connection.send(ok(request.line()));
            }
        })
    }

    /// Returns the URL of this upstream for the gateway's configuration.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all bytes received on all connections, in the order of the connections.
    pub(crate) fn received(&self) -> String {
        let connections = self.record.lock();
        String::from_utf8_lossy(&connections.concat()).into_owned()
    }

    /// Returns the number of connections that the upstream has accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.record.lock().len()
    }

    /// Discards the bytes recorded so far on all connections.
    pub(crate) fn clear_received(&self) {
        let mut connections = self.record.lock();
        connections.iter_mut().for_each(Vec::clear);
    }

    /// Asserts that the upstream has received nothing from earlier requests. Sends a new request first. The gateway has
    /// one worker, so the response to this request shows that all earlier work is finished.
    #[track_caller]
    pub(crate) fn assert_received_nothing(&self, gateway: &WireGateway) {
        let mut client = gateway.client();
        client.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().body, b"GET /api/after HTTP/1.1");
        let received = self.received();
        assert!(received.starts_with("GET /api/after "), "{received:?}");
        assert_eq!(received.matches(" HTTP/1.1").count(), 1, "{received:?}");
        self.clear_received();
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // The connection wakes the accepting thread, which then ends. A connect error is ignored, because the thread
        // ends with the process in any case.
        let _ = TcpStream::connect(self.address);
    }
}

impl UpstreamConnection {
    fn new(stream: TcpStream, number: usize, record: Arc<Mutex<Vec<Vec<u8>>>>) -> Self {
        stream.set_nodelay(true).expect("the socket should be open");
        Self {
            stream,
            number,
            record,
            unread: Vec::new(),
        }
    }

    /// Reads the head of the next request. Returns `None` if the gateway closes the connection before the end of the
    /// head.
    pub(crate) fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Some(String::from_utf8_lossy(&head).into_owned());
            }
            self.receive()?;
        }
    }

    /// Reads the next request with its body. Returns `None` if the gateway closes the connection before the end of the
    /// request.
    pub(crate) fn request(&mut self) -> Option<RawRequest> {
        let head = self.head()?;
        loop {
            if let Some((body, len)) = parse_body(&head, &self.unread) {
                self.unread.drain(..len);
                return Some(RawRequest { head, body });
            }
            self.receive()?;
        }
    }

    /// Sends `bytes` until the gateway has accepted all of them or closes the connection.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A write error is ignored, because the gateway closes the connection in some tests.
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Makes the kernel send RST instead of FIN when the connection is dropped.
    pub(crate) fn reset_on_close(&self) {
        let result = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        result.expect("the socket should be open");
    }

    /// Reads and records bytes until the gateway closes the connection.
    pub(crate) fn read_to_close(&mut self) {
        while self.receive().is_some() {}
    }

    /// Reads once from the socket. Returns all received bytes that [`Self::head`] and [`Self::request`] have not
    /// returned yet, or `None` if the gateway has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        let mut buf = [0; 16 * 1024];
        let n = self.stream.read(&mut buf).ok().filter(|&n| n > 0)?;
        let mut connections = self.record.lock();
        connections[self.number].extend_from_slice(&buf[..n]);
        self.unread.extend_from_slice(&buf[..n]);
        Some(&self.unread)
    }
}

impl RawRequest {
    pub(crate) fn line(&self) -> &str {
        self.head.split("\r\n").next().unwrap_or_default()
    }
}

/// Returns an HTTP/1.1 response with status 200 and this body.
pub(crate) fn ok(body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}")
}
