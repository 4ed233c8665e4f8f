//! Tests of how the gateway identifies a client, and of the forwarding headers that the upstream receives.

use crate::support::{Client, ClientResponse, Gateway, Received, Upstream};

/// Starts a gateway that trusts the proxies 127.0.0.1 and 10.0.0.0/8. `limits` is the TOML list of the rate limits of
/// its only route.
fn trusting_gateway(upstream: &Upstream, limits: &str) -> Gateway {
    Gateway::with(&format!(
        "[client]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n\
         [upstream.api]\nservers = [\"{{upstream}}\"]\n\
         [limit.device]\nrate = \"1/h\"\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = {limits}\n"
    ))
    .upstream(upstream)
    .start()
}

fn without_limits(upstream: &Upstream) -> Gateway {
    trusting_gateway(upstream, "[]")
}

/// Sends a GET with the header fields `lines`. Returns the request that the upstream received.
async fn forwarded_request(
    client: &Client,
    upstream: &Upstream,
    lines: &[(&str, &str)],
) -> Received {
    let mut request = client.get("/");
    for (name, value) in lines {
        request = request.header(name, value);
    }
    assert_eq!(request.send().await.status, 200, "{lines:?}");
    upstream.last()
}

#[tokio::test]
async fn forwarded_for_of_an_untrusted_peer_is_neither_trusted_nor_forwarded() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    let untrusted = gateway.client().from("127.0.0.9");
    for client in [untrusted.clone(), untrusted.h2()] {
        let received =
            forwarded_request(&client, &upstream, &[("X-Forwarded-For", "203.0.113.7")]).await;
        assert_eq!(received.header("x-forwarded-for"), "127.0.0.9");
    }
}

#[tokio::test]
async fn an_untrusted_peer_cannot_change_its_bucket_with_forwarded_for() {
    let upstream = Upstream::echo();
    let gateway = trusting_gateway(&upstream, "[\"device\"]");
    let untrusted = gateway.client().from("127.0.0.9");
    let send = |claim: &str| untrusted.get("/").header("X-Forwarded-For", claim).send();
    assert_eq!(send("203.0.113.1").await.status, 200);
    assert_eq!(send("203.0.113.2").await.status, 429);
    assert_eq!(send("203.0.113.3").await.status, 429);
}

#[tokio::test]
async fn the_client_is_the_rightmost_untrusted_address_of_a_trusted_chain() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    for client in [gateway.client(), gateway.client().h2()] {
        for (chain, forwarded) in [
            ("203.0.113.7", "203.0.113.7, 127.0.0.1"),
            ("6.6.6.6, 203.0.113.7", "203.0.113.7, 127.0.0.1"),
            (
                "6.6.6.6, 203.0.113.7, 10.1.1.1",
                "203.0.113.7, 10.1.1.1, 127.0.0.1",
            ),
            ("10.2.2.2, 10.1.1.1", "10.2.2.2, 10.1.1.1, 127.0.0.1"),
        ] {
            let received =
                forwarded_request(&client, &upstream, &[("X-Forwarded-For", chain)]).await;
            assert_eq!(received.header("x-forwarded-for"), forwarded, "{chain}");
        }
    }
}

#[tokio::test]
async fn several_lines_are_one_chain_in_order() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    let lines = [
        ("X-Forwarded-For", "6.6.6.6"),
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Forwarded-For", "10.1.1.1"),
    ];
    let received = forwarded_request(&gateway.client(), &upstream, &lines).await;
    assert_eq!(
        received.header("x-forwarded-for"),
        "203.0.113.7, 10.1.1.1, 127.0.0.1"
    );
}

#[tokio::test]
async fn ports_are_stripped_and_an_invalid_entry_ends_the_chain() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    for (chain, forwarded) in [
        ("203.0.113.7:5678", "203.0.113.7, 127.0.0.1"),
        ("[2001:db8::1]:5678", "2001:db8::1, 127.0.0.1"),
        ("[2001:db8::1]", "2001:db8::1, 127.0.0.1"),
        (", ,203.0.113.7,,", "203.0.113.7, 127.0.0.1"),
        ("203.0.113.7, unknown", "127.0.0.1"),
        ("203.0.113.7, junk, 10.1.1.1", "10.1.1.1, 127.0.0.1"),
        ("203.0.113.7, fe80::1%eth0", "127.0.0.1"),
        ("203.0.113.7, 1.2.3.4.5", "127.0.0.1"),
        ("203.0.113.7, 10.1.1.1:99999999", "127.0.0.1"),
        ("", "127.0.0.1"),
    ] {
        let received =
            forwarded_request(&gateway.client(), &upstream, &[("X-Forwarded-For", chain)]).await;
        assert_eq!(received.header("x-forwarded-for"), forwarded, "{chain:?}");
    }
}

/// Sends a request with each value of `X-Forwarded-For` from a trusted peer, and returns the statuses. The rate limit
/// is one request per hour and client.
async fn statuses(chains: &[&str]) -> Vec<u16> {
    let upstream = Upstream::echo();
    let gateway = trusting_gateway(&upstream, "[\"device\"]");
    let mut statuses = Vec::new();
    for chain in chains {
        let request = gateway.client().get("/").header("X-Forwarded-For", chain);
        statuses.push(request.send().await.status);
    }
    statuses
}

#[tokio::test]
async fn an_ipv4_address_is_one_client_in_every_spelling() {
    let spellings = ["::ffff:1.2.3.4", "::ffff:102:304", "1.2.3.4", "1.2.3.4:80"];
    assert_eq!(statuses(&spellings).await, [200, 429, 429, 429]);
}

