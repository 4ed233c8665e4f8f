//! Tests of the idempotency stage in the chain: its position after the throttle stage, and the result of each state of
//! a key.

use http::Version;

use super::*;

#[tokio::test]
async fn the_throttle_stage_precedes_the_idempotency_stage() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    chain.send(post("a")).await.assert_created(1);
    // A replay takes a token.
    let replayed = chain.send(post("a")).await;
    assert!(replayed.is_replay());
    assert_eq!(replayed.header("ratelimit"), Some(r#""device";r=1;t=60"#));
    // A rejection by the idempotency stage takes a token, and has the `RateLimit` headers.
    let malformed = chain.send(post("two words")).await;
    malformed.assert_problem(400, "idempotency-key-invalid");
    assert_eq!(malformed.header("ratelimit"), Some(r#""device";r=0;t=60"#));
    // A request that the limit rejects gets no replay and claims no key.
    for key in ["a", "b"] {
        chain
            .send(post(key))
            .await
            .assert_problem(429, "rate-limited");
    }
    let records = chain.records().await;
    assert_eq!((records.completed, records.in_progress), (1, 0));
    assert_eq!(chain.executions(), 1);
    chain.advance(Duration::from_mins(1));
    chain.send(post("b")).await.assert_created(2);
}

#[tokio::test]
async fn a_replay_has_the_status_headers_and_body_of_the_first_response() {
    let chain = Chain::with_upstream(KEYED, |number| async move {
        let mut response = created(number);
        let headers = response.headers_mut();
        headers.append("set-cookie", "a=1".parse().unwrap());
        headers.append("set-cookie", "b=2".parse().unwrap());
        headers.insert("location", "/pay/1".parse().unwrap());
        response
    });
    let mut first = chain.send_body(post("a"), "order").await;
    first.assert_created(1);
    let mut replayed = chain.send_body(post("a"), "order").await;
    assert!(!first.is_replay() && replayed.is_replay());
    assert_eq!(
        (replayed.status, &replayed.body),
        (first.status, &first.body)
    );
    replayed.headers.remove("idempotent-replayed");
    let original = replayed.headers.remove("idempotent-original-request-id");
    let ids = [&mut first, &mut replayed].map(|response| response.headers.remove("x-request-id"));
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[0], original);
    assert_eq!(replayed.headers, first.headers);
    assert_eq!(first.headers.get_all("set-cookie").iter().count(), 2);
    assert_eq!(chain.executions(), 1);
}

#[tokio::test]
async fn a_replayed_5xx_is_not_to_be_retried() {
    let hints = "respond.hints = [\"ms\", \"should-retry\", \"stripe\"]";
    for (status, config, retries) in [
        (500, hints, [Some("false"), Some("false")]),
        (503, "", [Some("false"), Some("true")]),
        (500, "respond.hints = []", [Some("true"), Some("true")]),
        (404, hints, [Some("true"), Some("true")]),
    ] {
        let gate = Arc::new(Notify::new());
        let opened = Arc::clone(&gate);
        let upstream = move |number| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                let mut response = created(number);
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                for name in ["x-should-retry", "stripe-should-retry"] {
                    response.headers_mut().insert(name, "true".parse().unwrap());
                }
                let forged = "forged".parse().unwrap();
                (response.headers_mut()).insert("idempotent-original-request-id", forged);
                response
            }
        };
        let chain = Chain::with_upstream(&format!("{config}\n{KEYED}"), upstream);
        let chain = Arc::new(chain);
        let identified = || post("a").header("x-request-id", "first");
        let first = chain.start(identified(), 1).await;
        let waiting = tokio::spawn({
            let chain = Arc::clone(&chain);
            async move { chain.send(post("a")).await }
        });
        while chain.shared.metrics[0].routes[0].keyed.waits.get() == 0 {
            tokio::task::yield_now().await;
        }
        opened.notify_one();
        let hinted = |response: &Received| {
            let names = ["x-should-retry", "stripe-should-retry"];
            names.map(|name| response.header(name).map(str::to_owned))
        };
        let first = first.await.unwrap();
        assert_eq!(hinted(&first), [Some("true".into()), Some("true".into())]);
        for replay in [waiting.await.unwrap(), chain.send(post("a")).await] {
            assert!(replay.is_replay() && replay.status == status);
            assert_eq!(hinted(&replay), retries.map(|it| it.map(str::to_owned)));
            let original = replay.header("idempotent-original-request-id");
            assert_eq!(original, Some("first"));
        }
    }
}

