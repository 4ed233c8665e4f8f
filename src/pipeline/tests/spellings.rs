//! Tests that every spelling of a header selects the same bucket of a limit and the same idempotency scope, and that
//! the upstream receives the value that selected them.

use http::Version;

use super::*;
use crate::pipeline::explain::explain;

/// Expected statuses of requests with these header lines.
type Rows = &'static [(u16, &'static str)];

/// Key of a limit, head of a request, header lines that use up a bucket, and other spellings of them.
type Case = (&'static str, fn() -> Builder, &'static str, Rows);

/// Asserts the status of a request with each of these lists of header lines, and that none is executed. A list without
/// `connection` is also sent over HTTP/2. There a value with white space around it makes the request malformed. Over
/// HTTP/1 the parser has removed the white space.
async fn assert_not_executed(chain: &Chain, head: fn() -> Builder, rows: Rows) {
    let executed = chain.executions();
    for (status, lines) in rows {
        let is_padded = parse_lines(lines).any(|(_, value)| *value != *value.trim_ascii());
        let has_connection = lines.contains("connection: ");
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let is_http_2 = version == Version::HTTP_2;
            if if is_http_2 { has_connection } else { is_padded } {
                continue;
            }
            let request = with_lines(head().version(version), lines);
            let response = chain.send(request).await;
            let expected = if is_padded { 400 } else { *status };
            assert_eq!(response.status, expected, "{lines} over {version:?}");
            if expected == 400 {
                response.problem();
            }
            assert_eq!(chain.executions(), executed, "{lines} over {version:?}");
        }
    }
}

#[tokio::test]
async fn no_spelling_of_a_counted_header_has_a_bucket_of_its_own() {
    let hostless = || Request::get("/");
    let cases: [Case; 6] = [
        (
            "\"header:X-Api-Key\"",
            || get("/"),
            "x-api-key: real",
            &[
                (429, "x-api-key: real"),
                (429, "x-api-key: "),
                (400, "x-api-key: \treal"),
                (400, "x-api-key: real "),
                (400, "x-api-key:  "),
                (400, "x-api-key: real | accept: */*\t"),
                (400, "x-api-key: real | x-api-key: real"),
                (400, "x-api-key: new | x-api-key: real"),
                (400, "x-api-key:  | x-api-key: real"),
                (400, "x-api-key:  | x-api-key: "),
                (429, "x-api-key: new | connection: X-Api-Key"),
                (
                    429,
                    "connection: close,,\tX-API-KEY , | x-api-key: new | x-api-key: newer",
                ),
                (
                    429,
                    "connection: keep-alive | x-api-key: new | connection: x-api-key",
                ),
                (429, "x_api_key: new"),
                (429, "x_api-key: new | x-api_key: newer"),
                (429, "x_api_key: new | x-api-key: real"),
                (429, "x.api.key: new"),
                (429, "x_api_key: new | connection: x_api_key"),
            ],
        ),
        (
            "[\"client\", \"header:X-Api-Key\"]",
            || get("/"),
            "x-api-key: real",
            &[
                (429, "x-api-key: "),
                (400, "x-api-key: real | x-api-key: real"),
                (429, "x-api-key: new | connection: x-api-key"),
                (429, "x_api_key: new"),
            ],
        ),
        (
            "\"header:Cookie\"",
            || get("/"),
            "cookie: a=1; b=2",
            &[
                (429, "cookie: a=1 | cookie: b=2"),
                (429, "cookie: a=1 | cookie:  | cookie: b=2"),
                (429, "cookie:  | cookie: "),
                (400, "cookie: a=1 | cookie: b=2 "),
                (429, "cookie: a=1; b=2 | connection: cookie"),
            ],
        ),
        (
            "\"header:Authorization\"",
            || get("/"),
            "authorization: Bearer t",
            &[
                (429, "authorization: bEaReR t"),
                (429, "authorization: bearer     t"),
                (429, "authorization: Bearer\tt"),
                (400, "authorization: Bearer t | authorization: Bearer x"),
                (429, "authorization: Bearer t | connection: authorization"),
            ],
        ),
        (
            "\"header:Host\"",
            hostless,
            "host: a.example",
            &[
                (429, "host: A.EXAMPLE"),
                (429, "host: a.example:8080"),
                (429, "host: a.example."),
                (429, "host: A.Example.:1"),
                (429, "host: a.example | connection: host"),
                (400, "host: a.example | host: b.example"),
                (400, ""),
            ],
        ),
        (
            "\"header:Host\"",
            hostless,
            "host: [::1]",
            &[(429, "host: [0:0::1]:80"), (429, "host: [0:0:0:0:0:0:0:1]")],
        ),
    ];
    for (key, head, real, rows) in cases {
        let chain = Chain::new(&limited(&format!("rate = \"1/h\"\nkey = {key}")));
        chain.send(with_lines(head(), real)).await.assert_created(1);
        // Uses up the bucket of requests without the header.
        chain.send(head()).await;
        assert_not_executed(&chain, head, rows).await;
    }
}

