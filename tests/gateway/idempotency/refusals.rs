//! Requests that are refused for their key: nothing is claimed for them and nothing sent.

use tidegate::idempotency::RecordCounts;

use super::{held, is_execution, is_problem, is_replay_of, numbering};
use crate::harness::{Client, Gateway, Upstream, eventually};
use crate::wire_raw;

/// Holds that nothing has come of anything so far.
#[track_caller]
fn nothing_happened(gateway: &Gateway, upstream: &Upstream) {
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn where_a_key_is_required_a_request_without_one_is_refused() {
    let upstream = numbering();
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [[route]]
        name = "all"
        path = "/"
        idempotency = { mode = "required", scope = "client", header = "X-Once" }
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    // Not even where another header has one.
    for asking in [client.post("/"), client.post("/").key("k1")] {
        let refused = asking.body("order").send().await;
        is_problem(&refused, 400, "idempotency-key-missing");
        assert!(refused.text().contains("x-once"), "{}", refused.text());
    }
    nothing_happened(&gateway, &upstream);
    let ask = || client.post("/").header("X-Once", "k1").send();
    is_execution(&ask().await, 1);
    is_replay_of(&ask().await, 1);
    // What is not a matter of keys needs none.
    is_execution(&client.get("/").send().await, 2);
}

#[tokio::test]
async fn what_is_no_key_is_refused() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let long = "k".repeat(256);
    let quoted = format!("\"{long}\"");
    for key in [
        &b""[..],
        b"\"\"",
        b"two words",
        b"a\tb",
        b"\"open",
        b"\"a\" \"b\"",
        b"\"a\", \"b\"",
        b"\"tab\there\"",
        "caf\u{e9}".as_bytes(),
        b"caf\xe9",
        b"\"caf\xe9\"",
        long.as_bytes(),
        quoted.as_bytes(),
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let asking = client.post("/").header_bytes("Idempotency-Key", key);
            let refused = asking.body("order").send().await;
            is_problem(&refused, 400, "idempotency-key-invalid");
        }
    }
    for (one, other) in [("k1", "k1"), ("k1", "k2"), ("k1", "")] {
        let asking = gateway.client().post("/").key(one).key(other);
        is_problem(&asking.send().await, 400, "idempotency-key-invalid");
    }
    nothing_happened(&gateway, &upstream);
    // The longest that is one, in both spellings.
    let long = "k".repeat(255);
    let ask = |key: &str| gateway.client().post("/").key(key).send();
    is_execution(&ask(&long).await, 1);
    is_replay_of(&ask(&format!("\"{long}\"")).await, 1);
}

#[test]
fn control_characters_in_a_key_are_never_repeated_in_an_answer() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for key in [
        &b"a\x01b"[..],
        b"a\x7fb",
        b"a\0b",
        b"a\rX-Injected: 1",
        b"\"a\x1bb\"",
        b"a\x0bb",
    ] {
        let mut client = wire_raw::Client::connect(gateway.address());
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: ";
        client.send([&head[..], key, b"\r\nContent-Length: 2\r\n\r\nhi"].concat());
        let (answer, _) = client.rest();
        let shown = answer.escape_ascii().to_string();
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{shown}");
        assert!(!shown.to_lowercase().contains("x-injected"), "{shown}");
        assert!(!wire_raw::contains(&answer, key), "{shown}");
    }
    nothing_happened(&gateway, &upstream);
}

#[tokio::test]
async fn a_key_stands_for_one_request_and_no_other_gets_its_answer() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let client = gateway.client();
    let first = || client.post("/pay?to=ann").key("k1").body("amount=1");
    let first = || first().header("Host", "api.example:8080");
    is_execution(&first().send().await, 1);
    let like = |method: &str, target: &str, host: &str, body: &'static str| {
        let asking = client.request(method, target).header("Host", host);
        asking.key("k1").body(body).send()
    };
    for (method, target, host, body) in [
        ("POST", "/pay?to=ann", "api.example", "amount=2"),
        ("POST", "/pay?to=ann", "api.example", ""),
        ("PATCH", "/pay?to=ann", "api.example", "amount=1"),
        ("POST", "/pays?to=ann", "api.example", "amount=1"),
        ("POST", "/pay?to=bob", "api.example", "amount=1"),
        ("POST", "/pay", "api.example", "amount=1"),
        ("POST", "/pay?", "other.example", "amount=1"),
        ("POST", "/pay?to=ann", "other.example", "amount=1"),
    ] {
        let refused = like(method, target, host, body).await;
        is_problem(&refused, 422, "idempotency-key-reused");
    }
    // The same in other words, and the original is untouched.
    for (target, host) in [
        ("/pay?to=ann", "API.Example"),
        ("/./pay?to=ann", "api.example:8080"),
        ("/p%61y?to=ann", "api.example:443"),
    ] {
        is_replay_of(&like("POST", target, host, "amount=1").await, 1);
    }
    is_replay_of(&first().send().await, 1);
    assert_eq!(upstream.count(), 1);
}

