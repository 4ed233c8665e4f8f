//! Tests of slow uploads: `request_buffer` keeps them away from servers, and `min_rate` ends them.

mod gunicorn;

use bytes::Bytes;
use tidegate::internals;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Client, Gateway, Process, TEST_TIMEOUT, Upstream, eventually};

/// Size of the uploads, in bytes.
const SIZE: usize = 100_000;

/// An upload whose client has not sent the last part yet.
enum Upload {
    Http1(TcpStream),
    Http2 {
        response: h2::client::ResponseFuture,
        body: h2::SendStream<Bytes>,
    },
}

impl Upload {
    /// Sends the head of an upload of `size` bytes to `path`.
    async fn start(client: &Client, is_http2: bool, path: &str, size: usize) -> Self {
        let mut socket = client.connect().await.expect("the connection is open");
        if !is_http2 {
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
            let sent = socket.write_all(head.as_bytes()).await;
            sent.expect("the bytes are sent");
            return Self::Http1(socket);
        }
        let handshake = h2::client::handshake(socket).await;
        let (mut requests, connection) = handshake.expect("the handshake succeeds");
        tokio::spawn(async { drop(connection.await) });
        let request = http::Request::post(format!("http://a{path}"))
            .header("content-length", size)
            .body(())
            .expect("the request is valid");
        let sent = requests.send_request(request, false);
        let (response, body) = sent.expect("the stream is open");
        Self::Http2 { response, body }
    }

    async fn send(&mut self, part: &'static [u8]) {
        match self {
            Self::Http1(socket) => socket.write_all(part).await.expect("the bytes are sent"),
            Self::Http2 { body, .. } => body
                .send_data(Bytes::from_static(part), false)
                .expect("the stream is open"),
        }
    }

    /// Sends the last part, and returns the status of the response.
    async fn finish(mut self, part: &'static [u8]) -> u16 {
        match &mut self {
            Self::Http1(_) => self.send(part).await,
            Self::Http2 { body, .. } => body
                .send_data(Bytes::from_static(part), true)
                .expect("the stream is open"),
        }
        self.status().await
    }

    /// Waits for the response and returns its status.
    async fn status(self) -> u16 {
        let receiving = async {
            match self {
                Self::Http1(mut socket) => {
                    let mut line = [0; "HTTP/1.1 200".len()];
                    let read = socket.read_exact(&mut line).await;
                    read.expect("a response arrives");
                    let status = String::from_utf8_lossy(&line[9..]).parse();
                    status.expect("the status is a number")
                }
                Self::Http2 { response, body } => {
                    let response = response.await.expect("a response arrives");
                    drop(body);
                    response.status().as_u16()
                }
            }
        };
        let status = tokio::time::timeout(TEST_TIMEOUT, receiving).await;
        status.expect("the response arrives in time")
    }
}

static BODY: [u8; SIZE] = [b'x'; SIZE];

/// Sends an upload to `/`, and asserts that a server is contacted only after its last byte.
async fn assert_buffered(gateway: &Gateway, upstream: &Upstream, is_http2: bool) {
    let contacts = upstream.connections();
    let mut upload = Upload::start(&gateway.client(), is_http2, "/", SIZE).await;
    upload.send(&BODY[1..]).await;
    eventually("the gateway buffers the upload", async || {
        internals::buffered_bytes(&gateway.shared()) >= SIZE - 1
    })
    .await;
    assert_eq!(upstream.connections(), contacts, "HTTP/2: {is_http2}");
    assert_eq!(upload.finish(&BODY[..1]).await, 200);
}

#[tokio::test]
async fn a_server_is_contacted_after_the_last_byte_of_a_small_upload() {
    let upstream = closing_upstream();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for is_http2 in [false, true] {
        assert_buffered(&gateway, &upstream, is_http2).await;
        assert_eq!(upstream.last().body.len(), SIZE);
        eventually("the buffer is released", async || {
            internals::buffered_bytes(&gateway.shared()) == 0
        })
        .await;
    }
    assert_eq!(upstream.count(), 2);
}

/// Starts an upload without its last byte, and asserts that a server is contacted nevertheless.
async fn assert_streamed(gateway: &Gateway, upstream: &Upstream, is_http2: bool, path: &str) {
    let contacts = upstream.connections();
    let mut upload = Upload::start(&gateway.client(), is_http2, path, SIZE).await;
    upload.send(&BODY[1..]).await;
    eventually("a server is contacted", async || {
        upstream.connections() > contacts
    })
    .await;
    assert_eq!(upload.finish(&BODY[..1]).await, 200);
    assert_eq!(upstream.last().body.len(), SIZE);
}

/// Returns a server that closes the connection after each response, so that each contact is a new connection.
fn closing_upstream() -> Upstream {
    Upstream::with(|_| async {
        let mut reply = crate::support::full("ok");
        let headers = reply.headers_mut();
        headers.insert("connection", http::HeaderValue::from_static("close"));
        reply
    })
}