#[tokio::test]
async fn no_spelling_of_a_header_has_an_idempotency_scope_of_its_own() {
    let cases: [(&str, &str, Rows); 3] = [
        (
            "",
            "authorization: Bearer ann",
            &[
                (201, "authorization: Bearer ann"),
                (201, "authorization: BEARER  ann"),
                (201, "authorization: "),
                (400, "authorization: \tBearer ann"),
                (400, "authorization:   "),
                (400, "authorization: Bearer ann | x-other:  a"),
                (400, "authorization: Bearer ann | authorization: Bearer ann"),
                (400, "authorization:  | authorization: Bearer ann"),
                (
                    201,
                    "authorization: Bearer ann | connection: Authorization, idempotency-key",
                ),
            ],
        ),
        (
            "scope = \"header:X-Api-Key\"",
            "x-api-key: real",
            &[
                (201, "x-api-key: real"),
                (201, "x-api-key: "),
                (400, "x-api-key: real\t"),
                (400, "x-api-key: real | x-api-key: real"),
                (201, "x-api-key: new | connection: X-Api-Key"),
                (201, "x_api_key: new"),
                (201, "x_api-key: new | x-api-key: real"),
                (201, "x.api.key: new"),
            ],
        ),
        (
            "scope = \"header:Cookie\"",
            "cookie: a=1; b=2",
            &[
                (201, "cookie: a=1 | cookie: b=2"),
                (201, "cookie: a=1; b=2 | cookie: "),
                (201, "cookie: a=1; b=2 | connection: Cookie"),
            ],
        ),
    ];
    for (scope, real, rows) in cases {
        let chain = Chain::new(&keyed(scope));
        let first = chain.send(with_lines(post("k"), real)).await;
        first.assert_created(1);
        // Executes the key in the scope of requests without the header.
        chain.send(post("k")).await;
        assert_not_executed(&chain, || post("k"), rows).await;
    }
}

#[tokio::test]
async fn an_idempotency_key_is_one_key_in_every_spelling() {
    let chain = Chain::new(&keyed(""));
    let received = |chain: &Chain| chain.received.lock().last().unwrap().0.headers.clone();
    let unkeyed = || get("/pay").method(Method::POST);
    chain.send(post("\"k\";attempt=2")).await.assert_created(1);
    assert_eq!(received(&chain)["idempotency-key"], "\"k\";attempt=2");
    assert_not_executed(
        &chain,
        unkeyed,
        &[
            (201, "idempotency-key: k"),
            (201, "idempotency-key: \"k\""),
            (400, "idempotency-key:  k"),
            (400, "idempotency-key: k | idempotency-key: k"),
            (400, "idempotency-key: k | idempotency-key: "),
            (400, "idempotency-key: "),
            (400, "idempotency-key: two words"),
            (400, "idempotency-key: \u{a0}k"),
            (201, "idempotency-key: k | idempotency_key: n"),
            (201, "idempotency-key: k | connection: Idempotency-Key"),
        ],
    )
    .await;
    // A key is case-sensitive, and a similar header is no key.
    chain.send(post("K")).await.assert_created(2);
    for number in [3, 4] {
        let similar = unkeyed().header("idempotency_key", "k");
        chain.send(similar).await.assert_created(number);
        assert!(!received(&chain).contains_key("idempotency_key"));
    }
}

