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
        get("/pay%2Fcard"),
        get("/pay%0"),
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
    let placeholder = Request::new(RequestBody::empty());
    let violation = Some(Violation::HeadTimeout);
    let rejected = chain.respond("192.0.2.1", placeholder, violation).await;
    rejected.assert_problem(408, "bad-request");
    assert_eq!(chain.shared.metrics[0].unrouted.by_status[308].get(), 1);
}

#[tokio::test]
async fn the_path_is_normalised_before_the_route_is_matched_and_forwarded() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    for (number, path) in ["/other/../pay", "//pay?a=/../b", "/%70a%79"]
        .iter()
        .enumerate()
    {
        chain.send(get(path)).await.assert_created(number + 1);
    }
    // All of them are charged to the limit of the route.
    let rejected = chain.send(get("/./pay")).await;
    rejected.assert_problem(429, "rate-limited");
    chain
        .send(get("/pay/../other"))
        .await
        .assert_problem(404, "no-route");
    let received = chain.received.lock();
    let forwarded: Vec<_> = received
        .iter()
        .map(|(head, _)| head.uri.to_string())
        .collect();
    assert_eq!(forwarded, ["/pay", "/pay?a=/../b", "/pay"]);
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
    let head = chain.send(get("/pay").method(Method::HEAD)).await;
    assert_eq!(head.status, StatusCode::NOT_FOUND);
    assert_eq!(chain.executions(), 1);
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
