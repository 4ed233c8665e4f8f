//! Tests of idempotency keys that the client sends in a member of a JSON body (`body_field`).

use bytes::Bytes;
use tidegate::idempotency::RecordCounts;

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions};
use crate::support::raw_http;
use crate::support::{Client, ClientRequest, Gateway, Upstream};

const FIELD: &str = "body_field = \"idempotency_key\"";

fn gateway(rule: &str, upstream: &Upstream) -> Gateway {
    Gateway::keyed(rule).upstream(upstream).start()
}

fn json(client: &Client, body: impl Into<Bytes>) -> ClientRequest {
    let request = client.post("/pay").body(body);
    request.header("content-type", "application/json")
}

/// Returns an HTTP/1.1 client and an HTTP/2 client of `gateway`.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [gateway.client(), gateway.client().h2()]
}

#[tokio::test]
async fn a_retry_with_the_same_member_is_replayed() {
    let upstream = numbered_executions();
    let gateway = gateway(FIELD, &upstream);
    let [http1, http2] = clients(&gateway);
    let first = "{\"amount\":1, \"idempotency_key\":\"k1\"}";
    assert_execution(&json(&http1, first).send().await, 1);
    assert_eq!(upstream.last().body, first);
    assert_replay_of(&json(&http1, first).send().await, 1);
    assert_replay_of(&json(&http2, first).send().await, 1);
    let media_type = "Application/JSON; charset=utf-8";
    let request = http2.post("/pay").body(first);
    assert_replay_of(&request.header("content-type", media_type).send().await, 1);

    let reused = "{\"amount\":2, \"idempotency_key\":\"k1\"}";
    let response = json(&http2, reused).send().await;
    assert_problem(&response, 422, "idempotency-key-reused");
    let other = "{\"amount\":1, \"idempotency_key\":\"k2\"}";
    assert_execution(&json(&http2, other).send().await, 2);
    assert_replay_of(&json(&http1, other).send().await, 2);
    assert_eq!(gateway.counts().completed, 2);
}

#[tokio::test]
async fn requests_in_the_format_of_square_and_google_are_executed_once() {
    for (field, path, body) in [
        (
            "idempotency_key",
            "/v2/payments",
            r#"{
              "idempotency_key": "7b0f3ec5-086a-4871-8f13-3c81b3875218",
              "source_id": "ccof:GaJGNaZa8x4OgDJn4GB",
              "amount_money": { "amount": 1000, "currency": "USD" },
              "autocomplete": true
            }"#,
        ),
        (
            "requestId",
            "/v1/projects/p/locations/l/jobs",
            r#"{"job":{"name":"n","labels":{"requestId":"x"}},"requestId":"a9c1c2a0-4a2e-4bf3-8c5e-0d6f8f4f6c11"}"#,
        ),
    ] {
        let upstream = numbered_executions();
        let gateway = gateway(&format!("body_field = \"{field}\""), &upstream);
        for (number, client) in clients(&gateway).iter().enumerate() {
            let request = client.post(path).body(body);
            let response = request.header("content-type", "application/json");
            let response = response.send().await;
            if number == 0 {
                assert_execution(&response, 1);
            } else {
                assert_replay_of(&response, 1);
            }
        }
        assert_eq!(upstream.last().body, body);
    }
}

#[tokio::test]
async fn header_and_member_are_the_same_key() {
    let upstream = numbered_executions();
    let gateway = gateway(FIELD, &upstream);
    let body = "{\"idempotency_key\":\"k 1\"}";
    for (number, client) in clients(&gateway).iter().enumerate() {
        let both = json(client, body).key("\"k 1\"").send().await;
        if number == 0 {
            assert_execution(&both, 1);
        } else {
            assert_replay_of(&both, 1);
        }
        assert_replay_of(&json(client, body).send().await, 1);
    }
    // A body without the key member is valid if the `Idempotency-Key` header contains the idempotency key.
    assert_execution(&json(&gateway.client(), "[1]").key("k2").send().await, 2);
    assert_replay_of(&json(&gateway.client(), "[1]").key("k2").send().await, 2);
}

