//! Functions that build HTTP/2 frames and field blocks byte by byte, and a client that sends and reads single frames.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Gateway, TEST_TIMEOUT};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Connection preface of a client, without the SETTINGS frame that follows it.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("the payload fits into a frame");
    let mut frame = len.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes header field lines as literals without indexing and without Huffman coding (RFC 7541, section 6.2.2).
pub(crate) fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in lines {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Appends `len` to `block` as an integer with a prefix of seven bits (RFC 7541, section 5.1).
pub(crate) fn length(block: &mut Vec<u8>, len: usize) {
    if len < 127 {
        block.push(u8::try_from(len).expect("the number is small"));
        return;
    }
    block.push(127);
    let mut rest = len - 127;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).expect("the value has seven bits") | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).expect("the value has seven bits"));
}

/// Frame that the client has received from the gateway.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// HTTP/2 connection to the gateway on which a test sends and reads single frames.
pub(crate) struct FrameClient(TcpStream);

impl FrameClient {
    /// Opens a connection and sends the preface and an empty SETTINGS frame.
    pub(crate) async fn connect(gateway: &Gateway) -> Self {
        let socket = gateway
            .client()
            .connect()
            .await
            .expect("the connection is open");
        let mut client = Self(socket);
        client
            .send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())
            .await;
        client
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.0.write_all(bytes.as_ref()).await;
        sent.expect("the connection is open");
    }

    /// Shuts down the sending side of the TCP connection.
    pub(crate) async fn end(&mut self) {
        self.0.shutdown().await.expect("the connection is open");
    }

    /// Sends a complete GET request on `stream`.
    pub(crate) async fn get(&mut self, stream: u32, path: &str) {
        let lines = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", path),
        ];
        let flags = END_HEADERS | END_STREAM;
        self.send(frame(HEADERS, flags, stream, &block(&lines)))
            .await;
    }

    /// Sends the head of a POST request on `stream` without `END_STREAM`, so that the gateway expects a body.
    pub(crate) async fn post(&mut self, stream: u32, path: &str) {
        let lines = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", path),
        ];
        self.send(frame(HEADERS, END_HEADERS, stream, &block(&lines)))
            .await;
    }

    /// Reads the next frame, and acknowledges it if it is a ping. Returns `None` if the gateway has closed the
    /// connection. Panics after [`TEST_TIMEOUT`].
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let frame = timeout(TEST_TIMEOUT, self.read())
            .await
            .expect("a frame or the close arrives in time")?;
        if (frame.kind, frame.flags) == (PING, 0) {
            self.send(self::frame(PING, ACK, 0, &frame.payload)).await;
        }
        Some(frame)
    }

    /// Reads the next frame. Returns `None` if the gateway has closed the connection. There is no timeout.
    pub(crate) async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }

    /// Reads frames until the response of `stream` is complete. Panics if the gateway resets the stream.
    pub(crate) async fn response(&mut self, stream: u32) {
        loop {
            let frame = self.next().await.expect("the connection is open");
            if frame.stream == stream {
                assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
                if frame.flags & END_STREAM != 0 {
                    return;
                }
            }
        }
    }

    /// Reads frames until the gateway resets any stream. Returns the stream id and the error code.
    pub(crate) async fn reset(&mut self) -> (u32, u32) {
        loop {
            let frame = self.next().await.expect("the connection is open");
            if frame.kind == RST_STREAM {
                let code = frame
                    .payload
                    .try_into()
                    .expect("the payload has four bytes");
                return (frame.stream, u32::from_be_bytes(code));
            }
        }
    }

    /// Sends pings one after the other, so that the gateway reacts to earlier frames meanwhile. Panics if it resets a
    /// stream.
    pub(crate) async fn assert_no_reset(&mut self) {
        for _ in 0..20 {
            self.send(frame(PING, 0, 0, &[7; 8])).await;
            loop {
                let frame = self.next().await.expect("the connection is open");
                assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
                if (frame.kind, frame.flags) == (PING, ACK) {
                    break;
                }
            }
        }
    }
}
