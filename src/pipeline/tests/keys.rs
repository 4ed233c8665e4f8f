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
    let chain = Chain::new(KEYED);
    chain.send_body(post("a"), "order").await.assert_created(1);
    let patch = post("a").method(Method::PATCH);
    let query = post("a").uri("/pay?x");
    for (request, body) in [
        (post("a"), "other"),
        (post("a"), ""),
        (patch, "order"),
        (query, "order"),
    ] {
        let rejected = chain.send_body(request, body).await;
        rejected.assert_problem(422, "idempotency-key-reused");
        assert_eq!(rejected.header("x-should-retry"), Some("false"));
    }
    assert!(chain.send_body(post("a"), "order").await.is_replay());
    assert_eq!(chain.executions(), 1);
}

#[tokio::test]
async fn keys_of_different_clients_are_separate() {
    let chain = Chain::new(KEYED);
    chain.send(post("a")).await.assert_created(1);
    let other = chain.send_from("192.0.2.2", post("a"), "").await;
    other.assert_created(2);
    assert!(!other.is_replay());
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
async fn a_server_error_is_replayed_and_a_503_with_retry_after_releases_the_key() {
    let chain = Chain::with_upstream(KEYED, |number| async move {
        let mut response = created(number);
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        if number == 1 {
            response.headers_mut().insert("retry-after", 1.into());
        }
        response
    });
    for (body, is_replay) in [("1", false), ("2", false), ("2", true)] {
        let response = chain.send(post("a")).await;
        assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (&*response.body, response.is_replay()),
            (body.as_bytes(), is_replay)
        );
    }
}

#[tokio::test]
async fn a_key_has_no_effect_on_other_methods_and_routes() {
    let chain = Chain::new(&format!(
        "{KEYED}[[route]]\nname = \"other\"\npath = \"/\"\n"
    ));
    let put = || post("a").method(Method::PUT);
    let other_route = || post("a").uri("/other");
    for (number, request) in [put(), put(), other_route(), other_route()]
        .into_iter()
        .enumerate()
    {
        let response = chain.send(request).await;
        response.assert_created(number + 1);
        assert!(!response.is_replay());
    }
    assert_eq!(chain.records().await.completed, 0);
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