#[tokio::test]
async fn a_body_without_a_valid_key_is_rejected_and_claims_nothing() {
    let upstream = numbered_executions();
    let gateway = gateway(FIELD, &upstream);
    let long = format!("{{\"idempotency_key\":\"{}\"}}", "k".repeat(256));
    for (body, reason) in [
        (
            &br#"{"idempotency_key":"k1","idempotency_key":"k1"}"#[..],
            "more than once",
        ),
        (
            br#"{"idempotency_key":"k1","\u0069dempotency\u005fkey":"k2"}"#,
            "more than once",
        ),
        (br#"{"idempotency_key":17}"#, "not a JSON string"),
        (br#"{"idempotency_key":null}"#, "not a JSON string"),
        (br#"{"idempotency_key":["k1"]}"#, "not a JSON string"),
        (br#"{"idempotency_key":""}"#, "empty"),
        (br#"{"idempotency_key":"a\tb"}"#, "ASCII"),
        (long.as_bytes(), "longer than 255"),
        (b"{\"idempotency_key\":\"k1\"", "not valid JSON"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "compressed"),
    ] {
        for client in clients(&gateway) {
            let rejected = json(&client, body.to_vec()).send().await;
            assert_problem(&rejected, 400, "idempotency-key-invalid");
            let detail = rejected.json()["detail"].to_string();
            assert!(detail.contains(reason), "{detail}");
            assert!(detail.contains("'idempotency_key'"), "{detail}");
        }
    }
    for client in clients(&gateway) {
        let request = json(&client, "{\"idempotency_key\":\"k1\"}").key("k2");
        let rejected = request.send().await;
        assert_problem(&rejected, 400, "idempotency-key-invalid");
        assert!(rejected.text().contains("differs"), "{rejected:?}");
    }
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn other_media_types_and_methods_are_not_searched() {
    let upstream = numbered_executions();
    let gateway = gateway(FIELD, &upstream);
    let body = "{\"idempotency_key\":\"k1\"}";
    for (number, media_type) in ["text/plain", "application/vnd.api+json", "text/json"]
        .iter()
        .enumerate()
    {
        let request = gateway.client().post("/pay").body(body);
        let response = request.header("content-type", media_type).send().await;
        assert_execution(&response, number + 1);
    }
    assert_execution(&gateway.client().post("/pay").body(body).send().await, 4);
    let put = gateway.client().request("PUT", "/pay").body(body);
    let put = put.header("content-type", "application/json");
    assert_execution(&put.send().await, 5);
    assert_eq!(gateway.counts(), RecordCounts::default());
}

#[tokio::test]
async fn a_body_without_the_member_is_forwarded_unchanged() {
    let upstream = Upstream::echo();
    let gateway = gateway(FIELD, &upstream);
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for body in ["", "{}", " [ 1, 2 ]\r\n", "\"text\"", "null", &deep] {
        for client in clients(&gateway) {
            let response = json(&client, body.to_owned()).send().await;
            assert_eq!(response.status, 200, "{response:?}");
            assert!(!response.is_replay());
            let received = upstream.last();
            assert_eq!(received.body, body);
            // The length check skips empty bodies: HTTP/2 clients send no `Content-Length` with them.
            let length = received.header("content-length");
            assert!(length == body.len().to_string() || body.is_empty());
            assert!(!received.has("transfer-encoding"));
        }
    }
    assert_eq!(gateway.counts(), RecordCounts::default());
}

/// The gateway reads the complete chunked body, because it searches the body for the key. It then forwards one body
/// with `Content-Length` and never forwards trailers.
#[test]
fn a_chunked_body_with_trailers_is_forwarded_with_its_length() {
    let upstream = Upstream::echo();
    let gateway = gateway(FIELD, &upstream);
    let mut client = raw_http::RawClient::connect(gateway.address());
    for _ in 0..2 {
        client.send(
            "POST /pay HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
             Trailer: X-Sum\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\nX-Sum: 1\r\n\r\n",
        );
        assert_eq!(client.response().status, 200);
        let received = upstream.last();
        assert_eq!(received.body, "{\"a\":1}");
        assert_eq!(received.header("content-length"), "7");
        assert!(!received.has("transfer-encoding") && !received.has("x-sum"));
    }
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let upstream = numbered_executions();
    let gateway = gateway(FIELD, &upstream);
    let mut client = raw_http::RawClient::connect(gateway.address());
    for (body, execution) in [
        ("{\"a\":1}", 1),
        ("{\"idempotency_key\":\"k1\"}", 2),
        ("{\"idempotency_key\":\"k1\"}", 2),
    ] {
        let length = body.len();
        client.send(format!(
            "POST /pay HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
             Content-Length: {length}\r\n\r\n"
        ));
        assert_eq!(client.response().status, 100);
        client.send(body);
        let response = client.response();
        assert_eq!(response.status, 201);
        assert_eq!(response.body, format!("execution {execution}").as_bytes());
    }
    assert!(!upstream.last().has("expect"));
}

#[tokio::test]
async fn a_json_body_over_max_request_is_rejected_with_413() {
    let upstream = numbered_executions();
    let gateway = gateway(&format!("max_request = \"1KiB\", {FIELD}"), &upstream);
    let pad = "x".repeat(1024);
    let large = format!("{{\"idempotency_key\":\"k1\",\"pad\":\"{pad}\"}}");
    for client in clients(&gateway) {
        let rejected = json(&client, large.clone()).send().await;
        assert_problem(&rejected, 413, "payload-too-large");
        let rejected = json(&client, large.clone()).key("k1").send().await;
        assert_problem(&rejected, 413, "payload-too-large");
    }
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    let rejected = gateway.client().send_raw(chunked).await;
    assert!(rejected.starts_with("HTTP/1.1 413 "), "{rejected}");
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_eq!(upstream.count(), 0);
    // `max_request` does not apply to other media types, because the gateway does not search their bodies for a key.
    let request = gateway.client().post("/pay").body(large);
    assert_execution(&request.send().await, 1);
}

#[tokio::test]
async fn a_required_key_can_be_in_either_source() {
    let upstream = numbered_executions();
    let rule = format!("{FIELD}, scope = \"client\"");
    let config = format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = {{ mode = \"required\", {rule} }}\n"
    );
    let gateway = Gateway::with(&config).admin().upstream(&upstream).start();
    for client in clients(&gateway) {
        for request in [
            client.post("/pay"),
            client.post("/pay").body("{\"idempotency_key\":\"k1\"}"),
            json(&client, ""),
            json(&client, "{\"Idempotency_key\":\"k1\"}"),
            json(&client, "[]"),
        ] {
            let rejected = request.send().await;
            assert_problem(&rejected, 400, "idempotency-key-missing");
            let detail = rejected.json()["detail"].to_string();
            for source in ["'idempotency-key'", "'idempotency_key'"] {
                assert!(detail.contains(source), "{detail}");
            }
        }
    }
    gateway.wait_for_outcome("invalid", 10).await;
    assert_eq!(upstream.count(), 0);
    let client = gateway.client();
    let body = "{\"idempotency_key\":\"k1\"}";
    assert_execution(&json(&client, body).send().await, 1);
    assert_replay_of(&json(&client, body).send().await, 1);
    assert_execution(&json(&client, "{}").key("k2").send().await, 2);
    assert_replay_of(&json(&client, "{}").key("k2").send().await, 2);
}

#[test]
fn an_upgrade_is_rejected_only_with_a_key() {
    let upstream = Upstream::echo();
    let gateway = gateway(FIELD, &upstream);
    for (body, status) in [("{\"idempotency_key\":\"k1\"}", 400), ("{\"a\":1}", 200)] {
        let mut client = raw_http::RawClient::connect(gateway.address());
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: chat\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(client.response().status, status, "{body}");
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(upstream.last().header("upgrade"), "chat");
    assert_eq!(upstream.last().body, "{\"a\":1}");
    assert_eq!(gateway.counts(), RecordCounts::default());
}
