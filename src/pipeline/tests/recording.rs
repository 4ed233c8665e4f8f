//! Tests of what the idempotency stage records of an execution: its response, nothing, or an unknown outcome; and of
//! the maximum number of records.

use super::*;

#[tokio::test]
async fn a_response_that_means_not_executed_is_given_to_waiting_duplicates_and_not_stored() {
    for (status, lines, rule, stored) in [
        (401, "", "", false),
        (503, "retry-after: 7", "", false),
        (503, "", "", true),
        (500, "retry-after: 7", "", true),
        (500, "", "on_server_error = \"release\"", false),
        (404, "", "release_on = [404]", false),
        (401, "", "release_on = [404]", true),
        (429, "", "release_on = []", true),
    ] {
        let gate = Arc::new(Notify::new());
        let opened = Arc::clone(&gate);
        let chain = Arc::new(Chain::with_upstream(&keyed(rule), move |number| {
            let opened = Arc::clone(&opened);
            async move {
                opened.notified().await;
                response(status, lines, &number.to_string())
            }
        }));
        let first = chain.start(post("a"), 1).await;
        let waiting = chain.start_waiting(post("a"), 1).await;
        gate.notify_one();
        for (sending, is_replay) in [(first, false), (waiting, stored)] {
            let response = sending.await.unwrap();
            assert_eq!(
                (response.status.as_u16(), &*response.body),
                (status, &b"1"[..])
            );
            assert_eq!(response.is_replay(), is_replay, "{status} {rule}");
            let retry_after = lines.strip_prefix("retry-after: ");
            assert_eq!(response.header("retry-after"), retry_after, "{status}");
        }
        assert_eq!(chain.records().await.completed, u64::from(stored), "{rule}");
        gate.notify_one();
        let last = chain.send(post("a")).await;
        assert_eq!(last.is_replay(), stored, "{status} {rule}");
        assert_eq!(chain.executions(), if stored { 1 } else { 2 }, "{rule}");
    }
}

#[tokio::test]
async fn after_a_released_response_the_next_one_is_stored() {
    let chain = Chain::with_statuses(&keyed(""), &[401, 201]);
    assert_eq!(chain.send(post("a")).await.status, 401);
    let code = chain.send(post("a").header("x-code", "1")).await;
    code.assert_created(2);
    assert!(!code.is_replay());
    // The fingerprint does not include the header.
    let replay = chain.send(post("a")).await;
    replay.assert_created(2);
    assert!(replay.is_replay());
}

#[tokio::test]
async fn a_response_of_up_to_max_response_bytes_is_stored() {
    for (length, is_stored) in [(0, true), (1023, true), (1024, true), (1025, false)] {
        let chain = Chain::with_upstream(&keyed("max_response = \"1KiB\""), move |_| async move {
            let status = if length == 0 { 204 } else { 200 };
            response(status, "location: /made/1", &"x".repeat(length))
        });
        let first = chain.send(post("a")).await;
        let second = chain.send(post("a")).await;
        assert_eq!((first.body.len(), first.is_replay()), (length, false));
        if is_stored {
            assert_eq!((second.body.len(), second.is_replay()), (length, true));
            assert_eq!(second.header("location"), Some("/made/1"));
        } else {
            second.assert_problem(409, "response-not-retained");
            assert_eq!(second.header("x-should-retry"), Some("false"));
        }
        assert_eq!(chain.executions(), 1);
        assert_eq!(chain.records().await.tombstones, u64::from(!is_stored));
    }
}

