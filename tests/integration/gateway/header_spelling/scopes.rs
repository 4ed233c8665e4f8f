//! Tests that another spelling of a header field does not put a request into another idempotency scope. The gateway
//! therefore never executes a second request with the same idempotency key: it replays the response or rejects the
//! request.

use super::{Lines, Variant, both, http1, padded, with_lines};
use crate::support::{Gateway, Upstream};

/// Sends two requests with the idempotency key `k`: one with the header lines `real`, and one without these lines.
/// Asserts that no variant with the same key is executed: the gateway replays a response or rejects the request.
async fn assert_same_scope(scope: &str, real: Lines, variants: &[Variant]) {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed(scope).upstream(&upstream).start();
    let first = with_lines(gateway.client().post("/"), real).key("k");
    assert_eq!(first.send().await.status, 201);
    gateway.client().post("/").key("k").send().await;
    let executed = upstream.count();
    for variant in variants {
        for (request, expected) in variant.requests(&gateway, "POST") {
            let response = request.key("k").send().await;
            let shown = format!("{} over {:?}", variant.shown(), response.version);
            assert_eq!(response.status, expected, "{shown}");
            assert_eq!(response.is_replay(), expected == 201, "{shown}");
            assert_eq!(upstream.count(), executed, "{shown}");
        }
    }
}

#[tokio::test]
async fn a_credential_is_one_scope() {
    assert_same_scope(
        "",
        &[("Authorization", b"Bearer ann")],
        &[
            both(&[("Authorization", b"Bearer ann")], 201),
            padded(&[("Authorization", b" Bearer ann")], 201),
            padded(&[("Authorization", b"\tBearer ann")], 201),
            padded(&[("Authorization", b"Bearer ann ")], 201),
            padded(&[("Authorization", b"Bearer ann\t")], 201),
            padded(&[("Authorization", b"  ")], 201),
            both(&[("Authorization", b"")], 201),
            both(&[("Authorization", b"bearer ann")], 201),
            both(&[("Authorization", b"BEARER  ann")], 201),
            both(
                &[
                    ("Authorization", b"Bearer ann"),
                    ("Authorization", b"Bearer ann"),
                ],
                400,
            ),
            both(
                &[
                    ("Authorization", b"Bearer ann"),
                    ("Authorization", b"Bearer bob"),
                ],
                400,
            ),
            both(
                &[("Authorization", b""), ("Authorization", b"Bearer ann")],
                400,
            ),
            http1(
                &[
                    ("Authorization", b"Bearer ann"),
                    ("Connection", b"Authorization"),
                ],
                201,
            ),
            http1(
                &[
                    ("Authorization", b"Bearer ann"),
                    ("Connection", b"idempotency-key"),
                ],
                201,
            ),
            padded(&[("X-Other", b" a"), ("Authorization", b"Bearer ann")], 201),
            padded(&[("Content-Type", b"text/plain ")], 201),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_header_is_one_scope() {
    assert_same_scope(
        "scope = \"header:X-Api-Key\"",
        &[("X-Api-Key", b"real")],
        &[
            both(&[("X-Api-Key", b"real")], 201),
            padded(&[("X-Api-Key", b" real")], 201),
            padded(&[("X-Api-Key", b"real\t")], 201),
            both(&[("X-Api-Key", b"")], 201),
            both(&[("X-Api-Key", b"real"), ("X-Api-Key", b"real")], 400),
            both(&[("X-Api-Key", b"real"), ("X-Api-Key", b"n1")], 400),
            both(&[("X-Api-Key", b""), ("X-Api-Key", b"real")], 400),
            http1(&[("X-Api-Key", b"n2"), ("Connection", b"X-Api-Key")], 201),
            http1(
                &[
                    ("X-Api-Key", b"n3"),
                    ("X-Api-Key", b"n4"),
                    ("Connection", b"close, X-Api-Key"),
                ],
                201,
            ),
            both(&[("X_Api_Key", b"n5")], 201),
            both(&[("X_Api-Key", b"n6"), ("X-Api-Key", b"real")], 201),
            both(&[("X.Api.Key", b"n7")], 201),
        ],
    )
    .await;
}

#[tokio::test]
async fn cookie_lines_are_one_scope() {
    assert_same_scope(
        "scope = \"header:Cookie\"",
        &[("Cookie", b"a=1; b=2")],
        &[
            both(&[("Cookie", b"a=1"), ("Cookie", b"b=2")], 201),
            both(&[("Cookie", b"a=1; b=2"), ("Cookie", b"")], 201),
            padded(&[("Cookie", b"a=1; b=2 ")], 201),
            http1(&[("Cookie", b"a=1; b=2"), ("Connection", b"Cookie")], 201),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_key_is_one_key_in_every_spelling() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for variant in [
        both(&[("Idempotency-Key", b"k")], 201),
        both(&[("Idempotency-Key", b"\"k\"")], 201),
        both(&[("Idempotency-Key", b"\"k\";attempt=2")], 201),
        padded(&[("Idempotency-Key", b" k")], 201),
        padded(&[("Idempotency-Key", b"\"k\"\t")], 201),
        padded(&[("Idempotency-Key", b" ")], 400),
        both(&[("Idempotency-Key", b"k"), ("Idempotency-Key", b"k")], 400),
        both(&[("Idempotency-Key", b"k"), ("Idempotency-Key", b"n")], 400),
        both(&[("Idempotency-Key", b"")], 400),
        both(&[("Idempotency-Key", b"\xa0k")], 400),
        both(&[("Idempotency-Key", b"k"), ("Idempotency_Key", b"n")], 201),
        http1(
            &[
                ("Idempotency-Key", b"k"),
                ("Connection", b"Idempotency-Key"),
            ],
            201,
        ),
    ] {
        for (request, expected) in variant.requests(&gateway, "POST") {
            let response = request.send().await;
            assert_eq!(response.status, expected, "{}", variant.shown());
            assert_eq!(upstream.count(), 1, "{}", variant.shown());
        }
    }
}
