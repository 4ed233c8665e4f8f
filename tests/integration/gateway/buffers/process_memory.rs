//! Tests that the memory of a gateway process stays bounded while a thousand clients send unfinished uploads.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::exceeded;
use crate::support::{Client, Process, TEST_TIMEOUT, Upstream, eventually};

const UPLOADS: usize = 1_000;

/// Number of body bytes that each upload sends. `Content-Length` is one byte larger.
const SENT: usize = 200_000;

static BODY: [u8; SENT] = [b'x'; SENT];

const MAX_BUFFERED: usize = 16 << 20;

/// Number of HTTP/2 streams per connection. The 1,000 uploads thus use four connections. `SLACK` includes the receive
/// window of each connection, which is 4 MiB.
const STREAMS: usize = 250;

/// Number of bytes by which memory can grow in addition to `max_buffered`. Connections, streams and memory that the
/// allocator retains use these bytes.
const SLACK: usize = 32 << 20;

/// If no response arrives and the memory does not change for this time, the test assumes that the gateway has stopped
/// reading the uploads.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Gateway process with small values of `max_buffered` and `max_buffered_per_client`.
struct BoundedGateway {
    gateway: Process,
    upstream: Upstream,
    /// Resident memory of the gateway before the uploads, in KiB.
    before: u64,
}

/// Channel that receives the status and the `Retry-After` value of each response to an upload.
type UploadResponses = UnboundedReceiver<(u16, String)>;

impl BoundedGateway {
    async fn start() -> Self {
        let upstream = Upstream::replying(200);
        let gateway = Process::serving(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n\
             h2_max_streams = {STREAMS}\nmax_buffered = {MAX_BUFFERED}\nmax_buffered_per_client = \"4MiB\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = false\n\
             [upstream.api]\nservers = [\"{}\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{}}\n",
            upstream.url()
        ))
        .start();
        // This request triggers one-time allocations before the first measurement, so that they do not count as growth.
        let first = gateway.client().from("127.0.0.9").post("/").key("first");
        assert_eq!(first.body(vec![b'x'; SENT]).send().await.status, 200);
        let before = gateway.memory("VmRSS");
        Self {
            gateway,
            upstream,
            before,
        }
    }

    async fn metric(&self, series: &str) -> usize {
        self.gateway.admin().metric(series).await
    }

    /// Waits until no response arrives and memory does not change for `SETTLE_TIME`. Returns the responses.
    async fn wait_until_settled(&self, responses: &mut UploadResponses) -> Vec<(u16, String)> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut received = Vec::new();
        let mut state = (0, 0);
        let mut since = Instant::now();
        while since.elapsed() < SETTLE_TIME {
            assert!(
                Instant::now() < deadline,
                "responses or memory still change: {state:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
            while let Ok(response) = responses.try_recv() {
                received.push(response);
            }
            let now = (received.len(), self.gateway.memory("VmRSS"));
            if now != state {
                (state, since) = (now, Instant::now());
            }
        }
        received
    }

    /// Asserts that memory is bounded, that uploads beyond the bound are rejected, and that other clients are served.
    async fn assert_memory_bounded(&self, mut responses: UploadResponses, uploads: JoinSet<()>) {
        let rejected = self.wait_until_settled(&mut responses).await;
        let growth = self.gateway.memory("VmHWM").saturating_sub(self.before);
        println!(
            "the gateway rejected {} of {UPLOADS} uploads and its memory grew by {growth} KiB",
            rejected.len()
        );
        let most = (MAX_BUFFERED + SLACK) / 1024;
        assert!(
            growth <= most as u64,
            "memory grew by {growth} KiB, more than {most} KiB"
        );

        for response in &rejected {
            assert_eq!(*response, (503, "1".into()));
        }
        let held = UPLOADS - rejected.len();
        assert!(
            (1..=MAX_BUFFERED / SENT).contains(&held),
            "{held} uploads are buffered"
        );
        assert_eq!(self.metric(&exceeded("request")).await, rejected.len());
        let bytes = self.metric("buffered_bytes").await;
        assert!(
            (held * SENT..=MAX_BUFFERED / 2).contains(&bytes),
            "buffered_bytes is {bytes}"
        );

        let records = "idempotency_records{state=\"in_progress\"}";
        assert_eq!(self.metric(records).await, 0);
        assert_eq!(self.upstream.count(), 1);
        let client = self.gateway.client();
        let send = |client: Client, key: &str| {
            let request = client.post("/").key(key);
            request.body(vec![b'x'; SENT]).send()
        };
        assert_eq!(send(client.clone(), "upload-0").await.status, 503);
        let other = send(client.clone().from("127.0.0.2"), "upload-0").await;
        assert_eq!(other.status, 200, "{other:?}");

        drop(uploads);
        eventually("buffered_bytes returns to 0", async || {
            self.metric("buffered_bytes").await == 0
        })
        .await;
        for number in [0, UPLOADS - 1] {
            let response = send(client.clone(), &format!("upload-{number}")).await;
            assert_eq!(response.status, 200, "{response:?}");
        }
    }
}

