//! Tests of what precedes the stages: head, client, path and route.

use super::*;

#[tokio::test]
async fn a_request_without_a_route_is_rejected_before_the_stages() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    let rejected = chain.send(get("/other")).await;
    rejected.assert_problem(404, "no-route");
    assert!(rejected.header("ratelimit").is_none());
    assert!(rejected.header("x-request-id").is_some());
    assert_eq!(chain.executions(), 0);
}

#[tokio::test]
async fn a_request_with_an_invalid_head_is_not_charged() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    for invalid in [
        Request::post("/pay"),
        get("/pay").header("host", "two.example"),
        get("/pay%00"),
        get("/pay%0"),
        get("/pay/../other"),
    ] {
        let rejected = chain.send(invalid).await;
        rejected.assert_problem(400, "bad-request");
        assert!(rejected.header("ratelimit").is_none());
    }
    let admitted = chain.send(get("/pay")).await;
    admitted.assert_created(1);
    assert_eq!(admitted.header("ratelimit"), Some(r#""device";r=2;t=60"#));
}

#[tokio::test]
async fn a_violation_of_http_is_rejected_without_a_route() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    let connection = chain.connection("192.0.2.1");
    let reply = (chain.pipeline).reject_invalid(&connection, Violation::HeadTimeout, None);
    let rejected = received(reply).await;
    rejected.assert_problem(408, "bad-request");
    assert_eq!(chain.shared.metrics[0].unrouted.by_status[308].get(), 1);
}

#[tokio::test]
async fn equivalent_spellings_of_a_path_are_unified_and_others_are_forwarded_as_received() {
    let chain = Chain::new(LIMITED);
    for path in ["/%70a%79?x=%6f", "/pay/..//a%2fb", "/a/{b}?c={d}"] {
        assert_eq!(chain.send(get(path)).await.status, 201, "{path}");
    }
    // All of them are charged to the limit of the route.
    let rejected = chain.send(get("/./pay")).await;
    rejected.assert_problem(429, "rate-limited");
    let received = chain.received.lock();
    let forwarded: Vec<_> = received
        .iter()
        .map(|(head, _)| head.uri.to_string())
        .collect();
    assert_eq!(
        forwarded,
        ["/pay?x=o", "/pay/..//a%2Fb", "/a/%7Bb%7D?c=%7Bd%7D"]
    );
}

/// Limited routes for `GET /limited` and `/exact`, a route for `POST /posted`, and a route for everything else below
/// `/open/`.
const AMBIGUOUS: &str = r#"
    [limit.device]
    rate = "1/m"
    [[route]]
    name = "limited"
    path = "/limited"
    methods = "GET"
    limits = ["device"]
    [[route]]
    name = "exact"
    path = "/exact$"
    limits = ["device"]
    [[route]]
    name = "posted"
    path = "/posted"
    methods = "POST"
    [[route]]
    name = "allowing"
    path = "/open/allow/"
    ambiguous_paths = "allow"
    [[route]]
    name = "open"
    path = "/open/"
    "#;

#[tokio::test]
async fn a_path_with_readings_of_different_routes_is_rejected() {
    let chain = Chain::new(AMBIGUOUS);
    let rejections = [
        (
            "/open/../limited",
            "the route 'open'",
            "the route 'limited'",
        ),
        (
            "/open/..%2flimited",
            "the route 'open'",
            "the route 'limited'",
        ),
        (
            "/open/..;/limited",
            "the route 'open'",
            "the route 'limited'",
        ),
        (
            "/open/%255c..%255climited",
            "the route 'open'",
            "the route 'limited'",
        ),
        (
            "/limited/../open/x",
            "the route 'limited'",
            "the route 'open'",
        ),
        ("//limited", "no route", "the route 'limited'"),
        ("///h/limited", "no route", "the route 'limited'"),
        ("/////h/limited", "no route", "the route 'limited'"),
        (r"/\/h/limited", "no route", "the route 'limited'"),
        (r"/\\h/limited", "no route", "the route 'limited'"),
        ("/exact%0A", "no route", "the route 'exact'"),
        ("/exact;x/y", "no route", "the route 'exact'"),
        ("/exact%A0", "no route", "the route 'exact'"),
        ("/lim%FFited", "no route", "the route 'limited'"),
        ("/open/..", "the route 'open'", "no route"),
        ("/open/../posted", "the route 'open'", "no route"),
    ];
    for (path, literal, lenient) in rejections {
        let rejected = chain.send(get(path)).await;
        rejected.assert_problem(400, "bad-request");
        let detail = rejected.problem()["detail"].to_string();
        let names = format!("it matches {literal}. ");
        assert!(detail.contains(&names), "{path}: {detail}");
        let names = format!("that matches {lenient}. ");
        assert!(detail.contains(&names), "{path}: {detail}");
        let has_remedy = detail.contains("ambiguous_paths = \\\"allow\\\"");
        assert_eq!(has_remedy, literal != "no route", "{path}: {detail}");
    }
    assert_eq!(chain.executions(), 0);
    let counted = chain.shared.metrics[0].totals.ambiguous_paths.get();
    assert_eq!(counted, rejections.len() as u64);
}

