//! Tests of listeners: TLS, HTTP/2 and several listen addresses.

use http::Version;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::http2::frames::{
    END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, SETTINGS, block, frame,
};
use crate::support::{Certificates, Client, Gateway, TEST_TIMEOUT, Upstream};

/// Starts a TLS gateway with a `header_timeout` of 2 s.
fn tls_gateway(certificates: &Certificates, upstream: &Upstream) -> Gateway {
    let tls = format!(
        "[server]\nheader_timeout = \"2s\"\ntls = {{ cert = \"{}\", key = \"{}\" }}",
        certificates.cert_file().display(),
        certificates.key_file().display()
    );
    Gateway::proxying(&tls).upstream(upstream).start()
}

/// Opens a TLS connection that offers the ALPN protocols `alpn`.
async fn tls_connection(
    gateway: &Gateway,
    certificates: &Certificates,
    alpn: &[&str],
) -> TlsStream<TcpStream> {
    let stream = gateway
        .client()
        .connect()
        .await
        .expect("the connection should be established");
    let name = "localhost"
        .try_into()
        .expect("the server name should be valid");
    let connecting = certificates.connector(alpn).connect(name, stream);
    connecting.await.expect("the TLS handshake should succeed")
}

#[tokio::test]
async fn a_tls_listener_uses_the_protocol_negotiated_by_alpn() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = tls_gateway(&certificates, &upstream);
    let h1 = gateway.tls_client(&certificates, &["http/1.1"]);
    let h2 = gateway.tls_client(&certificates, &["h2", "http/1.1"]).h2();
    for (client, version) in [(h1, Version::HTTP_11), (h2, Version::HTTP_2)] {
        let response = client.post("/x?y").body("hello").send().await;
        assert_eq!((response.status, response.version), (200, version));
        assert_eq!(response.json()["body"], "hello");
        let received = upstream.last();
        assert_eq!(received.target, "/x?y");
        assert_eq!(received.header("x-forwarded-proto"), "https");
        assert_eq!(received.header("host"), gateway.address().to_string());
    }
}

#[tokio::test]
async fn a_tls_listener_prefers_http_2() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = tls_gateway(&certificates, &upstream);
    for (offered, negotiated) in [
        (&["http/1.1", "h2"][..], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let tls = tls_connection(&gateway, &certificates, offered).await;
        let alpn = tls.get_ref().1.alpn_protocol().map(String::from_utf8_lossy);
        assert_eq!(alpn.as_deref(), negotiated);
    }
}

#[tokio::test]
async fn the_protocol_negotiated_by_alpn_is_binding() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = tls_gateway(&certificates, &upstream);
    let http1 = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec();
    let get = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ];
    let http2 = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&get)),
        // The GOAWAY of the client ends the connection after the response.
        &frame(GOAWAY, 0, 0, &[0; 8]),
    ]
    .concat();
    for (negotiated, sent, is_served) in [
        (&["h2"][..], &http1, false),
        (&["http/1.1"], &http2, false),
        (&["h2"], &http2, true),
        (&["http/1.1"], &http1, true),
        (&[], &http1, true),
        (&[], &http2, true),
    ] {
        let before = upstream.count();
        let mut tls = tls_connection(&gateway, &certificates, negotiated).await;
        tls.write_all(sent).await.expect("the bytes should be sent");
        let mut received = Vec::new();
        // An error is ignored, because the gateway closes the connection without a TLS alert.
        let reading = tls.read_to_end(&mut received);
        let _closed = timeout(TEST_TIMEOUT, reading)
            .await
            .expect("the gateway should close the connection");
        let served = upstream.count() - before;
        assert_eq!(served, usize::from(is_served), "{negotiated:?}");
        if !is_served {
            let text = String::from_utf8_lossy(&received);
            assert!(!text.contains("200 OK"), "{negotiated:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_client_that_is_silent_after_the_tls_handshake_is_disconnected() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = tls_gateway(&certificates, &upstream);
    let [mut http2, mut http1, mut unknown] = [
        tls_connection(&gateway, &certificates, &["h2"]).await,
        tls_connection(&gateway, &certificates, &["http/1.1"]).await,
        tls_connection(&gateway, &certificates, &[]).await,
    ];
    for connection in [&mut http2, &mut http1, &mut unknown] {
        let received = timeout(TEST_TIMEOUT, connection.read_u8()).await;
        let received = received.expect("the gateway should close the connection");
        assert!(received.is_err(), "the gateway should send nothing");
    }
}

#[tokio::test]
async fn cleartext_on_a_tls_listener_is_not_forwarded() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = tls_gateway(&certificates, &upstream);
    assert!(gateway.client().get("/").try_send().await.is_err());
    assert_eq!(upstream.count(), 0);
    // The failed TLS handshake of one client does not affect other clients.
    let client = gateway.tls_client(&certificates, &["http/1.1"]);
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn cleartext_http_2_works_with_prior_knowledge() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let response = gateway.client().h2().post("/").body("hello").send().await;
    assert_eq!((response.status, response.version), (200, Version::HTTP_2));
    assert_eq!(response.json()["body"], "hello");
    for name in ["connection", "keep-alive", "transfer-encoding"] {
        assert!(!response.has(name), "{name}");
    }
}

#[tokio::test]
async fn a_rejection_over_http_2_has_the_same_headers() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    assert_eq!(client.get("/").send().await.status, 200);
    let rejected = client.get("/").header("Accept", "text/html").send().await;
    assert_eq!((rejected.status, rejected.version), (429, Version::HTTP_2));
    assert_eq!(rejected.header("content-type"), "text/html; charset=utf-8");
    assert!(rejected.retry_after() >= 1);
    assert!(rejected.has("ratelimit"));
}

#[tokio::test]
async fn a_gateway_listens_on_every_configured_address() {
    let upstream = Upstream::echo();
    let mut builder = Gateway::proxying("")
        .upstream(&upstream)
        .listen("127.0.0.1:0")
        .listen("127.0.0.2:0");
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    if has_ipv6 {
        builder = builder.listen("[::1]:0");
    }
    let gateway = builder.start();
    assert_eq!(gateway.addresses().len(), if has_ipv6 { 3 } else { 2 });
    for address in gateway.addresses() {
        assert_ne!(address.port(), 0);
        let response = Client::of(*address).get("/").send().await;
        assert_eq!(response.status, 200, "{address}");
    }
    if has_ipv6 {
        assert_eq!(upstream.last().header("x-forwarded-for"), "::1");
    }
}

#[tokio::test]
async fn one_client_has_one_bucket_on_all_addresses() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .listen("127.0.0.1:0")
        .listen("127.0.0.1:0")
        .start();
    let [one, other] = gateway.addresses() else {
        panic!("the gateway should have two addresses");
    };
    assert_eq!(Client::of(*one).get("/").send().await.status, 200);
    assert_eq!(Client::of(*other).get("/").send().await.status, 429);
}
