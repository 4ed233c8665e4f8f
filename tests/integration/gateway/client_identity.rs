//! The client of a request, over HTTP/1 and HTTP/2. `request::client::tests` and `pipeline::tests::entry` have the
//! tables of decisions.

use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn the_peer_decides_whether_forwarding_headers_are_trusted() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"2/h\"")
        .with_section("[client]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]")
        .upstream(&upstream)
        .start();
    for (peer, forwarded) in [
        ("127.0.0.9", "127.0.0.9"),
        ("127.0.0.1", "203.0.113.7, 10.1.1.1, 127.0.0.1"),
    ] {
        let client = gateway.client().from(peer);
        for (client, status) in [
            (client.clone(), 200),
            (client.clone().h2(), 200),
            (client, 429),
        ] {
            let request = client.get("/").header("X-Forwarded-For", "6.6.6.6");
            let request = request.header("X-Forwarded-For", "203.0.113.7, 10.1.1.1");
            let request = request.header("X_Forwarded_For", "203.0.113.8");
            assert_eq!(request.send().await.status, status, "{peer}");
            assert_eq!(upstream.last().header("x-forwarded-for"), forwarded);
            assert!(!upstream.last().has("x_forwarded_for"));
        }
    }
    let long = vec!["1.1.1.1"; 10_000].join(",");
    let request = gateway.client().get("/").header("X-Forwarded-For", &long);
    let status = request.send().await.status;
    assert!([400, 431].contains(&status), "unexpected status {status}");
}