#[tokio::test]
async fn a_path_whose_readings_match_the_same_route_or_none_is_not_ambiguous() {
    let chain = Chain::new(AMBIGUOUS);
    for (number, path) in [
        "/open/a//b",
        "/open/a/../b",
        "/open/a%2Fb",
        "/limited/a;b/..",
    ]
    .iter()
    .enumerate()
    {
        chain.send(get(path)).await.assert_created(number + 1);
        assert_eq!(chain.received.lock()[number].0.uri, **path);
    }
    for path in ["/none//a", "/none/../b", "/%2e%2e%2f"] {
        chain.send(get(path)).await.assert_problem(404, "no-route");
    }
    // A reading that has no route for the method is like a reading without a route.
    let rejected = chain.send(get("/posted//a")).await;
    rejected.assert_problem(405, "method-not-allowed");
    assert_eq!(rejected.header("allow"), Some("POST"));
    let rejected = chain.send(get("/x/../posted")).await;
    rejected.assert_problem(404, "no-route");
}

#[tokio::test]
async fn a_route_can_allow_ambiguous_paths() {
    let chain = Chain::new(AMBIGUOUS);
    let paths = [
        "/open/allow/../../limited",
        "/open/allow/..",
        // The lenient readings of this path are too many to compare.
        r"/open/allow/a;x%3Bz//..;y/%252f\%255c..%3F/%C0%AFb/../%23c",
    ];
    for (number, path) in paths.iter().enumerate() {
        chain.send(get(path)).await.assert_created(number + 1);
        assert_eq!(chain.received.lock()[number].0.uri, **path);
    }
    let elsewhere = paths[2].replace("/open/allow/", "/open/");
    let rejected = chain.send(get(&elsewhere)).await;
    rejected.assert_problem(400, "bad-request");
    let rejected = chain.send(get("/open/allow/%2500")).await;
    rejected.assert_problem(400, "bad-request");
}

#[tokio::test]
async fn a_strict_route_rejects_every_path_that_a_server_can_read_differently() {
    let chain = Chain::new(
        r#"
        server.paths = "strict"
        [[route]]
        name = "compatible"
        path = "/compatible/"
        paths = "compatible"
        [[route]]
        name = "allowing"
        path = "/allow/"
        ambiguous_paths = "allow"
        [[route]]
        name = "strict"
        path = "/"
        "#,
    );
    let rejections = [
        "/a//b",
        "//h/a",
        "/a/./b",
        "/a%2Fb",
        "/a%252Fb",
        r"/a\b",
        "/a;b",
        "/a%3Fb",
        "/a%0A",
        "/%C0%AF",
        "/%FF",
        // Its lenient readings are too many to compare.
        r"/a;x%3Bz//..;y/%252f\%255c..%3F/%C0%AFb/../%23c",
    ];
    for path in rejections {
        let rejected = chain.send(get(path)).await;
        rejected.assert_problem(400, "bad-request");
        let detail = rejected.problem()["detail"].to_string();
        assert!(detail.contains("the route 'strict' accepts"), "{detail}");
    }
    let metrics = &chain.shared.metrics[0];
    let counted = metrics.totals.strict_path_rejections.get();
    assert_eq!(counted, rejections.len() as u64);
    assert_eq!(metrics.totals.ambiguous_paths.get(), 0);
    // Escapes with one meaning, letter case and trailing slashes are not readings.
    let accepted = [
        "/",
        "/A/",
        "/users/%40me",
        "/a%20b",
        "/100%25",
        "/%C3%A9?x=//..;",
        "/a%0Ab",
        "/compatible/a//b",
        "/allow/..",
    ];
    for (number, path) in accepted.iter().enumerate() {
        chain.send(get(path)).await.assert_created(number + 1);
    }
}