#[tokio::test]
async fn an_ipv6_network_of_64_bits_is_one_client() {
    let addresses = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"];
    assert_eq!(statuses(&addresses).await, [200, 429, 200]);
}

#[tokio::test]
async fn a_chain_that_is_too_long_is_rejected() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    let long = vec!["1.1.1.1"; 300].join(",");
    let response =
        |client: Client, chain: &str| client.get("/").header("X-Forwarded-For", chain).send();
    assert_eq!(response(gateway.client(), &long).await.status, 400);
    assert_eq!(response(gateway.client().h2(), &long).await.status, 400);
    let longer = vec!["1.1.1.1"; 10_000].join(",");
    let status = response(gateway.client(), &longer).await.status;
    assert!([400, 431].contains(&status), "unexpected status {status}");
    assert_eq!(upstream.count(), 0);
    // The gateway ignores the `X-Forwarded-For` of an untrusted peer, so a value that is too long has no effect.
    let untrusted = gateway.client().from("127.0.0.9");
    assert_eq!(response(untrusted, &long).await.status, 200);
    assert_eq!(upstream.last().header("x-forwarded-for"), "127.0.0.9");
}

#[tokio::test]
async fn connection_does_not_remove_headers_that_identify_the_client() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    let lines = [
        (
            "Connection",
            "X-Forwarded-For, Idempotency-Key, Authorization, Host, Cookie, X-Custom",
        ),
        ("X-Forwarded-For", "203.0.113.7"),
        ("Idempotency-Key", "k1"),
        ("Authorization", "Bearer t"),
        ("Cookie", "a=b"),
        ("X-Custom", "1"),
        ("Host", "api.example"),
    ];
    let received = forwarded_request(&gateway.client(), &upstream, &lines).await;
    assert_eq!(received.header("x-forwarded-for"), "203.0.113.7, 127.0.0.1");
    assert_eq!(received.header("idempotency-key"), "k1");
    assert_eq!(received.header("authorization"), "Bearer t");
    assert_eq!(received.header("cookie"), "a=b");
    assert_eq!(received.header("host"), "api.example");
    assert!(!received.has("x-custom"));
    assert!(!received.has("connection"));
}

#[tokio::test]
async fn connection_does_not_remove_a_configured_key_header() {
    let upstream = Upstream::echo();
    let builder = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = { header = \"X-Once\" }\n",
    );
    let gateway = builder.upstream(&upstream).start();
    let lines = [
        ("Connection", "X-Once, X-Custom"),
        ("X-Once", "k1"),
        ("X_Once", "k2"),
        ("X-Custom", "1"),
    ];
    let received = forwarded_request(&gateway.client(), &upstream, &lines).await;
    assert_eq!(received.header("x-once"), "k1");
    assert!(!received.has("x_once") && !received.has("x-custom"));
}

#[tokio::test]
async fn connection_does_not_change_the_bucket() {
    let upstream = Upstream::echo();
    let gateway = trusting_gateway(&upstream, "[\"device\"]");
    let send = async |connection: &str| -> ClientResponse {
        let request = gateway.client().get("/");
        let request = request.header("X-Forwarded-For", "203.0.113.7");
        request.header("Connection", connection).send().await
    };
    assert_eq!(send("close").await.status, 200);
    assert_eq!(send("close, X-Forwarded-For").await.status, 429);
}

#[tokio::test]
async fn names_with_underscores_do_not_replace_the_real_headers() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    for client in [gateway.client(), gateway.client().h2()] {
        let lines = [
            ("X_Forwarded_For", "203.0.113.7"),
            ("x-forwarded_for", "203.0.113.8"),
            ("Idempotency_Key", "k1"),
            ("X_Real_Ip", "203.0.113.9"),
            ("plain_name", "dropped"),
        ];
        let received = forwarded_request(&client, &upstream, &lines).await;
        assert_eq!(received.header("x-forwarded-for"), "127.0.0.1");
        for name in [
            "x_forwarded_for",
            "x-forwarded_for",
            "idempotency_key",
            "x_real_ip",
            "plain_name",
        ] {
            assert!(!received.has(name), "the upstream received {name}");
        }
        assert!(!received.has("idempotency-key"));
    }
}

#[tokio::test]
async fn only_a_trusted_peer_can_set_forwarding_headers() {
    let upstream = Upstream::echo();
    let gateway = without_limits(&upstream);
    let forwarding_headers = [
        ("Forwarded", "for=203.0.113.7"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Port", "443"),
        ("X-Forwarded-Prefix", "/evil"),
        ("X-Real-IP", "203.0.113.7"),
        ("Host", "api.example"),
    ];
    let untrusted = gateway.client().from("127.0.0.9");
    let received = forwarded_request(&untrusted, &upstream, &forwarding_headers).await;
    assert_eq!(received.header("x-forwarded-host"), "api.example");
    assert_eq!(received.header("x-forwarded-proto"), "http");
    for name in [
        "forwarded",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-real-ip",
    ] {
        assert!(!received.has(name), "the upstream received {name}");
    }
    let received = forwarded_request(&gateway.client(), &upstream, &forwarding_headers).await;
    assert_eq!(received.header("x-forwarded-host"), "evil.example");
    assert_eq!(received.header("x-forwarded-proto"), "https");
    assert_eq!(received.header("x-forwarded-port"), "443");
}
