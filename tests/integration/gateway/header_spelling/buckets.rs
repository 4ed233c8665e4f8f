//! Tests that a client cannot get another bucket of a rate limit by another spelling of the header field in the key of
//! the rate limit.

use super::{Lines, Variant, both, http1, padded, with_lines};
use crate::support::{Gateway, Upstream};

/// Starts a gateway whose rate limit admits one request per hour for each value of the header field `header`.
fn limited_by(header: &str, upstream: &Upstream) -> Gateway {
    Gateway::limited(&format!("key = \"header:{header}\"\nrate = \"1/h\""))
        .upstream(upstream)
        .start()
}

/// Uses up the bucket of the header lines `real`, and the bucket of requests without the header field. Asserts that
/// each variant is then rejected, because it has no bucket of its own.
async fn assert_same_bucket(header: &str, real: Lines, variants: &[Variant]) {
    let upstream = Upstream::echo();
    let gateway = limited_by(header, &upstream);
    let first = with_lines(gateway.client().get("/"), real).send().await;
    assert_eq!(first.status, 200, "{header}");
    gateway.client().get("/").send().await;
    let forwarded = upstream.count();
    for variant in variants {
        for (request, expected) in variant.requests(&gateway, "GET") {
            let response = request.send().await;
            let shown = format!("{} over {:?}", variant.shown(), response.version);
            assert_eq!(response.status, expected, "{shown}");
            if expected == 400 {
                assert_eq!(response.problem(), "bad-request", "{shown}");
            }
            assert_eq!(upstream.count(), forwarded, "{shown}");
        }
    }
}