#[tokio::test]
async fn a_route_that_names_options_takes_preflights() {
    let chain = Chain::new(
        r#"
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "optional"
        path = "/limited$"
        methods = ["OPTIONS", "POST"]
        limits = ["device"]
        [[route]]
        name = "rest"
        path = "/"
        "#,
    );
    let preflight = |path: &str, method: &str| {
        get(path)
            .method(Method::OPTIONS)
            .header("origin", "https://app.example")
            .header("access-control-request-method", method)
    };
    chain
        .send(preflight("/limited", "GET"))
        .await
        .assert_created(1);
    for method in ["GET", "POST", "PUT", "X"] {
        let rejected = chain.send(preflight("/limited", method)).await;
        rejected.assert_problem(429, "rate-limited");
        let rejected = chain.send(preflight("//limited", method)).await;
        rejected.assert_problem(400, "bad-request");
    }
    chain
        .send(preflight("/other", "GET"))
        .await
        .assert_created(2);
}

#[tokio::test]
async fn headers_with_underscores_or_another_target_are_dropped_unless_a_limit_reads_them() {
    let chain = |settings: &str| {
        Chain::new(&format!(
            r#"{settings}
            [limit.read]
            key = ["header:x_read", "header:X-Rewrite-URL"]
            rate = "1000/s"
            [[route]]
            name = "all"
            path = "/"
            limits = ["read"]
            "#
        ))
    };
    let sent = [
        "script_name",
        "path_info",
        "x_other",
        "x-original-url",
        "x_original_url",
        "x_forwarded_for",
        "x-read",
        "x_read",
        "x-rewrite-url",
        "x-plain",
    ];
    let forwarded = async |chain: &Chain| {
        let request = sent
            .iter()
            .fold(get("/"), |request, name| request.header(*name, "/x"));
        chain.send(request).await.assert_created(1);
        let received = chain.received.lock();
        let headers = &received[0].0.headers;
        let kept = sent.iter().filter(|name| headers.contains_key(**name));
        kept.copied().collect::<Vec<_>>()
    };
    let dropping = chain("");
    assert_eq!(
        forwarded(&dropping).await,
        ["x_read", "x-rewrite-url", "x-plain"]
    );
    let dropped = dropping.shared.metrics[0].upstreams[0]
        .headers_dropped
        .get();
    assert_eq!(dropped, 7);
    let forwarding = chain("server.underscores_in_headers = true");
    assert_eq!(
        forwarded(&forwarding).await,
        [
            "script_name",
            "path_info",
            "x_other",
            "x_read",
            "x-rewrite-url",
            "x-plain"
        ]
    );
}

#[tokio::test]
async fn a_preflight_is_matched_by_its_requested_method_in_all_readings() {
    let chain = Chain::new(AMBIGUOUS);
    let preflight = |path: &str, method: &str| {
        get(path)
            .method(Method::OPTIONS)
            .header("origin", "https://app.example")
            .header("access-control-request-method", method)
    };
    chain
        .send(preflight("/posted", "POST"))
        .await
        .assert_created(1);
    let rejected = chain.send(preflight("/open/../posted", "POST")).await;
    rejected.assert_problem(400, "bad-request");
    let rejected = chain.send(preflight("/posted", "PUT")).await;
    rejected.assert_problem(405, "method-not-allowed");
    assert_eq!(rejected.header("allow"), Some("POST"));
}

