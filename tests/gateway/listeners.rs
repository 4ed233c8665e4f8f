//! TLS, HTTP/2 and several addresses.

use http::Version;

use crate::harness::{Certificates, Client, Gateway, Upstream};

fn behind_tls(certificates: &Certificates, upstream: &Upstream) -> Gateway {
    let tls = format!(
        "[server]\ntls = {{ cert = \"{}\", key = \"{}\" }}",
        certificates.cert_file().display(),
        certificates.key_file().display()
    );
    Gateway::open(&tls).upstream(upstream).start()
}

#[tokio::test]
async fn a_tls_listener_speaks_what_alpn_agrees_on() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = behind_tls(&certificates, &upstream);
    let h1 = gateway.tls_client(&certificates, &["http/1.1"]);
    let h2 = gateway.tls_client(&certificates, &["h2", "http/1.1"]).h2();
    for (client, version) in [(h1, Version::HTTP_11), (h2, Version::HTTP_2)] {
        let answer = client.post("/x?y").body("hello").send().await;
        assert_eq!((answer.status, answer.version), (200, version));
        assert_eq!(answer.json()["body"], "hello");
        let got = upstream.last();
        assert_eq!(got.target, "/x?y");
        assert_eq!(got.header("x-forwarded-proto"), "https");
        assert_eq!(got.header("host"), gateway.address().to_string());
    }
}

#[tokio::test]
async fn a_tls_listener_prefers_http_2() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = behind_tls(&certificates, &upstream);
    for (offered, agreed) in [
        (&["http/1.1", "h2"][..], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let stream = gateway.client().connect().await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        let connector = certificates.connector(offered);
        let tls = connector.connect(name, stream).await.expect("a handshake");
        let alpn = tls.get_ref().1.alpn_protocol().map(String::from_utf8_lossy);
        assert_eq!(alpn.as_deref(), agreed);
    }
}

#[tokio::test]
async fn cleartext_on_a_tls_listener_reaches_nobody() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo();
    let gateway = behind_tls(&certificates, &upstream);
    assert!(gateway.client().get("/").try_send().await.is_err());
    assert_eq!(upstream.count(), 0);
    // And it harms nobody else.
    let client = gateway.tls_client(&certificates, &["http/1.1"]);
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn cleartext_http_2_is_spoken_to_who_knows_it() {
    let upstream = Upstream::echo();
    let gateway = Gateway::open("").upstream(&upstream).start();
    let answer = gateway.client().h2().post("/").body("hello").send().await;
    assert_eq!((answer.status, answer.version), (200, Version::HTTP_2));
    assert_eq!(answer.json()["body"], "hello");
    for name in ["connection", "keep-alive", "transfer-encoding"] {
        assert!(!answer.has(name), "{name}");
    }
}

#[tokio::test]
async fn a_refusal_reads_the_same_over_http_2() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    assert_eq!(client.get("/").send().await.status, 200);
    let refused = client.get("/").header("Accept", "text/html").send().await;
    assert_eq!((refused.status, refused.version), (429, Version::HTTP_2));
    assert_eq!(refused.header("content-type"), "text/html; charset=utf-8");
    assert!(refused.retry_after() >= 1);
    assert!(refused.has("ratelimit"));
}

#[tokio::test]
async fn a_gateway_listens_on_every_address_it_is_given() {
    let upstream = Upstream::echo();
    let mut plan = Gateway::open("")
        .upstream(&upstream)
        .listen("127.0.0.1:0")
        .listen("127.0.0.2:0");
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    if has_ipv6 {
        plan = plan.listen("[::1]:0");
    }
    let gateway = plan.start();
    assert_eq!(gateway.addresses().len(), if has_ipv6 { 3 } else { 2 });
    for address in gateway.addresses() {
        assert_ne!(address.port(), 0);
        let answer = Client::of(*address).get("/").send().await;
        assert_eq!(answer.status, 200, "{address}");
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
        panic!("two addresses");
    };
    assert_eq!(Client::of(*one).get("/").send().await.status, 200);
    assert_eq!(Client::of(*other).get("/").send().await.status, 429);
}
