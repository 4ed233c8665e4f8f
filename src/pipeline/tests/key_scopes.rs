//! Tests of the scopes of idempotency keys: no caller ever receives the response of another.

use super::*;

/// Sends a request with the key `k` from each peer, with these header lines, and asserts the number of the execution
/// whose response it receives. `None` means that it is rejected, because its credentials differ.
async fn assert_callers(config: &str, rows: &[(&str, &str, Option<usize>)]) {
    let chain = Chain::new(config);
    for (peer, lines, expected) in rows {
        let before = chain.executions();
        let request = with_lines(post("k"), lines);
        let response = chain.send_from(peer, request, "order").await;
        if let Some(number) = expected {
            response.assert_created(*number);
            assert_eq!(response.is_replay(), *number <= before, "{peer} {lines}");
        } else {
            response.assert_problem(422, "idempotency-key-reused");
            let detail = response.problem()["detail"].to_string();
            assert!(detail.contains("the same request with other credentials"));
            assert!(detail.contains("`scope`"), "{detail}");
            assert_eq!(chain.executions(), before, "{peer} {lines}");
        }
    }
}

#[tokio::test]
async fn by_default_the_scope_is_the_credential_or_the_client() {
    assert_callers(
        &keyed(""),
        &[
            ("192.0.2.1", "authorization: Bearer ann", Some(1)),
            ("192.0.2.1", "authorization: Bearer bob", Some(2)),
            ("192.0.2.1", "authorization: Bearer Ann", Some(3)),
            // The scheme is case-insensitive (RFC 9110, section 11.1). A value of one word has no scheme.
            ("192.0.2.1", "authorization: bearer ann", Some(1)),
            ("192.0.2.2", "authorization: Bearer ann", Some(1)),
            ("192.0.2.1", "authorization: Secret", Some(4)),
            ("192.0.2.1", "authorization: secret", Some(5)),
            ("192.0.2.1", "", Some(6)),
            ("192.0.2.2", "", Some(7)),
            ("192.0.2.1", "", Some(6)),
        ],
    )
    .await;
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_scope_is_the_forwarded_client() {
    assert_callers(
        &format!("client.trusted_proxies = [\"192.0.2.9\"]\n{}", keyed("")),
        &[
            ("192.0.2.9", "x-forwarded-for: 198.51.100.1", Some(1)),
            ("192.0.2.9", "x-forwarded-for: 198.51.100.2", Some(2)),
            (
                "192.0.2.9",
                "x-forwarded-for: 203.0.113.7, 198.51.100.1",
                Some(1),
            ),
            ("192.0.2.8", "x-forwarded-for: 198.51.100.1", Some(3)),
            ("192.0.2.8", "x-forwarded-for: 198.51.100.2", Some(3)),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_scope_can_be_a_header_a_cookie_or_shared() {
    assert_callers(
        &keyed("scope = [\"header:x-user\"]"),
        &[
            (
                "192.0.2.1",
                "x-user: a | authorization: Bearer old",
                Some(1),
            ),
            (
                "192.0.2.2",
                "x-user: a | authorization: Bearer new",
                Some(1),
            ),
            ("192.0.2.1", "x-user: b", Some(2)),
            // Without the header the scope is the client, and credentials are compared.
            ("192.0.2.1", "authorization: Bearer ann", Some(3)),
            ("192.0.2.1", "authorization: Bearer bob", None),
            ("192.0.2.1", "cookie: sid=bob", None),
            ("192.0.2.2", "authorization: Bearer ann", Some(4)),
        ],
    )
    .await;
    assert_callers(
        &keyed("scope = [\"cookie:session\"]"),
        &[
            ("192.0.2.1", "cookie: session=ann", Some(1)),
            ("192.0.2.1", "cookie: session=bob", Some(2)),
            ("192.0.2.2", "cookie: csrf=1; session=ann", Some(1)),
            (
                "192.0.2.3",
                "cookie: a=1 | cookie: session=bob | cookie: b=2",
                Some(2),
            ),
            ("192.0.2.1", "cookie: Session=ann", Some(3)),
            ("192.0.2.1", "x-api-key: bob", None),
        ],
    )
    .await;
    assert_callers(
        &keyed("scope = [\"shared\"]"),
        &[
            ("192.0.2.1", "authorization: Bearer ann", Some(1)),
            ("192.0.2.2", "authorization: Bearer bob", Some(1)),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_scope_of_several_parts_is_each_combination() {
    assert_callers(
        &keyed("scope = [\"header:x-a\", \"header:x-b\"]"),
        &[
            ("192.0.2.1", "x-a: 1 | x-b: 2", Some(1)),
            ("192.0.2.1", "x-a: 12 | x-b: ", Some(2)),
            ("192.0.2.1", "x-a:  | x-b: 12", Some(3)),
            ("192.0.2.1", "x-a: 2 | x-b: 1", Some(4)),
            ("192.0.2.1", "x-a: 1,2 | x-b: ", Some(5)),
            ("192.0.2.1", "x-a: 1 | x-b: 2", Some(1)),
            ("192.0.2.1", "x-a: 12 | x-b: ", Some(2)),
        ],
    )
    .await;
}

#[tokio::test]
async fn users_of_one_address_who_differ_in_a_credential_never_receive_each_others_response() {
    let credentials: [(&str, &str, &str); 11] = [
        (
            "cookie",
            "theme=dark; session=ann",
            "theme=dark; session=bob",
        ),
        ("x-api-key", "ann", "bob"),
        ("api-key", "ann", "bob"),
        ("apikey", "ann", "bob"),
        ("x-auth-token", "ann", "bob"),
        ("x-auth-request-email", "ann@example.com", "bob@example.com"),
        ("x-session-id", "ann", "bob"),
        ("x-client-secret", "ann", "bob"),
        ("x-amz-security-token", "ann", "bob"),
        // Neither of these is forwarded. A wrong rejection is better than the response of another user.
        ("proxy-authorization", "Basic YW5u", "Basic Ym9i"),
        ("x_session", "ann", "bob"),
    ];
    let chain = Chain::new(&keyed(""));
    for (name, ann, bob) in credentials {
        let of = |key: &str, value: &str| post(&format!("{key}-{name}")).header(name, value);
        let without = |key: &str| post(&format!("{key}-{name}"));
        let first = chain.executions() + 1;
        chain.send(of("with", ann)).await.assert_created(first);
        for other in [of("with", bob), without("with")] {
            let rejected = chain.send(other).await;
            rejected.assert_problem(422, "idempotency-key-reused");
        }
        assert!(chain.send(of("with", ann)).await.is_replay(), "{name}");
        chain
            .send(without("without"))
            .await
            .assert_created(first + 1);
        let rejected = chain.send(of("without", ann)).await;
        rejected.assert_problem(422, "idempotency-key-reused");
    }
    let received = chain.received.lock();
    let mut heads = received.iter().map(|(head, _)| &head.headers);
    assert!(heads.all(|headers| !headers.contains_key("proxy-authorization")));
}

#[tokio::test]
async fn reordered_headers_and_cookies_of_a_load_balancer_are_the_same_credentials() {
    assert_callers(
        &keyed(""),
        &[
            (
                "192.0.2.1",
                "x-api-key: ann | cookie: AWSALB=1; session=ann; cart=9 | x-auth-user: ann",
                Some(1),
            ),
            (
                "192.0.2.1",
                "cookie: cart=9 | x-auth-user: ann | cookie: AWSALB=2 | x-api-key: ann | cookie: session=ann",
                Some(1),
            ),
            (
                "192.0.2.1",
                "x-api-key: ann | cookie: session=ann; cart=9",
                None,
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_different_request_does_not_wait_for_the_one_in_flight() {
    let gate = Arc::new(Notify::new());
    let chain = Chain::gated(&keyed(""), &gate);
    let first = chain.start(post("k").header("x-api-key", "ann"), 1).await;
    let other_user = post("k").header("x-api-key", "bob");
    let other_body = post("k").header("x-api-key", "ann");
    for (request, body) in [(other_user, ""), (other_body, "other")] {
        let rejected = chain.send_body(request, body).await;
        rejected.assert_problem(422, "idempotency-key-reused");
    }
    gate.notify_one();
    first.await.unwrap().assert_created(1);
}