#[tokio::test]
async fn forwarding_headers_of_an_untrusted_peer_have_no_bucket() {
    for header in [
        "x-forwarded-for",
        "x-real-ip",
        "forwarded",
        "x-forwarded-host",
    ] {
        let chain = Chain::new(&limited(&format!(
            "rate = \"1/h\"\nkey = \"header:{header}\""
        )));
        chain.send(get("/")).await.assert_created(1);
        for claim in ["203.0.113.1", "203.0.113.2, 10.0.0.1", ""] {
            for request in [
                get("/").header(header, claim),
                get("/")
                    .header(header, claim)
                    .header(header, "198.51.100.7"),
            ] {
                let rejected = chain.send(request).await;
                rejected.assert_problem(429, "rate-limited");
            }
        }
    }
}

#[tokio::test]
async fn a_limit_by_x_forwarded_for_is_counted_by_the_chain_that_is_forwarded() {
    let trusted = "client.trusted_proxies = [\"192.0.2.1\"]\n";
    let limited = limited("rate = \"1/h\"\nkey = \"header:X-Forwarded-For\"");
    let chain = Chain::new(&format!("{trusted}{limited}"));
    let rows: [(u16, &str); 6] = [
        (201, "x-forwarded-for: 203.0.113.7"),
        (429, "x-forwarded-for: 203.0.113.7:80"),
        (429, "x-forwarded-for: 6.6.6.6, 203.0.113.7"),
        (
            429,
            "x-forwarded-for: 6.6.6.6 | x-forwarded-for: 203.0.113.7",
        ),
        (
            429,
            "x-forwarded-for: 203.0.113.7 | connection: x-forwarded-for",
        ),
        (201, "x-forwarded-for: 203.0.113.8"),
    ];
    for (status, lines) in rows {
        let response = chain.send(with_lines(get("/"), lines)).await;
        assert_eq!(response.status, status, "{lines}");
    }
}

#[tokio::test]
async fn a_preflight_whose_method_is_named_in_connection_is_a_plain_request() {
    let chain = Chain::new(&limited("rate = \"1/h\""));
    let options = |connection: &str| {
        let options = get("/").method(Method::OPTIONS);
        let options = options.header("origin", "https://app.example");
        let options = options.header("access-control-request-method", "GET");
        options.header("connection", connection)
    };
    chain.send(get("/")).await.assert_created(1);
    let plain = chain.send(options("access-control-request-method")).await;
    plain.assert_problem(429, "rate-limited");
    chain.send(options("close")).await.assert_created(2);
}

const HEADERS_OF_ROUTES: &str = r#"
    [limit.tenant]
    key = "header:X-Tenant"
    rate = "1000/s"
    [limit.odd]
    key = "header:X_Odd"
    rate = "1000/s"
    [limit.trial]
    key = "header:X-Trial"
    rate = "1/h"
    mode = "shadow"
    [[route]]
    name = "limited"
    path = "/limited"
    limits = ["tenant", "odd", "trial"]
    [[route]]
    name = "keyed"
    path = "/keyed"
    idempotency = { header = "X-Once", scope = "header:X-Api-Key" }
    [[route]]
    name = "open"
    path = "/"
"#;

#[tokio::test]
async fn headers_similar_to_a_configured_header_are_removed_on_every_route() {
    let chain = Chain::new(HEADERS_OF_ROUTES);
    let similar = [
        "x_tenant",
        "x_api_key",
        "x-api_key",
        "x.api.key",
        "x_once",
        "x-odd",
        "x_forwarded_for",
        "x-forwarded_for",
        "x_real_ip",
        "idempotency_key",
        "transfer_encoding",
        "other_name",
    ];
    let real = ["x-tenant", "x-api-key", "x-once", "x_odd"];
    for path in ["/limited", "/keyed", "/open"] {
        let named = |request: Builder, name: &&str| request.header(*name, "forged");
        let request = similar.iter().fold(get(path), named);
        let request = (real.iter()).fold(request, |request, name| request.header(*name, "real"));
        assert_eq!(chain.send(request).await.status, 201, "{path}");
        let headers = chain.received.lock().pop().unwrap().0.headers;
        assert!(
            similar.iter().all(|name| !headers.contains_key(*name)),
            "{headers:?}"
        );
        assert!(
            real.iter().all(|name| headers[*name] == "real"),
            "{headers:?}"
        );
        assert_ne!(headers["x-forwarded-for"], "forged");
    }
}

