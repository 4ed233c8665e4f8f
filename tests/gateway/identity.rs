//! Who is calling, and what upstream is told about it: rows 1 to 10 of the threats.

use crate::harness::{Answer, Client, Gateway, Received, Upstream};

/// A gateway that believes 127.0.0.1 and 10.0.0.0/8, with `limits` on its one route.
fn trusting(upstream: &Upstream, limits: &str) -> Gateway {
    Gateway::with(&format!(
        "[client]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n\
         [upstream.api]\nservers = [\"{{upstream}}\"]\n\
         [limit.device]\nrate = \"1/h\"\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = {limits}\n"
    ))
    .upstream(upstream)
    .start()
}

fn open(upstream: &Upstream) -> Gateway {
    trusting(upstream, "[]")
}

/// What upstream receives of a GET with these header lines.
async fn received(client: &Client, upstream: &Upstream, lines: &[(&str, &str)]) -> Received {
    let mut asking = client.get("/");
    for (name, value) in lines {
        asking = asking.header(name, value);
    }
    assert_eq!(asking.send().await.status, 200, "{lines:?}");
    upstream.last()
}

#[tokio::test]
async fn what_an_untrusted_peer_claims_is_neither_believed_nor_passed_on() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    let stranger = gateway.client().from("127.0.0.9");
    for client in [stranger.clone(), stranger.h2()] {
        let got = received(&client, &upstream, &[("X-Forwarded-For", "203.0.113.7")]).await;
        assert_eq!(got.header("x-forwarded-for"), "127.0.0.9");
    }
}

#[tokio::test]
async fn an_untrusted_peer_cannot_rotate_its_bucket_by_claiming_addresses() {
    let upstream = Upstream::echo();
    let gateway = trusting(&upstream, "[\"device\"]");
    let stranger = gateway.client().from("127.0.0.9");
    let ask = |claim: &str| stranger.get("/").header("X-Forwarded-For", claim).send();
    assert_eq!(ask("203.0.113.1").await.status, 200);
    assert_eq!(ask("203.0.113.2").await.status, 429);
    assert_eq!(ask("203.0.113.3").await.status, 429);
}

#[tokio::test]
async fn a_trusted_peers_chain_is_walked_from_the_right_to_the_first_stranger() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    for client in [gateway.client(), gateway.client().h2()] {
        for (chain, told) in [
            ("203.0.113.7", "203.0.113.7, 127.0.0.1"),
            ("6.6.6.6, 203.0.113.7", "203.0.113.7, 127.0.0.1"),
            (
                "6.6.6.6, 203.0.113.7, 10.1.1.1",
                "203.0.113.7, 10.1.1.1, 127.0.0.1",
            ),
            ("10.2.2.2, 10.1.1.1", "10.2.2.2, 10.1.1.1, 127.0.0.1"),
        ] {
            let got = received(&client, &upstream, &[("X-Forwarded-For", chain)]).await;
            assert_eq!(got.header("x-forwarded-for"), told, "{chain}");
        }
    }
}

#[tokio::test]
async fn several_lines_are_one_chain_in_their_order() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    let lines = [
        ("X-Forwarded-For", "6.6.6.6"),
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Forwarded-For", "10.1.1.1"),
    ];
    let got = received(&gateway.client(), &upstream, &lines).await;
    assert_eq!(
        got.header("x-forwarded-for"),
        "203.0.113.7, 10.1.1.1, 127.0.0.1"
    );
}

#[tokio::test]
async fn ports_are_stripped_and_what_does_not_parse_ends_the_walk() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    for (chain, told) in [
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
        let got = received(&gateway.client(), &upstream, &[("X-Forwarded-For", chain)]).await;
        assert_eq!(got.header("x-forwarded-for"), told, "{chain:?}");
    }
}

/// How a gateway with one token an hour answers each of these, sent by a trusted peer.
async fn statuses(chains: &[&str]) -> Vec<u16> {
    let upstream = Upstream::echo();
    let gateway = trusting(&upstream, "[\"device\"]");
    let mut statuses = Vec::new();
    for chain in chains {
        let asking = gateway.client().get("/").header("X-Forwarded-For", chain);
        statuses.push(asking.send().await.status);
    }
    statuses
}

#[tokio::test]
async fn an_ipv4_address_is_one_client_in_all_its_spellings() {
    let spellings = ["::ffff:1.2.3.4", "::ffff:102:304", "1.2.3.4", "1.2.3.4:80"];
    assert_eq!(statuses(&spellings).await, [200, 429, 429, 429]);
}

#[tokio::test]
async fn an_ipv6_network_of_64_bits_is_one_client() {
    let addresses = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"];
    assert_eq!(statuses(&addresses).await, [200, 429, 200]);
}