#[tokio::test]
async fn a_duplicate_does_not_get_the_reset_of_an_http_2_execution() {
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let chain = Arc::new(Chain::with_upstream(KEYED, move |_| {
        let gate = Arc::clone(&opened);
        async move {
            gate.notified().await;
            let response = Response::builder().status(401);
            let response = response.header("www-authenticate", "Negotiate");
            response.body(Full::default()).unwrap()
        }
    }));
    let http_2 = post("a")
        .version(Version::HTTP_2)
        .body(RequestBody::empty())
        .unwrap();
    let executing = {
        let chain = Arc::clone(&chain);
        tokio::spawn(async move { chain.reply("192.0.2.1", http_2).await })
    };
    while chain.executions() < 1 {
        tokio::task::yield_now().await;
    }
    let waiting = chain.start(post("a"), 1).await;
    gate.notify_one();
    let reply = executing.await.unwrap();
    assert!(
        matches!(reply, Reply::Abort(Abort::RequireHttp1)),
        "{reply:?}"
    );
    waiting
        .await
        .unwrap()
        .assert_problem(409, "idempotency-in-flight");
}

#[tokio::test]
async fn upstream_receives_the_key_and_the_body_of_a_keyed_request() {
    let chain = Chain::new(KEYED);
    chain.send_body(post("a"), "order").await.assert_created(1);
    let (head, body) = &chain.received.lock()[0];
    assert_eq!(head.headers["idempotency-key"], "a");
    assert_eq!(body, "order");
}

#[tokio::test]
async fn a_different_request_with_the_same_key_gets_422_and_leaves_the_record() {
    let chain = Chain::new(&keyed("scope = \"client\""));
    let first = || post("a").uri("/pay?to=ann");
    let first = || chain.send_body(first(), "order");
    first().await.assert_created(1);
    for (method, uri, body) in [
        (Method::POST, "/pay?to=ann", "other"),
        (Method::POST, "/pay?to=ann", ""),
        (Method::PATCH, "/pay?to=ann", "order"),
        (Method::POST, "/pays?to=ann", "order"),
        (Method::POST, "/pay?to=bob", "order"),
        (Method::POST, "/pay", "order"),
        (Method::POST, "http://other.example/pay?to=ann", "order"),
        // A server can read these as `/pay`. They are forwarded as they are, so they are other requests.
        (Method::POST, "/./pay?to=ann", "order"),
        (Method::POST, "//pay?to=ann", "order"),
    ] {
        let mut request = Request::builder().method(method).uri(uri);
        if uri.starts_with('/') {
            request = request.header("host", "api.example");
        }
        let request = request.header("idempotency-key", "a");
        let rejected = chain.send_body(request, body).await;
        rejected.assert_problem(422, "idempotency-key-reused");
        assert_eq!(rejected.header("x-should-retry"), Some("false"));
    }
    assert!(first().await.is_replay());
    assert_eq!(chain.executions(), 1);
}