/// A path that had to be normalised lost its host with it, which HTTP/2 names nowhere else: the same
/// request was another one, and the same path of another host the same.
#[tokio::test]
async fn a_path_in_other_words_is_still_of_its_host_in_either_version_of_http() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = |client: Client, path: &str, host: &str| {
        client.post(path).header("Host", host).key("k1").send()
    };
    let (h1, h2) = (gateway.client(), gateway.client().h2());
    is_execution(&ask(h2.clone(), "/./pay", "api.example").await, 1);
    for path in ["/./pay", "/pay", "//p%61y", "/x/../pay"] {
        for client in [&h1, &h2] {
            is_replay_of(&ask(client.clone(), path, "api.example").await, 1);
            let other = ask(client.clone(), path, "other.example").await;
            is_problem(&other, 422, "idempotency-key-reused");
        }
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn another_request_under_a_key_that_is_running_does_not_wait_for_it() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = |body: &'static str| gateway.client().post("/").key("k1").body(body).send();
    let first = tokio::spawn(ask("amount=1"));
    eventually("the first is running", || upstream.count() == 1).await;
    let refused = ask("amount=2").await;
    is_problem(&refused, 422, "idempotency-key-reused");
    permits.add_permits(1);
    is_execution(&first.await.expect("an answer"), 1);
    is_replay_of(&ask("amount=1").await, 1);
}

#[tokio::test]
async fn a_body_too_large_to_be_told_from_others_is_refused() {
    let upstream = numbering();
    let gateway = Gateway::keyed("max_request = \"1KiB\"")
        .upstream(&upstream)
        .start();
    let large = "x".repeat(1025);
    for client in [gateway.client(), gateway.client().h2()] {
        let asking = client.post("/").key("k1").body(large.clone());
        let refused = asking.send().await;
        is_problem(&refused, 413, "payload-too-large");
        assert!(refused.text().contains("1024"), "{}", refused.text());
    }
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: k1\r\n\
         Transfer-Encoding: chunked\r\n\r\n201\r\n{0}\r\n200\r\n{1}\r\n0\r\n\r\n",
        "x".repeat(0x201),
        "x".repeat(0x200)
    );
    let refused = gateway.client().raw(chunked).await;
    assert!(refused.starts_with("HTTP/1.1 413 "), "{refused}");
    assert!(refused.contains("urn:tidegate:problem:payload-too-large"));
    nothing_happened(&gateway, &upstream);

    let ask = || gateway.client().post("/").key("k1").body("x".repeat(1024));
    is_execution(&ask().send().await, 1);
    is_replay_of(&ask().send().await, 1);
    // Without a key there is nothing to tell apart.
    is_execution(&gateway.client().post("/").body(large).send().await, 2);
}

#[tokio::test]
async fn a_body_that_cannot_be_read_claims_nothing() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: k1\r\n";
    let malformed = format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n\r\n");
    let refused = gateway.client().raw(malformed).await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    assert!(refused.contains("urn:tidegate:problem:bad-request"));
    nothing_happened(&gateway, &upstream);
    is_execution(&gateway.client().post("/").key("k1").send().await, 1);
}

#[tokio::test]
async fn a_request_with_a_key_cannot_switch_protocols() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n";
    let refused = gateway
        .client()
        .raw(format!("{head}Idempotency-Key: k1\r\n\r\n"))
        .await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    assert!(refused.contains("urn:tidegate:problem:bad-request"));
    nothing_happened(&gateway, &upstream);
    // Without a key, or with one on a method whose keys are not looked at, it is upstream's to say.
    for head in [
        format!("{head}\r\n"),
        format!("{}Idempotency-Key: k1\r\n\r\n", head.replace("POST", "GET")),
    ] {
        let answer = gateway.client().raw(head).await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    }
}

#[tokio::test]
async fn a_duplicate_may_be_told_to_come_back_while_the_first_runs() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("in_flight = \"conflict\"")
        .upstream(&upstream)
        .start();
    let ask = || gateway.client().post("/").key("k1").send();
    let first = tokio::spawn(ask());
    eventually("the first is running", || upstream.count() == 1).await;
    for _ in 0..3 {
        let refused = ask().await;
        is_problem(&refused, 409, "idempotency-in-flight");
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(refused.json()["retry_after"], 1);
    }
    permits.add_permits(1);
    is_execution(&first.await.expect("an answer"), 1);
    is_replay_of(&ask().await, 1);
    assert_eq!(upstream.count(), 1);
}