#[tokio::test]
async fn a_server_is_contacted_before_the_end_of_an_upload_above_request_buffer() {
    let upstream = closing_upstream();
    let gateway = Gateway::proxying("[server]\nrequest_buffer = \"64KiB\"")
        .upstream(&upstream)
        .start();
    for is_http2 in [false, true] {
        assert_streamed(&gateway, &upstream, is_http2, "/").await;
    }
}

#[tokio::test]
async fn a_route_overrides_request_buffer() {
    let upstream = closing_upstream();
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n\
         [[route]]\nname = \"live\"\npath = \"/live\"\nrequest_buffer = 0\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(&upstream)
    .start();
    for is_http2 in [false, true] {
        assert_streamed(&gateway, &upstream, is_http2, "/live").await;
        assert_buffered(&gateway, &upstream, is_http2).await;
    }
}

#[tokio::test]
async fn an_upload_beyond_max_buffered_is_streamed() {
    let upstream = closing_upstream();
    let gateway = Gateway::proxying("[server]\nmax_buffered = \"64KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    for (number, is_http2) in (1..).zip([false, true]) {
        assert_streamed(&gateway, &upstream, is_http2, "/").await;
        let exceeded = "buffers_exceeded_total{kind=\"upload\"}";
        gateway.wait_for_metric(exceeded, number).await;
    }
    gateway.wait_for_metric("buffered_bytes", 0).await;
}

#[tokio::test]
async fn the_gateway_sends_100_continue_before_it_contacts_a_server() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let mut socket = gateway.client().connect().await.expect("it is open");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("it is sent");
    let mut interim = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    let read = tokio::time::timeout(TEST_TIMEOUT, socket.read_exact(&mut interim)).await;
    read.expect("100 Continue arrives in time")
        .expect("100 Continue arrives");
    assert!(interim.starts_with(b"HTTP/1.1 100 "), "{interim:?}");
    assert_eq!(upstream.connections(), 0);
    assert_eq!(Upload::Http1(socket).finish(b"hello").await, 200);
    assert_eq!(upstream.last().body, "hello");
}

#[tokio::test]
async fn a_buffered_chunked_body_reaches_the_server_whatever_its_method() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for method in ["POST", "GET", "DELETE"] {
        for (chunks, body) in [("2\r\nhe\r\n3\r\nllo\r\n", "hello"), ("", "")] {
            let head = format!(
                "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            let request = format!("{head}{chunks}0\r\n\r\n");
            let response = gateway.client().send_raw(request).await;
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            let received = upstream.last();
            assert_eq!(received.body, body, "{method}");
            assert!(!received.has("transfer-encoding"), "{method}");
        }
    }
}

#[tokio::test]
async fn an_upload_below_the_minimum_rate_gets_408_and_reaches_no_server() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n\
         [[route]]\nname = \"keyed\"\npath = \"/keyed\"\nidempotency = { scope = \"client\", body_field = \"key\" }\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(&upstream)
    .admin()
    .start();
    let client = gateway.client();
    let upload = |is_http2, path| {
        let client = client.clone();
        async move {
            let mut upload = Upload::start(&client, is_http2, path, SIZE).await;
            upload.send(b"x").await;
            upload.status().await
        }
    };
    let uploads = tokio::join!(
        upload(false, "/"),
        upload(true, "/"),
        upload(false, "/keyed"),
        upload(true, "/keyed"),
    );
    assert_eq!(uploads, (408, 408, 408, 408));
    assert_eq!(upstream.connections(), 0);
    gateway.wait_for_metric("slow_bodies_total", 4).await;
    assert_eq!(gateway.counts().in_progress, 0);
}

#[tokio::test]
async fn a_large_upload_passes_with_bounded_memory() {
    const PARTS: usize = 100;
    static PART: [u8; 1 << 20] = [b'x'; 1 << 20];
    let upstream =
        Upstream::with(
            |request| async move { crate::support::full(request.body.len().to_string()) },
        );
    let gateway = Process::serving(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n[log]\naccess = false\n\
         [upstream.api]\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n",
        upstream.url()
    ))
    .start();
    // This request triggers one-time allocations before the first measurement, so that they do not count as growth.
    let first = gateway.client().post("/").body(vec![b'x'; 1_000]);
    assert_eq!(first.send().await.status, 200);
    for is_http2 in [false, true] {
        let before = gateway.memory("VmRSS");
        let size = PARTS << 20;
        let mut upload = Upload::start(&gateway.client(), is_http2, "/", size).await;
        for _ in 1..PARTS {
            upload.send(&PART).await;
        }
        assert_eq!(upload.finish(&PART).await, 200, "HTTP/2: {is_http2}");
        assert_eq!(upstream.last().body.len(), size);
        let growth = gateway.memory("VmHWM").saturating_sub(before);
        println!("HTTP/2: {is_http2}: memory grew by {growth} KiB");
        assert!(growth < 32 << 10, "memory grew by {growth} KiB");
    }
}