#[tokio::test]
async fn a_chain_without_end_is_refused_and_not_walked() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    let long = vec!["1.1.1.1"; 300].join(",");
    let answer =
        |client: Client, chain: &str| client.get("/").header("X-Forwarded-For", chain).send();
    assert_eq!(answer(gateway.client(), &long).await.status, 400);
    assert_eq!(answer(gateway.client().h2(), &long).await.status, 400);
    let longer = vec!["1.1.1.1"; 10_000].join(",");
    let status = answer(gateway.client(), &longer).await.status;
    assert!([400, 431].contains(&status), "{status}");
    assert_eq!(upstream.count(), 0);
    // From a stranger it is not even looked at.
    let stranger = gateway.client().from("127.0.0.9");
    assert_eq!(answer(stranger, &long).await.status, 200);
    assert_eq!(upstream.last().header("x-forwarded-for"), "127.0.0.9");
}

#[tokio::test]
async fn connection_cannot_take_away_what_says_who_somebody_is() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
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
    let got = received(&gateway.client(), &upstream, &lines).await;
    assert_eq!(got.header("x-forwarded-for"), "203.0.113.7, 127.0.0.1");
    assert_eq!(got.header("idempotency-key"), "k1");
    assert_eq!(got.header("authorization"), "Bearer t");
    assert_eq!(got.header("cookie"), "a=b");
    assert_eq!(got.header("host"), "api.example");
    assert!(!got.has("x-custom"));
    assert!(!got.has("connection"));
}

#[tokio::test]
async fn connection_cannot_take_away_a_key_whatever_its_header_is_called() {
    let upstream = Upstream::echo();
    let plan = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = { header = \"X-Once\" }\n",
    );
    let gateway = plan.upstream(&upstream).start();
    let lines = [
        ("Connection", "X-Once, X-Custom"),
        ("X-Once", "k1"),
        ("X_Once", "k2"),
        ("X-Custom", "1"),
    ];
    let got = received(&gateway.client(), &upstream, &lines).await;
    assert_eq!(got.header("x-once"), "k1");
    assert!(!got.has("x_once") && !got.has("x-custom"));
}

#[tokio::test]
async fn connection_cannot_take_the_limit_off_its_key() {
    let upstream = Upstream::echo();
    let gateway = trusting(&upstream, "[\"device\"]");
    let ask = async |connection: &str| -> Answer {
        let asking = gateway.client().get("/");
        let asking = asking.header("X-Forwarded-For", "203.0.113.7");
        asking.header("Connection", connection).send().await
    };
    assert_eq!(ask("close").await.status, 200);
    assert_eq!(ask("close, X-Forwarded-For").await.status, 429);
}

#[tokio::test]
async fn names_with_underscores_are_never_taken_for_the_real_ones() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    for client in [gateway.client(), gateway.client().h2()] {
        let lines = [
            ("X_Forwarded_For", "203.0.113.7"),
            ("x-forwarded_for", "203.0.113.8"),
            ("Idempotency_Key", "k1"),
            ("X_Real_Ip", "203.0.113.9"),
            ("plain_name", "stays"),
        ];
        let got = received(&client, &upstream, &lines).await;
        assert_eq!(got.header("x-forwarded-for"), "127.0.0.1");
        for name in [
            "x_forwarded_for",
            "x-forwarded_for",
            "idempotency_key",
            "x_real_ip",
        ] {
            assert!(!got.has(name), "{name}");
        }
        assert!(!got.has("idempotency-key"));
        assert_eq!(got.header("plain_name"), "stays");
    }
}

#[tokio::test]
async fn only_a_trusted_peer_may_say_where_a_request_came_from() {
    let upstream = Upstream::echo();
    let gateway = open(&upstream);
    let hearsay = [
        ("Forwarded", "for=203.0.113.7"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Port", "443"),
        ("X-Forwarded-Prefix", "/evil"),
        ("X-Real-IP", "203.0.113.7"),
        ("Host", "api.example"),
    ];
    let stranger = gateway.client().from("127.0.0.9");
    let got = received(&stranger, &upstream, &hearsay).await;
    assert_eq!(got.header("x-forwarded-host"), "api.example");
    assert_eq!(got.header("x-forwarded-proto"), "http");
    for name in [
        "forwarded",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-real-ip",
    ] {
        assert!(!got.has(name), "{name}");
    }
    let got = received(&gateway.client(), &upstream, &hearsay).await;
    assert_eq!(got.header("x-forwarded-host"), "evil.example");
    assert_eq!(got.header("x-forwarded-proto"), "https");
    assert_eq!(got.header("x-forwarded-port"), "443");
}
