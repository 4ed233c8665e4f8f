//! Tests of connections between client and gateway: reuse, parallel streams, uploads, upgrades and disconnects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::support::{Gateway, TEST_TIMEOUT, Upstream, eventually, full};

#[tokio::test]
async fn a_connection_stays_usable_after_every_kind_of_response() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "limited"
        path = "/limited"
        limits = ["device"]
        [[route]]
        name = "open"
        path = "/open"
        "#,
    )
    .upstream(&upstream)
    .start();
    for client in [gateway.client(), gateway.client().h2()] {
        gateway.client().get("/limited").send().await;
        let mut connection = client.keep_alive().await;
        for round in 0..20 {
            let body = format!("round {round}");
            let request = client.post("/open").body(body.clone());
            let response = connection.send(request).await;
            assert_eq!(
                (response.status, &response.json()["body"]),
                (200, &body.into())
            );
            // The gateway discards the bodies of these requests. It must not parse a body as the next request, although
            // the body looks like a request.
            for (path, expected) in [("/limited", 429), ("/nowhere", 404), ("/open/%00", 400)] {
                let request = client.post(path).body("POST /open HTTP/1.1\r\n\r\n");
                assert_eq!(connection.send(request).await.status, expected, "{path}");
            }
            let head = client.request("HEAD", "/open");
            assert_eq!(connection.send(head).await.status, 200);
        }
    }
    assert_eq!(upstream.count(), 2 * 20 * 2 + 1);
}

#[tokio::test]
async fn streams_of_one_connection_do_not_wait_for_each_other() {
    let upstream = Upstream::with(|received| async move {
        if received.target == "/slow" {
            std::future::pending::<()>().await;
        }
        full("ok")
    });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let client = gateway.client().h2();
    let mut connection = client.keep_alive().await;
    let mut slow = connection.open_stream();
    let request = client.get("/slow");
    let slow = tokio::spawn(async move { slow.send(request).await });
    eventually("the upstream has received the slow request", async || {
        upstream.count() == 1
    })
    .await;
    for _ in 0..10 {
        assert_eq!(connection.send(client.get("/fast")).await.status, 200);
    }
    assert!(!slow.is_finished());
    slow.abort();
}

#[tokio::test]
async fn a_response_reaches_the_client_as_upstream_sends_it() {
    let upstream = Upstream::with(|_| async {
        let (mut events, body) = Channel::new(1);
        tokio::spawn(async move {
            // The upstream sends one event and then nothing. A gateway that buffered the whole body would never forward
            // the event.
            let _ = events.send_data(Bytes::from_static(b"data: 1\n\n")).await;
            std::future::pending::<()>().await;
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for client in [gateway.client(), gateway.client().h2()] {
        let mut connection = client.keep_alive().await;
        let mut body = connection.response_body(client.get("/events")).await;
        let first = tokio::time::timeout(TEST_TIMEOUT, body.frame()).await;
        let frame = first
            .expect("an event arrives in time")
            .expect("the body has not ended")
            .expect("the body has no error");
        assert_eq!(
            frame.into_data().expect("the frame is a DATA frame"),
            "data: 1\n\n"
        );
    }
}

#[tokio::test]
async fn after_a_client_disconnects_nothing_stays_in_flight() {
    let upstream = Upstream::silent();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    for (round, client) in [gateway.client(), gateway.client().h2()]
        .into_iter()
        .enumerate()
    {
        let leaving = tokio::spawn(client.get("/").send());
        eventually("the upstream has received the request", async || {
            upstream.count() == round + 1
        })
        .await;
        let in_flight = "upstream_in_flight{upstream=\"api\"}";
        assert!(gateway.metric(in_flight).await > 0.5);
        leaving.abort();
        let finished = async {
            while gateway.metric(in_flight).await > 0.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let finished = tokio::time::timeout(TEST_TIMEOUT, finished).await;
        assert!(
            finished.is_ok(),
            "a request stays in flight after its client has disconnected"
        );
    }
    let open = async {
        while gateway.metric("connections").await > 0.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let closed = tokio::time::timeout(TEST_TIMEOUT, open).await;
    assert!(
        closed.is_ok(),
        "the metric `connections` does not return to 0"
    );
}

#[tokio::test]
async fn an_http_1_0_client_gets_a_response_without_chunks() {
    let upstream = Upstream::with(|_| async {
        let (mut parts, body) = Channel::new(1);
        tokio::spawn(async move {
            for part in ["one ", "two"] {
                let _ = parts.send_data(Bytes::from_static(part.as_bytes())).await;
            }
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let response = gateway
        .client()
        .send_raw("GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        .await;
    assert!(
        response.contains(" 200 OK\r\n"),
        "unexpected response: {response}"
    );
    assert!(
        !response.to_lowercase().contains("transfer-encoding"),
        "unexpected response: {response}"
    );
    assert!(
        response.ends_with("\r\n\r\none two"),
        "unexpected response: {response}"
    );
}

#[tokio::test]
async fn without_request_buffer_an_upload_reaches_upstream_while_it_is_still_being_sent() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nfirst part";
    let (_gateway, _client, mut server) = connect_through_gateway(head).await;
    read_until(&mut server, "first part").await;
}

/// Sends `head` to a gateway. Returns the gateway, the connection of the client, and the connection of the upstream.
async fn connect_through_gateway(head: &str) -> (Gateway, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port is free");
    let address = listener.local_addr().expect("the address is valid");
    let gateway = Gateway::proxying("[server]\nrequest_buffer = 0")
        .upstream_url(&format!("http://{address}"))
        .start();
    let mut client = gateway
        .client()
        .connect()
        .await
        .expect("the connection is open");
    client
        .write_all(head.as_bytes())
        .await
        .expect("the bytes are sent");
    let (server, _) = listener.accept().await.expect("the connection is open");
    (gateway, client, server)
}

/// Reads from `stream` up to and including `mark`, and returns what was read.
async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(mark.as_bytes()) {
        let more = tokio::time::timeout(TEST_TIMEOUT, stream.read_u8()).await;
        let so_far = String::from_utf8_lossy(&read);
        let more = more.unwrap_or_else(|_| {
            panic!("timed out waiting for {mark:?}, received so far: {so_far}")
        });
        read.push(more.unwrap_or_else(|error| {
            panic!("the connection failed ({error}), received so far: {so_far}")
        }));
    }
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn one_bucket_admits_exactly_its_burst_of_parallel_streams() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"10/h\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    let connection = client.keep_alive().await;
    let pending: Vec<_> = (0..50)
        .map(|_| {
            let (mut connection, request) = (connection.open_stream(), client.get("/"));
            tokio::spawn(async move { connection.send(request).await.status })
        })
        .collect();
    let mut admitted = 0;
    for status in pending {
        admitted += usize::from(status.await.expect("a response arrives") == 200);
    }
    assert_eq!((admitted, upstream.count()), (10, 10));
}

#[tokio::test]
async fn a_drain_lets_http1_and_http2_requests_finish() {
    let release = Arc::new(Notify::new());
    let held = Arc::clone(&release);
    let upstream = Upstream::with(move |_| {
        let held = Arc::clone(&held);
        async move {
            held.notified().await;
            full("finished")
        }
    });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let h1 = tokio::spawn(gateway.client().get("/").send());
    let h2 = tokio::spawn(gateway.client().h2().get("/").send());
    eventually("the upstream has received both requests", async || {
        upstream.count() == 2
    })
    .await;
    gateway.drain();
    release.notify_waiters();
    for pending in [h1, h2] {
        let response = pending.await.expect("a response arrives");
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "finished")
        );
    }
}