#[tokio::test]
async fn a_replay_has_neither_excluded_headers_nor_those_of_the_gateway() {
    let rule = "exclude_headers = [\"X-Secret\", \"x-other\"]";
    let settings = "respond.headers = { \"X-Served-By\" = \"edge\" }\n\
                    respond.cors.origins = [\"https://app.example\"]\n";
    let lines = "x-secret: 1 | x-kept: 2 | set-cookie: a=1";
    let chain = Chain::with_headers(&format!("{settings}{}", keyed(rule)), lines);
    let from = |origin: &str| post("a").header("origin", origin);
    let first = chain.send(from("https://app.example")).await;
    assert_eq!(first.header("x-secret"), Some("1"));
    for (origin, allowed) in [
        ("https://app.example", Some("https://app.example")),
        ("https://evil.example", None),
    ] {
        let replay = chain.send(from(origin)).await;
        assert!(replay.is_replay());
        assert_eq!(replay.header("access-control-allow-origin"), allowed);
        for (name, value) in [
            ("x-secret", None),
            ("x-kept", Some("2")),
            ("set-cookie", Some("a=1")),
            ("x-served-by", None),
        ] {
            assert_eq!(replay.header(name), value, "{name}");
        }
    }
    let rejected = chain.send(post("two words").header("origin", "https://app.example"));
    let rejected = rejected.await;
    for (name, value) in [
        ("access-control-allow-origin", "https://app.example"),
        ("vary", "Origin"),
        ("x-served-by", "edge"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(rejected.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn responses_of_the_gateway_are_never_stored() {
    let config = keyed("").replace("path = \"/\"", "path = \"/pay\"");
    let chain = Chain::new(&format!("server.max_body = \"1KiB\"\n{config}"));
    for (target, body, status) in [
        ("/nowhere", String::new(), 404),
        ("/pay", "x".repeat(2000), 413),
        ("/pay/%00", String::new(), 400),
    ] {
        let request = post("a").uri(target);
        let request = request.header("content-length", body.len());
        let rejected = chain.send_body(request, body).await;
        assert_eq!(rejected.status, status);
    }
    assert_eq!(chain.records().await, RecordCounts::default());
    chain.send(post("a")).await.assert_created(1);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_does_not_arrive_is_unknown_in_every_format() {
    for (accept, title) in [
        ("text/html", "<title>"),
        ("text/plain", "Upstream timed out"),
        ("application/json", "\"outcome\":\"unknown\""),
    ] {
        let hints = "respond.hints = [\"should-retry\", \"stripe\"]";
        let gate = Arc::new(Notify::new());
        let chain = Chain::gated(
            &format!("{hints}\n{}", keyed("wait_timeout = \"10m\"")),
            &gate,
        );
        let request = || post("a").header("accept", accept);
        let first = chain.start(request(), 1).await;
        let waiting = chain.start_waiting(request(), 1).await;
        let unkeyed = chain.send(get("/pay").method(Method::POST)).await;
        unkeyed.assert_problem(504, "upstream-timeout");
        assert!(unkeyed.problem().get("outcome").is_none());
        assert!(unkeyed.header("x-should-retry").is_none());
        let first = first.await.unwrap();
        assert_eq!(first.status, 504);
        let text = String::from_utf8(first.body.to_vec()).unwrap();
        for part in [
            title,
            "may have been executed",
            "does not execute it again",
            "409 idempotency-outcome-unknown",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let later = chain.send(request()).await;
        for held in [
            first.header("x-should-retry"),
            first.header("stripe-should-retry"),
        ] {
            assert_eq!(held, Some("false"));
        }
        for held in [waiting.await.unwrap(), later] {
            assert_eq!(held.status, 409);
            let text = String::from_utf8_lossy(&held.body);
            assert!(text.contains("Outcome unknown"), "{text}");
            assert_eq!(held.header("x-should-retry"), Some("false"));
        }
    }
}

#[tokio::test]
async fn a_scope_or_a_store_without_a_free_record_rejects_new_keys_only() {
    let scope = keyed("max_keys_per_scope = 2");
    let store = format!("store.max_keys = 2\n{}", keyed(""));
    for (config, wait, other_client) in [(scope, 24 * 3600, 201), (store, 3600, 503)] {
        let chain = Chain::new(&config);
        for (number, key) in ["a", "b"].into_iter().enumerate() {
            chain.send(post(key)).await.assert_created(number + 1);
        }
        let rejected = chain.send(post("c")).await;
        rejected.assert_problem(429, "idempotency-keys-exhausted");
        assert_eq!(rejected.header("retry-after"), Some(&*wait.to_string()));
        assert_eq!(rejected.header("x-should-retry"), Some("true"));
        let other = chain.send_from("192.0.2.2", post("c"), "").await;
        assert_eq!(other.status, other_client, "{other:?}");
        assert!(chain.send(post("a")).await.is_replay());
        let unkeyed = chain.send(get("/pay").method(Method::POST)).await;
        assert_eq!(unkeyed.status, 201);
    }
}

#[tokio::test]
async fn one_client_cannot_fill_the_store_for_others() {
    for has_invented_credentials in [false, true] {
        let chain = Chain::new(&format!("store.max_keys = 400\n{}", keyed("")));
        let request = |key: usize| {
            let request = post(&key.to_string());
            if has_invented_credentials {
                return request.header("authorization", format!("Bearer {key}"));
            }
            request
        };
        // More than 80 % of the keys are in use after the 321st, so the share of 40 keys applies.
        for key in 1..=321 {
            chain.send(request(key)).await.assert_created(key);
        }
        let rejected = chain.send(request(322)).await;
        rejected.assert_problem(429, "idempotency-keys-exhausted");
        let detail = rejected.problem()["detail"].to_string();
        assert!(
            detail.contains("client has 40 idempotency keys or more"),
            "{detail}"
        );
        // The oldest key can be forgotten after `min_ttl`.
        assert_eq!(rejected.header("retry-after"), Some("3600"));
        let keyed = &chain.shared.metrics[0].routes[0].keyed;
        let counted = (keyed.client_share_rejections.get(), keyed.exhausted.get());
        assert_eq!(counted, (1, 1));
        for (number, peer) in (322..).zip(["192.0.2.2", "192.0.2.3"]) {
            let other = chain.send_from(peer, post("322"), "").await;
            other.assert_created(number);
        }
        assert!(chain.send(request(1)).await.is_replay());
    }
}
