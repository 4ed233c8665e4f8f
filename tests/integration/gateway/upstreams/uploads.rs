//! Tests of request bodies without a declared length, to HTTP/1.0 and HTTP/1.1 servers.

use std::convert::Infallible;
use std::fmt::Write as _;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::raw_http;
use crate::support::{Client, Gateway};

/// Number of uploads for each of the eight combinations of client and server.
const UPLOADS: usize = 125;

/// Creates a server that responds with the length and the hash of each request body.
fn hashing_upstream(version: &'static str, connection: &'static str) -> raw_http::RawUpstream {
    raw_http::RawUpstream::scripted(move |upstream_connection| {
        while let Some(request) = upstream_connection.request() {
            let digest = digest(&request.body);
            let length = digest.len();
            upstream_connection.send(format!(
                "HTTP/{version} 200 OK\r\nConnection: {connection}\r\n\
                 Content-Length: {length}\r\n\r\n{digest}"
            ));
            if connection == "close" {
                return;
            }
        }
    })
}

fn digest(body: &[u8]) -> String {
    format!("{} {}", body.len(), blake3::hash(body))
}

/// Returns a random body as a list of random parts. One in five bodies is empty on average.
fn parts(random: &mut fastrand::Rng) -> Vec<Bytes> {
    let count = random.usize(0..5);
    let mut part = || {
        let length = random.usize(1..20_000);
        let bytes = std::iter::repeat_with(|| random.u8(..)).take(length);
        bytes.collect::<Bytes>()
    };
    (0..count).map(|_| part()).collect()
}

/// Sends a chunked request on an open HTTP/1.1 connection and returns the body of the response.
fn upload_chunked(client: &mut raw_http::RawClient, parts: &[Bytes]) -> Vec<u8> {
    client.send("POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for part in parts {
        let mut size = String::new();
        write!(size, "{:x}\r\n", part.len()).expect("writing to a string should not fail");
        client.send(size).send(part).send("\r\n");
    }
    client.send("0\r\n\r\n");
    let response = client.response();
    assert_eq!(response.status, 200);
    response.body
}

/// Sends a request body without `content-length` on an open HTTP/2 connection. Returns the body of the response.
async fn upload_stream(
    sender: &mut SendRequest<Channel<Bytes, Infallible>>,
    parts: Vec<Bytes>,
) -> Vec<u8> {
    let (mut frames, body) = Channel::new(1);
    let sending = tokio::spawn(async move {
        for part in parts {
            frames
                .send_data(part)
                .await
                .expect("the HTTP/2 stream should be open");
        }
    });
    let request = http::Request::post("http://a/api").body(body);
    let response = sender
        .send_request(request.expect("the request should be valid"))
        .await;
    let response = response.expect("the request should get a response");
    assert_eq!(response.status(), 200);
    sending
        .await
        .expect("the task that sends the parts should not panic");
    let body = response.into_body().collect().await;
    body.expect("the response body should be complete")
        .to_bytes()
        .to_vec()
}

#[tokio::test]
async fn uploads_without_a_length_arrive_complete_at_every_kind_of_server() {
    let mut random = fastrand::Rng::with_seed(5);
    for version in ["1.0", "1.1"] {
        for connection in ["close", "keep-alive"] {
            let upstream = hashing_upstream(version, connection);
            let gateway = Gateway::proxying("[server]\nworkers = 1")
                .upstream_url(&upstream.url())
                .start();
            let mut http1 = raw_http::RawClient::connect(gateway.address());
            let stream = Client::of(gateway.address()).connect().await;
            let io = TokioIo::new(stream.expect("the connection should be established"));
            let handshake = http2::handshake(TokioExecutor::new(), io).await;
            let (mut http2, driver) = handshake.expect("the HTTP/2 handshake should succeed");
            let driver = tokio::spawn(driver);
            for upload in 0..UPLOADS {
                let (one, other) = (parts(&mut random), parts(&mut random));
                let shown = format!("HTTP/{version} {connection}, upload {upload}");
                let received = upload_chunked(&mut http1, &one);
                assert_eq!(received, digest(&one.concat()).as_bytes(), "{shown}");
                let sent = digest(&other.concat());
                let received = upload_stream(&mut http2, other).await;
                assert_eq!(received, sent.as_bytes(), "{shown}");
            }
            driver.abort();
        }
    }
}

#[tokio::test]
async fn a_connection_whose_response_was_http_1_0_is_not_reused() {
    for (version, connections) in [("1.0", 5), ("1.1", 1)] {
        let upstream = hashing_upstream(version, "keep-alive");
        let gateway = Gateway::proxying("[server]\nworkers = 1")
            .upstream_url(&upstream.url())
            .start();
        for _ in 0..5 {
            assert_eq!(gateway.client().get("/").send().await.status, 200);
        }
        assert_eq!(upstream.connections(), connections, "HTTP/{version}");
    }
}