#[tokio::test]
async fn a_thousand_unfinished_keyed_http1_uploads_take_bounded_memory() {
    let bounded = BoundedGateway::start().await;
    let (sender, responses) = unbounded_channel();
    let mut uploads = JoinSet::new();
    for number in 0..UPLOADS {
        let client = bounded.gateway.client();
        uploads.spawn(http1_upload(client, number, sender.clone()));
    }
    bounded.assert_memory_bounded(responses, uploads).await;
}

/// Sends all but the last byte of an upload over HTTP/1.1, and reports the response if one arrives.
async fn http1_upload(client: Client, number: usize, responses: UnboundedSender<(u16, String)>) {
    let stream = client.connect().await.expect("the connection is open");
    let (mut read, mut write) = stream.into_split();
    let sending = async {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: upload-{number}\r\nContent-Length: {}\r\n\r\n",
            SENT + 1
        );
        // A send error is ignored: it means that the gateway has rejected the upload, and the response shows this.
        if write.write_all(head.as_bytes()).await.is_ok() {
            let _ = write.write_all(&BODY).await;
        }
    };
    let receiving = async {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            let read = read.read_buf(&mut head).await.expect("a response arrives");
            assert!(
                read > 0,
                "the gateway closed the connection without a response"
            );
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let status = head.split(' ').nth(1).expect("the status is valid");
        let retry_after = head.split("\r\nretry-after: ").nth(1).unwrap_or_default();
        let retry_after = retry_after.split("\r\n").next().unwrap_or_default();
        let status = status.parse().expect("the status is valid");
        responses
            .send((status, retry_after.into()))
            .expect("the test receives the response");
    };
    tokio::join!(sending, receiving);
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_thousand_unfinished_keyed_http2_uploads_take_bounded_memory() {
    let bounded = BoundedGateway::start().await;
    let (sender, responses) = unbounded_channel();
    let mut uploads = JoinSet::new();
    for first in (0..UPLOADS).step_by(STREAMS) {
        let socket = bounded.gateway.client().connect().await;
        let handshake = h2::client::handshake(socket.expect("the connection is open")).await;
        let (requests, connection) = handshake.expect("the handshake succeeds");
        uploads.spawn(async { drop(connection.await) });
        for number in first..first + STREAMS {
            let requests = requests.clone();
            uploads.spawn(http2_upload(requests, number, sender.clone()));
        }
    }
    bounded.assert_memory_bounded(responses, uploads).await;
}

/// Sends all but the last byte of an upload on an HTTP/2 stream, and reports the response if one arrives.
async fn http2_upload(
    requests: h2::client::SendRequest<Bytes>,
    number: usize,
    responses: UnboundedSender<(u16, String)>,
) {
    let request = http::Request::post("http://a/")
        .header("idempotency-key", format!("upload-{number}"))
        .header("content-length", SENT + 1)
        .body(())
        .expect("the request is valid");
    let mut requests = requests.ready().await.expect("the connection is open");
    let (response, mut body) = requests
        .send_request(request, false)
        .expect("the stream is open");
    // A send error is ignored: it means that the gateway has rejected the upload, and the response shows this.
    let _ = body.send_data(Bytes::from_static(&BODY), false);
    let response = response.await.expect("a response arrives");
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after.map_or("", |value| value.to_str().expect("the value is text"));
    let status = response.status().as_u16();
    responses
        .send((status, retry_after.into()))
        .expect("the test receives the response");
    std::future::pending::<()>().await;
}