#[tokio::test]
async fn the_first_route_that_matches_method_and_path_applies() {
    let chain = Chain::new(
        r#"
        [[route]]
        name = "read"
        path = "/pay"
        methods = "GET"
        [[route]]
        name = "keyed"
        path = "/pay"
        methods = "POST"
        idempotency = { mode = "required", scope = "client" }
        "#,
    );
    chain.send(get("/pay")).await.assert_created(1);
    let unkeyed = chain.send(get("/pay").method(Method::POST)).await;
    unkeyed.assert_problem(400, "idempotency-key-missing");
    let deleted = chain.send(get("/pay").method(Method::DELETE)).await;
    deleted.assert_problem(405, "method-not-allowed");
    assert_eq!(deleted.header("allow"), Some("GET, POST"));
    let unmatched = chain.send(get("/other").method(Method::DELETE)).await;
    unmatched.assert_problem(404, "no-route");
    assert_eq!(chain.executions(), 1);
}

#[tokio::test]
async fn a_method_is_case_sensitive_and_cannot_be_overridden() {
    let chain = Chain::new(
        r#"
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "posted"
        path = "/x"
        methods = ["POST", "PURGE"]
        limits = ["device"]
        [[route]]
        name = "got"
        path = "/x"
        methods = ["GET"]
        [[route]]
        name = "all"
        path = "/y"
        "#,
    );
    for (method, known) in [
        ("post", "POST"),
        ("Get", "GET"),
        ("propfind", "PROPFIND"),
        ("purge", "PURGE"),
    ] {
        let rejected = chain.send(get("/x").method(method)).await;
        rejected.assert_problem(400, "bad-request");
        let detail = rejected.problem()["detail"].to_string();
        assert!(detail.contains(&format!("Use {known}.")), "{detail}");
    }
    let unknown = chain.send(get("/x").method("BREW")).await;
    unknown.assert_problem(405, "method-not-allowed");
    assert_eq!(unknown.header("allow"), Some("GET, POST, PURGE"));
    let overriding = |method: &str, other: &str| {
        let request = get("/x").method(method);
        chain.send(request.header("x-http-method-override", other))
    };
    overriding("POST", "GET").await.assert_created(1);
    let rejected = overriding("POST", "GET").await;
    rejected.assert_problem(429, "rate-limited");
    overriding("GET", "POST").await.assert_created(2);
    for (number, method) in (3..).zip(["PROPFIND", "BREW", "brew"]) {
        chain
            .send(get("/y").method(method))
            .await
            .assert_created(number);
        assert_eq!(chain.received.lock()[number - 1].0.method, method);
    }
}

#[tokio::test]
async fn clients_are_told_apart_by_their_address() {
    let chain = Chain::new(&format!(
        "client.trusted_proxies = [\"192.0.2.0/24\"]\n{}",
        limited("rate = \"1/h\"")
    ));
    for (address, status) in [
        ("::ffff:1.2.3.4", 201),
        ("::ffff:102:304", 429),
        ("1.2.3.4:80", 429),
        ("6.6.6.6, 1.2.3.4, 192.0.2.7", 429),
        ("2001:db8::1", 201),
        ("2001:db8::ffff:2", 429),
        ("2001:db8:0:1::1", 201),
    ] {
        let request = get("/").header("x-forwarded-for", address);
        assert_eq!(chain.send(request).await.status, status, "{address}");
    }
    let long = |hops| get("/").header("x-forwarded-for", vec!["1.1.1.1"; hops].join(","));
    let rejected = chain.send(long(300)).await;
    rejected.assert_problem(400, "bad-request");
    // The header of an untrusted peer has no effect.
    let untrusted = chain.send_from("203.0.113.1", long(300), "").await;
    untrusted.assert_created(4);
    assert_eq!(
        chain.received.lock()[3].0.headers["x-forwarded-for"],
        "203.0.113.1"
    );
}

