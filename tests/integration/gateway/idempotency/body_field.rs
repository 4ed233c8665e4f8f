//! Tests of idempotency keys that the client sends in a member of a JSON body (`body_field`).

use tidegate::idempotency::RecordCounts;

use super::numbered_executions;
use crate::support::raw_http;
use crate::support::{Gateway, Upstream};

const FIELD: &str = "body_field = \"idempotency_key\"";

fn gateway(rule: &str, upstream: &Upstream) -> Gateway {
    Gateway::keyed(rule).upstream(upstream).start()
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
