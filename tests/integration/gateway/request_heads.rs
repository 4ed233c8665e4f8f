//! Tests of request heads that are valid, but that need care: methods in another case, padded lengths, default ports,
//! HTTP/1.0 without `Host`, and `Upgrade` in responses. Most tests cover HTTP/1 and HTTP/2.

use bytes::Bytes;
use http::Request;

use super::http2::Connection;
use crate::support::raw_http::RawClient;
use crate::support::{Gateway, Upstream};

/// Receive window of the HTTP/2 connections of these tests, in bytes.
const WINDOW: u32 = 65_535;

/// Sends a request head and a body over HTTP/2 exactly as given. Returns the status, or `None` if the gateway resets
/// the stream.
async fn http2_status(gateway: &Gateway, head: Request<()>, body: &'static str) -> Option<u16> {
    let connection = Connection::open(gateway, WINDOW).await;
    let mut requests = connection.ready().await;
    let (response, mut stream) = requests
        .send_request(head, body.is_empty())
        .expect("the request is valid for the client");
    if !body.is_empty() {
        // An error is ignored: the gateway can reset the stream before the body is sent.
        let _ = stream.send_data(Bytes::from_static(body.as_bytes()), true);
    }
    Some(response.await.ok()?.status().as_u16())
}

/// Sends a head and a body over HTTP/1 and returns the status of the response.
fn http1_status(gateway: &Gateway, request: &str) -> u16 {
    RawClient::connect(gateway.address())
        .send(request)
        .response()
        .status
}

#[tokio::test]
async fn a_padded_content_length_is_forwarded_in_canonical_form() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for (length, body, expected) in [
        ("007", "sevens.", "7"),
        ("0000000000000000007", "sevens.", "7"),
        ("00", "", "0"),
        ("7", "sevens.", "7"),
    ] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
        assert_eq!(http1_status(&gateway, &request), 200, "{length}");
        let received = upstream.last();
        assert_eq!(received.header("content-length"), expected, "{length}");
        assert_eq!(received.body, body);

        let head = Request::post("http://a/").header("content-length", length);
        let status = http2_status(&gateway, head.body(()).unwrap(), body).await;
        assert_eq!(status, Some(200), "{length} over HTTP/2");
        let received = upstream.last();
        assert_eq!(received.header("content-length"), expected, "{length}");
        assert_eq!(received.body, body);
    }
}

#[tokio::test]
async fn a_content_length_of_more_than_19_digits_is_rejected() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for zeros in [19, 5_000] {
        let length = "0".repeat(zeros) + "7";
        let request =
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nsevens.");
        assert_eq!(http1_status(&gateway, &request), 400, "{zeros} zeros");
        let head = Request::post("http://a/").header("content-length", length);
        let status = http2_status(&gateway, head.body(()).unwrap(), "sevens.").await;
        assert_eq!(status, None, "the stream is reset");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_padded_content_length_of_a_response_is_forwarded_in_canonical_form() {
    let upstream = Upstream::sending_raw(
        "HTTP/1.1 200 OK\r\nContent-Length: 002\r\nConnection: close\r\n\r\nok",
    );
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for client in [gateway.client(), gateway.client().h2()] {
        for method in ["GET", "HEAD"] {
            let response = client.request(method, "/").send().await;
            assert_eq!(response.status, 200);
            assert_eq!(response.header("content-length"), "2", "{method}");
        }
    }
}

/// Request targets and `Host` headers that name the same host.
const SAME_HOST: [(&str, &str); 7] = [
    ("http://h:80/", "h"),
    ("http://h/", "h:80"),
    ("https://h:443/", "h"),
    ("https://h/", "h:443"),
    ("http://H:80/", "h"),
    ("http://[::1]:80/", "[::1]"),
    ("http://h:81/", "h:81"),
];

/// Request targets and `Host` headers that name different hosts.
const OTHER_HOST: [(&str, &str); 7] = [
    ("http://h:443/", "h"),
    ("https://h:80/", "h"),
    ("http://h:81/", "h"),
    ("http://h/", "h:443"),
    ("http://h:80/", "g"),
    ("http://h:8080/", "h"),
    ("http://[::1]/", "[::80]"),
];

#[tokio::test]
async fn the_default_port_of_the_scheme_equals_an_absent_port() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for (target, host) in SAME_HOST {
        let authority = target.split('/').nth(2).unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(http1_status(&gateway, &request), 200, "{request:?}");
        // The host in the target takes precedence over `Host` (RFC 9112, section 3.2.2).
        assert_eq!(upstream.last().header("host"), authority);
        assert_eq!(upstream.last().header("x-forwarded-host"), authority);

        let head = Request::get(target).header("host", host).body(()).unwrap();
        assert_eq!(http2_status(&gateway, head, "").await, Some(200));
        assert_eq!(upstream.last().header("host"), authority);
        assert_eq!(upstream.last().header("x-forwarded-host"), authority);
    }
    let forwarded = upstream.count();
    for (target, host) in OTHER_HOST {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(http1_status(&gateway, &request), 400, "{request:?}");
        let head = Request::get(target).header("host", host).body(()).unwrap();
        assert_eq!(http2_status(&gateway, head, "").await, Some(400));
    }
    assert_eq!(upstream.count(), forwarded);
}

