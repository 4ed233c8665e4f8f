//! Tests of forwarding: requests to the upstream, and responses to the client.

use bytes::Bytes;
use http::HeaderValue;

use crate::support::{Gateway, Upstream, empty, full};

#[tokio::test]
async fn a_request_arrives_as_it_was_sent() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for client in [gateway.client(), gateway.client().h2()] {
        let response = client
            .request("PATCH", "/a/b?c=d&c=e")
            .header("X-Two", "1")
            .header("X-Two", "2")
            .header("Via", "1.0 fred")
            .header("Content-Type", "application/json")
            .body("{\"a\":1}")
            .send()
            .await;
        assert_eq!(response.status, 200);
        let received = upstream.last();
        assert_eq!(received.method, "PATCH");
        assert_eq!(received.target, "/a/b?c=d&c=e");
        assert_eq!(received.header("x-two"), "1, 2");
        assert_eq!(received.header("via"), "1.0 fred, 1.1 tidegate");
        // Over HTTP/2 the host is in `:authority`.
        for name in ["host", "x-forwarded-host"] {
            assert_eq!(received.header(name), gateway.address().to_string());
        }
        assert_eq!(received.header("content-type"), "application/json");
        assert_eq!(received.header("content-length"), "7");
        assert_eq!(received.body, "{\"a\":1}");
    }
}

#[tokio::test]
async fn hop_by_hop_headers_are_removed_in_both_directions() {
    let upstream = Upstream::with(|_| async {
        let mut reply = full("ok");
        let headers = reply.headers_mut();
        for (name, value) in [
            ("connection", "x-private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authenticate", "Basic"),
            ("proxy-connection", "keep-alive"),
            ("upgrade", "h3"),
            ("x-public", "1"),
            ("set-cookie", "a=1"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers.append("set-cookie", HeaderValue::from_static("b=2, c"));
        reply
    });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let response = gateway
        .client()
        .get("/")
        .header("Connection", "close, X-Private")
        .header("X-Private", "1")
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Connection", "keep-alive")
        .header("Proxy-Authorization", "Basic xyz")
        .header("TE", "trailers")
        .header("Upgrade", "h2c")
        .header("HTTP2-Settings", "AAMAAABkAAQAAP__")
        .header("X-Public", "1")
        .send()
        .await;
    assert_eq!(response.status, 200);
    let received = upstream.last();
    for name in [
        "x-private",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "upgrade",
    ] {
        assert!(!received.has(name), "{name} was sent to upstream");
    }
    assert_eq!(received.header("x-public"), "1");
    for name in [
        "x-private",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "upgrade",
    ] {
        assert!(!response.has(name), "{name} was sent to the client");
    }
    assert_eq!(response.header("x-public"), "1");
    let cookies: Vec<_> = response.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1", "b=2, c"]);
}

#[tokio::test]
async fn responses_without_a_body_are_forwarded_without_one() {
    let upstream = Upstream::with(|received| async move {
        let status = received.target[1..].parse().expect("the status is valid");
        let mut reply = empty(status);
        reply
            .headers_mut()
            .insert("etag", HeaderValue::from_static("\"v1\""));
        reply
    });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    for (path, status) in [("/204", 204), ("/304", 304), ("/200", 200)] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(path).send().await;
            assert_eq!(
                (response.status, response.body.len()),
                (status, 0),
                "{path}"
            );
            assert_eq!(response.header("etag"), "\"v1\"");
            assert!(!response.has("transfer-encoding"));
        }
    }
}

#[tokio::test]
async fn trailers_are_never_merged_into_headers() {
    let upstream = Upstream::sending_raw(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
         2\r\nok\r\n0\r\nX-Sum: 42\r\nX-Unlisted: 1\r\n\r\n",
    );
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let response = gateway
        .client()
        .get("/")
        .header("TE", "trailers")
        .send()
        .await;
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    assert!(!response.has("x-sum") && !response.has("x-unlisted"));
    assert_eq!(
        response.trailers.get("x-sum").map(HeaderValue::as_bytes),
        Some(&b"42"[..])
    );
    assert!(!response.trailers.contains_key("x-unlisted"));

    let without_te = gateway.client().get("/").send().await;
    assert_eq!((without_te.status, without_te.text().as_str()), (200, "ok"));
    assert!(!without_te.has("x-sum") && without_te.trailers.is_empty());

    let h2 = gateway.client().h2().get("/").send().await;
    assert_eq!((h2.status, h2.text().as_str()), (200, "ok"));
    assert!(!h2.has("x-sum"));
    assert!(!h2.has("connection") && !h2.has("transfer-encoding"));
}

#[tokio::test]
async fn a_large_body_is_forwarded_completely_in_both_directions() {
    let upstream = Upstream::with(|received| async move { full(received.body) });
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let body: Bytes = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    for client in [gateway.client(), gateway.client().h2()] {
        let response = client.post("/").body(body.clone()).send().await;
        assert_eq!(response.status, 200);
        assert!(
            response.body == body,
            "the response has {} bytes instead of the request's 3000000, or they differ",
            response.body.len()
        );
    }
}

#[tokio::test]
async fn a_body_above_max_body_returns_413_with_and_without_content_length() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("[server]\nmax_body = \"1KiB\"")
        .upstream(&upstream)
        .start();
    let at_limit = gateway.client().post("/").body(vec![b'x'; 1_024]);
    assert_eq!(at_limit.send().await.status, 200);
    for client in [gateway.client(), gateway.client().h2()] {
        let response = client.post("/").body(vec![b'x'; 1_025]).send().await;
        assert_eq!(response.status, 413);
        assert_eq!(response.problem(), "payload-too-large");
    }
    assert_eq!(upstream.count(), 1);
    let chunk = "x".repeat(0x401);
    let response = gateway
        .client()
        .send_raw(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
             401\r\n{chunk}\r\n0\r\n\r\n"
        ))
        .await;
    assert!(
        response.starts_with("HTTP/1.1 413 "),
        "unexpected response: {response}"
    );
    assert_eq!(upstream.count(), 1);
}