#[tokio::test]
async fn only_a_trusted_peer_can_set_forwarding_headers() {
    let sent = "forwarded: for=203.0.113.7 | x-forwarded-host: evil.example | x-forwarded-proto: https | \
                x-forwarded-port: 443 | x-forwarded-prefix: /evil | x-real-ip: 203.0.113.7";
    let trusted = "client.trusted_proxies = [\"192.0.2.0/24\"]\n";
    let chain = Chain::new(&format!("{trusted}{LIMITED}"));
    for (peer, host, proto, port) in [
        ("203.0.113.1", "api.example", "http", None),
        ("192.0.2.1", "evil.example", "https", Some("443")),
    ] {
        chain.send_from(peer, with_lines(get("/"), sent), "").await;
        let headers = chain.received.lock().pop().unwrap().0.headers;
        assert_eq!(headers["x-forwarded-host"], host);
        assert_eq!(headers["x-forwarded-proto"], proto);
        let received = headers
            .get("x-forwarded-port")
            .map(|port| port.to_str().unwrap());
        assert_eq!(received, port);
        if port.is_none() {
            for name in ["forwarded", "x-forwarded-prefix", "x-real-ip"] {
                assert!(!headers.contains_key(name), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn the_host_sent_upstream_follows_the_configuration() {
    for (setting, expected) in [
        ("preserve", Some("shop.example:81")),
        ("server", None),
        ("api.internal", Some("api.internal")),
    ] {
        let chain = Chain::new(&format!("upstream.api.host = \"{setting}\"\n{LIMITED}"));
        let request = Request::get("/").header("host", "shop.example:81");
        chain.send(request).await.assert_created(1);
        let headers = chain.received.lock().pop().unwrap().0.headers;
        match expected {
            Some(host) => assert_eq!(headers["host"], host),
            None => assert!(headers["host"].to_str().unwrap().ends_with(".memory")),
        }
        assert_eq!(headers["x-forwarded-host"], "shop.example:81");
        assert_eq!(headers["via"], "1.1 tidegate");
    }
}

#[tokio::test]
async fn a_head_request_is_forwarded_as_head_and_its_response_has_no_body() {
    let chain = Chain::new(LIMITED);
    let response = chain.send(get("/a").method(Method::HEAD)).await;
    assert_eq!(
        (response.status, &*response.body),
        (StatusCode::CREATED, &b""[..])
    );
    assert_eq!(response.header("content-length"), Some("1"));
    assert_eq!(chain.received.lock()[0].0.method, Method::HEAD);
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_charged_separately() {
    let chain = Chain::new(&format!(
        "client.trusted_proxies = [\"192.0.2.0/24\"]\n{LIMITED}"
    ));
    let from = |address: &str| get("/").header("x-forwarded-for", address);
    for number in 1..=3 {
        chain
            .send(from("198.51.100.7"))
            .await
            .assert_created(number);
    }
    chain
        .send(from("198.51.100.7"))
        .await
        .assert_problem(429, "rate-limited");
    chain.send(from("198.51.100.8")).await.assert_created(4);
    // A peer that is not trusted cannot choose another client.
    for number in 5..=7 {
        let spoofed = chain.send_from("203.0.113.1", from(&format!("198.51.100.{number}")), "");
        spoofed.await.assert_created(number);
    }
    let spoofed = chain.send_from("203.0.113.1", from("198.51.100.9"), "");
    spoofed.await.assert_problem(429, "rate-limited");
}

#[tokio::test]
async fn upstream_receives_the_context_of_the_request() {
    let chain = Chain::new(&format!(
        "client.trusted_proxies = [\"192.0.2.0/24\"]\n{LIMITED}"
    ));
    let request = get("/a").header("x-forwarded-for", "198.51.100.7");
    let response = chain.send(request.header("x-request-id", "abc")).await;
    response.assert_created(1);
    assert_eq!(response.header("x-request-id"), Some("abc"));
    let received = &chain.received.lock()[0].0.headers;
    for (name, expected) in [
        ("host", "api.example"),
        ("x-forwarded-for", "198.51.100.7, 192.0.2.1"),
        ("x-forwarded-host", "api.example"),
        ("x-forwarded-proto", "http"),
        ("x-request-id", "abc"),
    ] {
        assert_eq!(received[name], expected, "{name}");
    }
}

#[tokio::test]
async fn an_invalid_request_id_is_replaced_for_client_and_upstream() {
    let chain = Chain::new(LIMITED);
    let response = chain
        .send(get("/").header("x-request-id", "two words"))
        .await;
    let id = response.header("x-request-id").unwrap();
    assert_ne!(id, "two words");
    assert_eq!(chain.received.lock()[0].0.headers["x-request-id"], id);
    let other = chain.send(get("/")).await;
    assert_ne!(other.header("x-request-id").unwrap(), id);
}