#[tokio::test]
async fn a_header_has_one_bucket_per_value() {
    assert_same_bucket(
        "X-Api-Key",
        &[("X-Api-Key", b"real")],
        &[
            both(&[("X-Api-Key", b"real")], 429),
            padded(&[("X-Api-Key", b" real")], 429),
            padded(&[("X-Api-Key", b"\treal")], 429),
            padded(&[("X-Api-Key", b"real ")], 429),
            padded(&[("X-Api-Key", b"real\t")], 429),
            padded(&[("X-Api-Key", b"  real")], 429),
            padded(&[("X-Api-Key", b" \t real \t ")], 429),
            padded(&[("X-Api-Key", b" ")], 429),
            padded(&[("X-Api-Key", b"real"), ("X-Other", b" a")], 429),
            padded(&[("X-Api-Key", b"real"), ("Accept", b"*/*\t")], 429),
            padded(&[("X-Api-Key", b"real"), ("X-Request-Id", b" a")], 429),
            both(&[("X-Api-Key", b"")], 429),
            both(&[("X-Api-Key", b"real"), ("X-Api-Key", b"real")], 400),
            both(&[("X-Api-Key", b"real"), ("X-Api-Key", b"other")], 400),
            both(&[("X-Api-Key", b"new"), ("X-Api-Key", b"real")], 400),
            both(&[("X-Api-Key", b""), ("X-Api-Key", b"real")], 400),
            both(&[("X-Api-Key", b"real"), ("X-Api-Key", b"")], 400),
            both(&[("X-Api-Key", b""), ("X-Api-Key", b"")], 400),
            both(
                &[
                    ("X-Api-Key", b"a"),
                    ("X-Api-Key", b"b"),
                    ("X-Api-Key", b"c"),
                ],
                400,
            ),
            http1(&[("X-Api-Key", b"n1"), ("Connection", b"X-Api-Key")], 429),
            http1(&[("X-Api-Key", b"real"), ("Connection", b"x-api-key")], 429),
            http1(
                &[
                    ("X-Api-Key", b"n2"),
                    ("Connection", b"close,,\tX-API-KEY ,"),
                ],
                429,
            ),
            http1(
                &[
                    ("Connection", b"keep-alive"),
                    ("X-Api-Key", b"n3"),
                    ("Connection", b"x-api-key"),
                ],
                429,
            ),
            http1(
                &[
                    ("Connection", b"x-api-key"),
                    ("X-Api-Key", b"n4"),
                    ("X-Api-Key", b"n5"),
                ],
                429,
            ),
            both(&[("X_Api_Key", b"n6")], 429),
            both(&[("X_API_KEY", b"n7"), ("X-Api-Key", b"real")], 429),
            both(&[("X-Api_Key", b"n8")], 429),
            both(&[("x_api-key", b"n9"), ("x-api_key", b"n10")], 429),
            both(&[("X.Api.Key", b"n11")], 429),
            http1(&[("X_Api_Key", b"n12"), ("Connection", b"x_api_key")], 429),
            http1(
                &[
                    ("X_Api_Key", b"n13"),
                    ("X-Api-Key", b"n14"),
                    ("Connection", b"x-api-key"),
                ],
                429,
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn forty_padded_values_over_http2_get_400() {
    let upstream = Upstream::echo();
    let gateway = limited_by("X-Api-Key", &upstream);
    for spaces in 1..=40 {
        let value = format!("{}real", " ".repeat(spaces));
        let request = gateway.client().h2().get("/").header("X-Api-Key", &value);
        let response = request.send().await;
        assert_eq!(response.status, 400, "{spaces}");
        assert_eq!(response.problem(), "bad-request");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_limit_by_client_and_header_has_one_bucket_per_value() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("key = [\"client\", \"header:X-Api-Key\"]\nrate = \"1/h\"")
        .upstream(&upstream)
        .start();
    let first = gateway.client().get("/").header("X-Api-Key", "real");
    assert_eq!(first.send().await.status, 200);
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    for variant in [
        padded(&[("X-Api-Key", b" real")], 429),
        both(&[("X-Api-Key", b"real"), ("X-Api-Key", b"real")], 400),
        http1(&[("X-Api-Key", b"new"), ("Connection", b"x-api-key")], 429),
        both(&[("X_Api_Key", b"new")], 429),
        both(&[("X-Api-Key", b"")], 429),
    ] {
        for (request, expected) in variant.requests(&gateway, "GET") {
            assert_eq!(request.send().await.status, expected, "{}", variant.shown());
        }
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn cookie_lines_are_one_value() {
    assert_same_bucket(
        "Cookie",
        &[("Cookie", b"a=1; b=2")],
        &[
            both(&[("Cookie", b"a=1"), ("Cookie", b"b=2")], 429),
            both(
                &[("Cookie", b"a=1"), ("Cookie", b""), ("Cookie", b"b=2")],
                429,
            ),
            both(&[("Cookie", b""), ("Cookie", b"a=1; b=2")], 429),
            both(&[("Cookie", b""), ("Cookie", b"")], 429),
            padded(&[("Cookie", b" a=1; b=2")], 429),
            padded(&[("Cookie", b"a=1"), ("Cookie", b"b=2 ")], 429),
            http1(&[("Cookie", b"a=1; b=2"), ("Connection", b"cookie")], 429),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_credential_is_one_value_in_every_spelling_of_its_scheme() {
    assert_same_bucket(
        "Authorization",
        &[("Authorization", b"Bearer t")],
        &[
            both(&[("Authorization", b"bearer t")], 429),
            both(&[("Authorization", b"BEARER t")], 429),
            both(&[("Authorization", b"bEaReR t")], 429),
            both(&[("Authorization", b"Bearer  t")], 429),
            both(&[("Authorization", b"bearer     t")], 429),
            both(&[("Authorization", b"Bearer\tt")], 429),
            padded(&[("Authorization", b" Bearer t")], 429),
            both(
                &[
                    ("Authorization", b"Bearer t"),
                    ("Authorization", b"Bearer t"),
                ],
                400,
            ),
            both(
                &[
                    ("Authorization", b"Bearer x"),
                    ("Authorization", b"Bearer t"),
                ],
                400,
            ),
            http1(
                &[
                    ("Authorization", b"Bearer t"),
                    ("Connection", b"authorization"),
                ],
                429,
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_host_is_one_value_in_every_spelling() {
    assert_same_bucket(
        "Host",
        &[("Host", b"a.example")],
        &[
            both(&[("Host", b"a.example")], 429),
            both(&[("Host", b"A.EXAMPLE")], 429),
            both(&[("Host", b"a.example:80")], 429),
            both(&[("Host", b"a.example:8080")], 429),
            both(&[("Host", b"a.example.")], 429),
            both(&[("Host", b"A.Example.:1")], 429),
            http1(&[("Host", b"a.example:")], 429),
            http1(&[("Host", b" a.example\t")], 429),
            http1(&[("Host", b"a.example"), ("Connection", b"host")], 429),
            http1(&[("Host", b"a.example"), ("Host", b"b.example")], 400),
        ],
    )
    .await;
    assert_same_bucket(
        "Host",
        &[("Host", b"[::1]")],
        &[
            both(&[("Host", b"[0:0::1]:80")], 429),
            both(&[("Host", b"[0:0:0:0:0:0:0:1]")], 429),
        ],
    )
    .await;
}

#[tokio::test]
async fn forwarding_headers_of_an_untrusted_peer_have_no_bucket() {
    for header in [
        "X-Forwarded-For",
        "X-Real-IP",
        "Forwarded",
        "X-Forwarded-Host",
    ] {
        let upstream = Upstream::echo();
        let gateway = limited_by(header, &upstream);
        assert_eq!(gateway.client().get("/").send().await.status, 200);
        for claim in ["203.0.113.1", "203.0.113.2, 10.0.0.1", ""] {
            for client in [gateway.client(), gateway.client().h2()] {
                let request = client.get("/").header(header, claim);
                assert_eq!(request.send().await.status, 429, "{header}: {claim}");
                let request = client.get("/").header(header, claim);
                let twice = request.header(header, "198.51.100.7").send().await;
                assert_eq!(twice.status, 429, "{header}: {claim}");
            }
        }
    }
}

#[tokio::test]
async fn a_limit_by_x_forwarded_for_is_counted_by_the_chain_that_is_forwarded() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("key = \"header:X-Forwarded-For\"\nrate = \"1/h\"")
        .with_section("[client]\ntrusted_proxies = [\"127.0.0.1\"]")
        .upstream(&upstream)
        .start();
    for (chain, expected) in [
        (&["203.0.113.7"][..], 200),
        (&["203.0.113.7"], 429),
        (&["203.0.113.7:80"], 429),
        (&["6.6.6.6, 203.0.113.7"], 429),
        (&["6.6.6.6", "203.0.113.7"], 429),
        (&["6.6.6.7,203.0.113.7 "], 429),
        (&["203.0.113.8"], 200),
    ] {
        let request = chain
            .iter()
            .fold(gateway.client().get("/"), |request, line| {
                request.header("X-Forwarded-For", line)
            });
        assert_eq!(request.send().await.status, expected, "{chain:?}");
    }
}

#[tokio::test]
async fn a_preflight_whose_method_is_named_in_connection_is_a_plain_request() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    let send = |connection: &str| {
        let request = gateway.client().request("OPTIONS", "/");
        let request = request.header("Origin", "https://app.example");
        let request = request.header("Access-Control-Request-Method", "GET");
        request.header("Connection", connection).send()
    };
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    assert_eq!(send("access-control-request-method").await.status, 429);
    assert_eq!(send("close").await.status, 200);
}

#[tokio::test]
async fn control_characters_never_reach_a_limit() {
    let upstream = Upstream::echo();
    let gateway = limited_by("X-Api-Key", &upstream);
    for octet in ["\x0b", "\x0c", "\x00", "\x1f", "\x7f"] {
        for value in [format!("{octet}real"), format!("real{octet}")] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: {value}\r\n\r\n");
            let response = gateway.client().send_raw(head).await;
            assert!(
                response.starts_with("HTTP/1.1 400"),
                "unexpected response to a value with {octet:?}: {response}"
            );
        }
    }
    assert_eq!(upstream.count(), 0);
}

/// A request that repeats a header field in the key of a rate limit gets 400. But a rate limit in shadow mode must
/// not reject requests, so the gateway forwards the request.
#[tokio::test]
async fn a_repeated_header_of_a_shadow_limit_is_forwarded() {
    let upstream = Upstream::echo();
    let limit = "key = \"header:X-Api-Key\"\nrate = \"1/h\"\nmode = \"shadow\"";
    let gateway = Gateway::limited(limit).upstream(&upstream).start();
    for _ in 0..3 {
        let request = gateway.client().get("/").header("X-Api-Key", "a");
        assert_eq!(request.header("X-Api-Key", "b").send().await.status, 200);
    }
}
