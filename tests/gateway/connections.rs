//! What happens on one connection over time: reuse, streams, hanging up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::harness::{Gateway, PATIENCE, Upstream, eventually, full};

#[tokio::test]
async fn a_connection_serves_on_after_every_kind_of_answer() {
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
            let asking = client.post("/open").body(body.clone());
            let answer = connection.send(asking).await;
            assert_eq!((answer.status, &answer.json()["body"]), (200, &body.into()));
            // Their bodies are not wanted; what follows them must still be read as a request.
            for (path, expected) in [("/limited", 429), ("/nowhere", 404), ("/open/%00", 400)] {
                let asking = client.post(path).body("POST /open HTTP/1.1\r\n\r\n");
                assert_eq!(connection.send(asking).await.status, expected, "{path}");
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
    let gateway = Gateway::open("").upstream(&upstream).start();
    let client = gateway.client().h2();
    let mut connection = client.keep_alive().await;
    let mut slow = connection.stream_beside();
    let asking = client.get("/slow");
    let slow = tokio::spawn(async move { slow.send(asking).await });
    eventually("the slow one arrives", || upstream.count() == 1).await;
    for _ in 0..10 {
        assert_eq!(connection.send(client.get("/fast")).await.status, 200);
    }
    assert!(!slow.is_finished());
    slow.abort();
}

#[tokio::test]
async fn an_answer_reaches_the_client_as_upstream_writes_it() {
    let upstream = Upstream::with(|_| async {
        let (mut events, body) = Channel::new(1);
        tokio::spawn(async move {
            // Only a first event, and then nothing: a gateway that gathers would never pass it on.
            let _ = events.send_data(Bytes::from_static(b"data: 1\n\n")).await;
            std::future::pending::<()>().await;
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::open("").upstream(&upstream).start();
    for client in [gateway.client(), gateway.client().h2()] {
        let mut connection = client.keep_alive().await;
        let mut body = connection.body_of(client.get("/events")).await;
        let first = tokio::time::timeout(PATIENCE, body.frame()).await;
        let frame = first
            .expect("an event")
            .expect("a frame")
            .expect("no error");
        assert_eq!(frame.into_data().expect("data"), "data: 1\n\n");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_underway() {
    let upstream = Upstream::silent();
    let gateway = Gateway::open("").upstream(&upstream).admin().start();
    for (round, client) in [gateway.client(), gateway.client().h2()]
        .into_iter()
        .enumerate()
    {
        let leaving = tokio::spawn(client.get("/").send());
        eventually("the request arrives", || upstream.count() == round + 1).await;
        let underway = "upstream_in_flight{upstream=\"api\"}";
        assert!(gateway.metric(underway).await > 0.5);
        leaving.abort();
        let left = async {
            while gateway.metric(underway).await > 0.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let left = tokio::time::timeout(PATIENCE, left).await;
        assert!(left.is_ok(), "the gateway still waits for upstream");
    }
    let open = async {
        while gateway.metric("connections").await > 0.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let closed = tokio::time::timeout(PATIENCE, open).await;
    assert!(closed.is_ok(), "a connection is still counted");
}

#[tokio::test]
async fn an_old_client_gets_an_answer_it_can_read() {
    let upstream = Upstream::with(|_| async {
        let (mut parts, body) = Channel::new(1);
        tokio::spawn(async move {
            for part in ["one ", "two"] {
                let _ = parts.send_data(Bytes::from_static(part.as_bytes())).await;
            }
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::open("").upstream(&upstream).start();
    let answer = gateway
        .client()
        .raw("GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        .await;
    assert!(answer.contains(" 200 OK\r\n"), "{answer}");
    assert!(
        !answer.to_lowercase().contains("transfer-encoding"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\none two"), "{answer}");
}

#[tokio::test]
async fn a_body_is_asked_for_only_where_it_is_wanted() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    let expecting = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\
                     Expect: 100-continue\r\n\r\n";
    let answer = gateway.client().raw(format!("{expecting}hello")).await;
    assert!(answer.contains("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(upstream.last().body, "hello");
    assert!(!upstream.last().has("expect"));
    // Refused: the final answer comes at once, without the body.
    let answer = gateway.client().raw(expecting).await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn an_upload_reaches_upstream_while_it_is_still_being_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gateway = before(&listener);
    let mut client = gateway.client().connect().await.expect("a connection");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nfirst part";
    client.write_all(head.as_bytes()).await.expect("sent");
    let (mut server, _) = listener.accept().await.expect("a connection");
    read_until(&mut server, "first part").await;
}

#[tokio::test]
async fn an_upgrade_upstream_agrees_to_is_a_tunnel_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gateway = before(&listener);
    let mut client = gateway.client().connect().await.expect("a connection");
    let head = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("sent");
    let (mut server, _) = listener.accept().await.expect("a connection");
    let asked = read_until(&mut server, "\r\n\r\n").await.to_lowercase();
    assert!(asked.contains("upgrade: websocket\r\n"), "{asked}");
    assert!(asked.contains("connection: upgrade\r\n"), "{asked}");
    let agreed =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    server.write_all(agreed.as_bytes()).await.expect("sent");
    let answer = read_until(&mut client, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    for round in ["one;", "two;"] {
        client.write_all(round.as_bytes()).await.expect("sent");
        read_until(&mut server, round).await;
        server.write_all(round.as_bytes()).await.expect("sent");
        read_until(&mut client, round).await;
    }
    // One side's end is the other's.
    drop(client);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, server.read_to_end(&mut rest)).await;
    assert!(
        ended.is_ok(),
        "the tunnel stays open with nobody at its other end"
    );
}

/// A gateway in front of a bare socket.
fn before(listener: &TcpListener) -> Gateway {
    let address = listener.local_addr().expect("an address");
    Gateway::open("")
        .upstream_url(&format!("http://{address}"))
        .start()
}

/// What comes, up to the end of `mark`.
async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(mark.as_bytes()) {
        let more = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        let so_far = String::from_utf8_lossy(&read);
        let more = more.unwrap_or_else(|_| panic!("no {mark:?} after {so_far}"));
        read.push(more.unwrap_or_else(|error| panic!("{error} after {so_far}")));
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
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let (mut connection, asking) = (connection.stream_beside(), client.get("/"));
            tokio::spawn(async move { connection.send(asking).await.status })
        })
        .collect();
    let mut admitted = 0;
    for status in asked {
        admitted += usize::from(status.await.expect("answered") == 200);
    }
    assert_eq!((admitted, upstream.count()), (10, 10));
}

#[tokio::test]
async fn a_drain_lets_requests_finish_over_either_http() {
    let go = Arc::new(Notify::new());
    let held = Arc::clone(&go);
    let upstream = Upstream::with(move |_| {
        let held = Arc::clone(&held);
        async move {
            held.notified().await;
            full("finished")
        }
    });
    let gateway = Gateway::open("").upstream(&upstream).start();
    let h1 = tokio::spawn(gateway.client().get("/").send());
    let h2 = tokio::spawn(gateway.client().h2().get("/").send());
    eventually("both arrive", || upstream.count() == 2).await;
    gateway.drain();
    go.notify_waiters();
    for asked in [h1, h2] {
        let answer = asked.await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "finished"));
    }
}