#[tokio::test]
async fn upstream_receives_the_header_lines_that_selected_bucket_and_scope() {
    let cases: [(&str, &str, &str); 8] = [
        (
            "/limited",
            "connection: X-Tenant, X-Once, Cookie, X-Api-Key, Host, X-Other | x-tenant: a | x-tenant: b | \
             x-api-key: k | x-once: once | cookie: a=1 | authorization: Bearer t | x-other: 1",
            "x-once: once | cookie: a=1 | authorization: Bearer t",
        ),
        // A header that the route does not count, or only in shadow mode, can be repeated.
        (
            "/keyed",
            "x-tenant: a | x-tenant: b",
            "x-tenant: a | x-tenant: b",
        ),
        (
            "/limited",
            "x-trial: a | x-trial: b",
            "x-trial: a | x-trial: b",
        ),
        (
            "/open",
            "cookie: a=1 | cookie:  | cookie: b=2; c=3",
            "cookie: a=1; b=2; c=3",
        ),
        // HTTP trims only spaces and tabs. An octet that is white space in another character set belongs to the value.
        ("/limited", "x-tenant: \u{a0}real", "x-tenant: \u{a0}real"),
        ("/limited", "x-tenant: real\u{85}", "x-tenant: real\u{85}"),
        ("/limited", "x-tenant: re\t  al", "x-tenant: re\t  al"),
        (
            "/limited",
            "x-tenant: voil\u{c3}\u{a0}",
            "x-tenant: voil\u{c3}\u{a0}",
        ),
    ];
    let chain = Chain::new(HEADERS_OF_ROUTES);
    for (path, sent, expected) in cases {
        let response = chain.send(with_lines(get(path), sent)).await;
        assert_eq!(response.status, 201, "{sent:?}");
        let headers = chain.received.lock().pop().unwrap().0.headers;
        for (name, _) in parse_lines(sent).filter(|(name, _)| *name != "connection") {
            let received = headers.get_all(name).iter();
            let received: Vec<_> = received.map(http::HeaderValue::as_bytes).collect();
            let expected = parse_lines(expected).filter(|line| line.0 == name);
            let expected: Vec<_> = expected.map(|(_, value)| value).collect();
            assert_eq!(received, expected, "{name} of {sent:?}");
        }
        assert_eq!(headers["host"], "api.example");
    }
}

#[tokio::test]
async fn explain_shows_the_outcome_of_every_spelling() {
    let chain = Chain::new(&format!(
        "{} idempotency = {{ scope = \"header:X-Tenant\" }}\n",
        limited("rate = \"1/h\"\nkey = [\"client\", \"header:X-Api-Key\"]")
    ));
    let cases: [(&str, &[&str]); 8] = [
        ("x-api-key: a", &["counted by client and header x-api-key"]),
        (
            "x-api-key: a | x-api-key: b",
            &["outcome    400, The request has more than one x-api-key header. Send it once."],
        ),
        (
            "x-api-key: a | x-api-key: b | connection: x-api-key",
            &[
                "dropped    x-api-key, named in Connection",
                "because header x-api-key is missing",
                "otherwise 429",
            ],
        ),
        (
            "x_api_key: a",
            &[
                "dropped    x_api_key, which servers can read as another header",
                "because header x-api-key is missing",
            ],
        ),
        (
            "script_name: /x | x-original-url: /y",
            &[
                "script_name, because of the underscore",
                "x-original-url, which servers can read instead of the path",
            ],
        ),
        ("x-api-key: ", &["because header x-api-key is missing"]),
        (
            "idempotency-key: k | x-tenant: a | x-tenant: a",
            &["outcome    400, The request has more than one x-tenant header. Send it once."],
        ),
        (
            "idempotency-key: k | x-tenant: a | connection: X-Tenant, Idempotency-Key",
            &[
                "dropped    x-tenant, named in Connection",
                "this client, because header x-tenant is missing",
            ],
        ),
    ];
    for (lines, parts) in cases {
        let request = with_lines(get("/").method(Method::POST), lines);
        let peer = "192.0.2.1".parse().unwrap();
        let shown = explain(&chain.shared.policy, request.body(()).unwrap(), peer).to_string();
        for part in parts {
            assert!(shown.contains(part), "{part:?} is not in:\n{shown}");
        }
    }
}