/// An HTTP/2 request has its host only in the target. The rewrite of a path once dropped this host, so that a request
/// to another host received the response of the first.
#[tokio::test]
async fn equivalent_spellings_of_a_target_are_one_request_in_both_http_versions() {
    let chain = Chain::new(&keyed("scope = \"client\""));
    let request = |version, target: &str, host: &str| {
        let request = Request::post(target).version(version);
        let request = request.header("idempotency-key", "a");
        if host.is_empty() {
            return request;
        }
        request.header("host", host)
    };
    for (number, (version, target, host)) in [
        (Version::HTTP_2, "http://api.example/%70ay?t%6f=ann", ""),
        (Version::HTTP_2, "http://API.example:80/pay?to=ann", ""),
        (Version::HTTP_2, "http://api.example/p%61y?to=ann", ""),
        (Version::HTTP_11, "/p%61y?to=ann", "api.example:8080"),
        (Version::HTTP_11, "/pay?to=ann", "API.Example"),
        (
            Version::HTTP_11,
            "http://api.example:80/pay?to=ann",
            "api.example",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let response = chain.send(request(version, target, host)).await;
        response.assert_created(1);
        assert_eq!(response.is_replay(), number > 0, "{target}");
    }
    for (version, target, host) in [
        (Version::HTTP_2, "http://other.example/%70ay?t%6f=ann", ""),
        (Version::HTTP_11, "/pay?to=ann", "other.example"),
    ] {
        let rejected = chain.send(request(version, target, host)).await;
        rejected.assert_problem(422, "idempotency-key-reused");
    }
}

#[tokio::test]
async fn methods_and_mode_of_the_rule_select_the_requests_whose_keys_count() {
    for (rule, counted) in [
        (
            "methods = [\"PUT\", \"DELETE\"]",
            &[Method::PUT, Method::DELETE][..],
        ),
        ("", &[Method::POST, Method::PATCH]),
    ] {
        let chain = Chain::new(&keyed(rule));
        for method in [
            "POST", "PATCH", "PUT", "DELETE", "GET", "HEAD", "OPTIONS", "POSTS",
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let send = || chain.send(post(method.as_str()).method(method.clone()));
            let is_counted = counted.contains(&method);
            for is_replay in [false, is_counted] {
                assert_eq!(send().await.is_replay(), is_replay, "{method}");
            }
            let invalid = chain.send(post("two words").method(method)).await;
            assert_eq!(invalid.status, if is_counted { 400 } else { 201 });
        }
    }
    let off =
        Chain::new("[[route]]\nname = \"all\"\npath = \"/\"\nidempotency = { mode = \"off\" }\n");
    for (number, key) in (1..).zip(["a", "a", "\"a\"", "not a key"]) {
        let request = post(key).header("idempotency-key", "b");
        off.send(request).await.assert_created(number);
        let received = off.received.lock();
        let keys = received[number - 1].0.headers.get_all("idempotency-key");
        assert_eq!(keys.iter().collect::<Vec<_>>(), [key, "b"]);
    }
}

#[tokio::test]
async fn a_required_key_can_have_its_own_header_and_routes_share_the_keys_of_a_caller() {
    let chain = Chain::new(
        r#"
        [[route]]
        name = "pay"
        path = "/pay"
        idempotency = { mode = "required", scope = "client", header = "X-Once" }
        [[route]]
        name = "rest"
        path = "/"
        idempotency = { scope = "client" }
        "#,
    );
    // This route ignores the usual header, and one with underscores is another header.
    for name in ["idempotency-key", "x_once"] {
        let request = get("/pay").method(Method::POST).header(name, "a");
        let rejected = chain.send(request).await;
        rejected.assert_problem(400, "idempotency-key-missing");
        let detail = rejected.problem()["detail"].to_string();
        assert!(detail.contains("x-once"), "{detail}");
    }
    let pay = || get("/pay").method(Method::POST).header("x-once", "a");
    chain.send(pay()).await.assert_created(1);
    assert!(chain.send(pay()).await.is_replay());
    chain.send(get("/pay")).await.assert_created(2);
    let reused = chain.send(post("a").uri("/refund")).await;
    reused.assert_problem(422, "idempotency-key-reused");
}

#[tokio::test]
async fn a_duplicate_in_flight_gets_409_with_in_flight_conflict() {
    let gate = Arc::new(Notify::new());
    let chain = Chain::gated(&KEYED.replace(" }", ", in_flight = \"conflict\" }"), &gate);
    let first = chain.start(post("a"), 1).await;
    let conflict = chain.send(post("a")).await;
    conflict.assert_problem(409, "idempotency-in-flight");
    assert_eq!(
        conflict.problem()["retry_after"].to_string(),
        conflict.header("retry-after").unwrap()
    );
    gate.notify_one();
    first.await.unwrap().assert_created(1);
    assert!(chain.send(post("a")).await.is_replay());
}

#[tokio::test]
async fn a_duplicate_in_flight_waits_for_the_response_of_the_first_request() {
    let gate = Arc::new(Notify::new());
    let chain = Chain::gated(KEYED, &gate);
    let first = chain.start(post("a"), 1).await;
    let duplicate = chain.start(post("a"), 1).await;
    tokio::task::yield_now().await;
    assert!(!first.is_finished() && !duplicate.is_finished());
    gate.notify_one();
    first.await.unwrap().assert_created(1);
    let duplicate = duplicate.await.unwrap();
    duplicate.assert_created(1);
    assert!(duplicate.is_replay());
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_in_flight_gets_409_after_wait_timeout() {
    let gate = Arc::new(Notify::new());
    let chain = Chain::gated(KEYED, &gate);
    let first = chain.start(post("a"), 1).await;
    let start = tokio::time::Instant::now();
    chain
        .send(post("a"))
        .await
        .assert_problem(409, "idempotency-in-flight");
    assert_eq!(start.elapsed().as_secs(), 10);
    gate.notify_one();
    first.await.unwrap().assert_created(1);
}

#[tokio::test]
async fn a_key_expires_ttl_after_its_completion() {
    let chain = Chain::new(KEYED);
    chain.send(post("a")).await.assert_created(1);
    chain.advance(Duration::from_hours(24) - Duration::from_millis(1));
    assert!(chain.send(post("a")).await.is_replay());
    chain.advance(Duration::from_millis(1));
    let executed = chain.send(post("a")).await;
    executed.assert_created(2);
    assert!(!executed.is_replay());
}

#[tokio::test]
async fn a_client_that_disconnects_is_counted_with_499_and_its_execution_continues() {
    let gate = Arc::new(Notify::new());
    let chain = Chain::gated(LIMITED_AND_KEYED, &gate);
    let sending = chain.start(post("a"), 1).await;
    sending.abort();
    assert!(sending.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(chain.count(499), 1);
    gate.notify_one();
    while chain.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(chain.send(post("a")).await.is_replay());
    assert_eq!((chain.executions(), chain.count(201)), (1, 1));
}

#[tokio::test]
async fn executions_are_bounded_also_after_their_clients_disconnect() {
    let gate = Arc::new(Notify::new());
    let chain = Chain::gated(&format!("server.max_connections = 2\n{KEYED}"), &gate);
    for (key, expected) in [("a", 1), ("b", 2)] {
        chain.start(post(key), expected).await.abort();
    }
    let rejected = chain.send(post("c")).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(rejected.header("retry-after").is_some());
    // The rejected request has released its idempotency key. So its retry is executed after the other requests end.
    for _ in 0..2 {
        gate.notify_one();
        let before = chain.in_flight();
        while chain.in_flight() == before {
            tokio::task::yield_now().await;
        }
    }
    gate.notify_one();
    chain.send(post("c")).await.assert_created(3);
}

/// The client of the first request disconnects while the store grants the claim, when duplicates already wait for it.
#[tokio::test]
async fn a_client_that_disconnects_before_its_request_is_sent_does_not_fail_its_duplicates() {
    let directory = tempfile::tempdir().unwrap();
    let disk = format!(
        "store.backend = \"disk\"\nstore.path = {directory:?}",
        directory = directory.path()
    );
    for store in ["", &disk] {
        let chain = Arc::new(Chain::new(&format!("{store}\n{KEYED}")));
        let mut first = Box::pin(chain.send(post("a")));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        let duplicates: Vec<_> = (0..20)
            .map(|_| {
                let chain = Arc::clone(&chain);
                tokio::spawn(async move { chain.send(post("a")).await })
            })
            .collect();
        let keyed = &chain.shared.metrics[0].routes[0].keyed;
        while keyed.waits.get() < 20 {
            tokio::task::yield_now().await;
        }
        drop(first);
        for response in duplicates {
            let response = response.await.unwrap();
            assert!(response.is_replay(), "{response:?}");
        }
        assert_eq!((chain.executions(), keyed.conflicts.get()), (1, 0));
    }
}