#[tokio::test]
async fn http_1_0_without_a_host_is_served_with_the_host_of_the_server() {
    let upstream = Upstream::echo();
    let address = upstream.address().to_string();
    for (setting, expected) in [
        ("preserve", &*address),
        ("server", &address),
        ("api.internal", "api.internal"),
    ] {
        let config = "[upstream.api]\nservers = [\"{upstream}\"]\nhost = \"{host}\"\n\
                      [limit.host]\nkey = \"header:Host\"\nrate = \"100/s\"\n\
                      [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"host\"]\n";
        let gateway = Gateway::with(&config.replace("{host}", setting))
            .upstream(&upstream)
            .start();
        // This is the default health check of HAProxy.
        assert_eq!(http1_status(&gateway, "OPTIONS / HTTP/1.0\r\n\r\n"), 200);
        let received = upstream.last();
        assert_eq!(received.method, "OPTIONS");
        assert_eq!(received.header("host"), expected, "{setting}");
        assert!(!received.has("x-forwarded-host"), "{setting}");

        let absolute = "GET http://h/ HTTP/1.0\r\n\r\n";
        assert_eq!(http1_status(&gateway, absolute), 200);
        assert_eq!(upstream.last().header("x-forwarded-host"), "h");
        assert_eq!(
            http1_status(&gateway, "GET / HTTP/1.0\r\nHost:\r\n\r\n"),
            400
        );
        assert_eq!(http1_status(&gateway, "GET / HTTP/1.1\r\n\r\n"), 400);
    }
}

#[tokio::test]
async fn a_426_response_names_the_protocol_to_upgrade_to() {
    let upstream = Upstream::sending_raw(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: h2c, websocket, foo/2\r\nConnection: X-Hop, upgrade\r\n\
         X-Hop: 1\r\nContent-Length: 2\r\n\r\nno",
    );
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let mut client = RawClient::connect(gateway.address());
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.response();
        assert_eq!(response.status, 426);
        assert_eq!(response.header("upgrade"), Some("websocket, foo/2"));
        assert_eq!(response.header("connection"), Some("upgrade"));
        assert_eq!(response.header("x-hop"), None);
        assert_eq!(response.body, b"no");
    }
    let response = gateway.client().h2().get("/").send().await;
    assert_eq!(response.status, 426);
    for name in ["upgrade", "connection", "x-hop"] {
        assert!(!response.has(name), "{name}");
    }
}

#[tokio::test]
async fn a_replayed_426_response_has_no_upgrade_header() {
    let upstream = Upstream::sending_raw(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: foo/2\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let first = gateway.client().post("/").key("k").send().await;
    assert_eq!((first.status, &*first.header("upgrade")), (426, "foo/2"));
    let replay = gateway.client().post("/").key("k").send().await;
    assert!(replay.is_replay());
    assert_eq!(replay.status, 426);
    assert!(!replay.has("upgrade") && !replay.has("connection"));
}

#[tokio::test]
async fn upgrade_is_removed_from_responses_that_do_not_require_it() {
    for response in [
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nUpgrade: h2,h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n",
    ] {
        let upstream = Upstream::sending_raw(response);
        let gateway = Gateway::proxying("").upstream(&upstream).start();
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get("/").send().await;
            assert!(!response.has("upgrade"), "{response:?}");
            assert!(!response.has("connection"), "{response:?}");
        }
    }
}
