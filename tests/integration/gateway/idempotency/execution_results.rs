//! Executions that end without a complete response. `pipeline::tests::recording` has the tables of complete responses.

use tidegate::idempotency::RecordCounts;

use super::{assert_execution, assert_problem, assert_replay_of, url};
use crate::support::raw_http::RawUpstream;
use crate::support::{ClientResponse, Gateway, GatewayBuilder};

/// Sends a POST request with the idempotency key `k1`.
async fn send(gateway: &Gateway) -> ClientResponse {
    let request = gateway.client().post("/pay").key("k1").body("amount=1");
    request.send().await
}

/// What a server does after it has sent a part of a response.
#[derive(Clone, Copy)]
enum End {
    Close,
    Reset,
    Stall,
}

/// Creates an upstream that reads one request on each connection and sends `bytes`.
fn sending(bytes: impl Into<Vec<u8>>, end: End) -> RawUpstream {
    let bytes = bytes.into();
    RawUpstream::scripted(move |connection| {
        if connection.request().is_some() {
            connection.send(&bytes);
            match end {
                End::Close => {}
                End::Reset => connection.reset_on_close(),
                End::Stall => connection.read_to_close(),
            }
        }
    })
}

/// Returns how many POST requests `upstream` has received.
fn sent(upstream: &RawUpstream) -> usize {
    upstream.received().matches("POST /pay").count()
}

/// Builds a gateway with a `first_byte_timeout` and an `idle_timeout` of 300 ms. `rule` contains additional members of
/// the route's `idempotency` table.
fn with_short_timeouts(rule: &str, upstream: &RawUpstream) -> GatewayBuilder {
    let comma = if rule.is_empty() { "" } else { ", " };
    Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\nfirst_byte_timeout = \"300ms\"\n\
         idle_timeout = \"300ms\"\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
    ))
    .upstream_url(&url(upstream.address))
}

/// Invalid and incomplete responses: the bytes that the upstream sends, what it does then, and the status that the
/// client gets.
const LOST_RESPONSES: [(&[u8], End, u16); 9] = [
    (b"", End::Close, 502),
    (b"", End::Reset, 502),
    (b"", End::Stall, 504),
    (b"not HTTP at all\r\n\r\n", End::Stall, 502),
    (b"HTTP/1.1 201 Created\r\nContent-", End::Close, 502),
    (
        b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf ",
        End::Close,
        502,
    ),
    (
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf \r\n",
        End::Close,
        502,
    ),
    (
        b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nwhole\r\n0\r\n\r\n",
        End::Stall,
        502,
    ),
    (
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nwhole\r\n0\r\n\r\n",
        End::Stall,
        502,
    ),
];

#[tokio::test]
async fn a_request_whose_response_is_lost_is_never_sent_again() {
    for (bytes, end, status) in LOST_RESPONSES {
        let upstream = sending(bytes, end);
        let gateway = with_short_timeouts("", &upstream).start();
        let first = send(&gateway).await;
        let kind = match status {
            504 => "upstream-timeout",
            _ => "upstream-unavailable",
        };
        assert_problem(&first, status, kind);
        let problem = first.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains("409 idempotency-outcome-unknown"),
            "{detail}"
        );
        let message = problem["error"]["message"].as_str().unwrap();
        assert!(message.ends_with(detail), "{problem}");
        let (second, third) = (send(&gateway).await, send(&gateway).await);
        for held in [&second, &third] {
            assert_problem(held, 409, "idempotency-outcome-unknown");
        }
        let shown = bytes.escape_ascii();
        for held in [&first, &second, &third] {
            assert_eq!(held.json()["outcome"], "unknown", "{shown}");
            assert_eq!(held.header("x-should-retry"), "false", "{shown}");
        }
        assert_eq!(sent(&upstream), 1, "{shown}");
        let counts = gateway.counts();
        assert_eq!((counts.unknown, counts.completed), (1, 0), "{shown}");
    }
}

#[tokio::test]
async fn bytes_after_a_response_are_discarded_with_their_connection() {
    let upstream = sending(
        b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\nexecution 1\
          HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nleft over",
        End::Stall,
    );
    let gateway = with_short_timeouts("", &upstream).start();
    assert_execution(&send(&gateway).await, 1);
    assert_replay_of(&send(&gateway).await, 1);
    let other = gateway.client().post("/pay").key("k2").send().await;
    assert_execution(&other, 1);
    assert_eq!(
        upstream.connections(),
        2,
        "the gateway reused a connection with bytes left over"
    );
}

/// Asserts that a response states no unknown outcome and gives no advice about a retry.
#[track_caller]
fn assert_no_outcome(response: &ClientResponse) {
    assert!(response.json().get("outcome").is_none(), "{response:?}");
    assert!(!response.text().contains("does not execute it again"));
    assert!(!response.has("x-should-retry"), "{response:?}");
}

#[tokio::test]
async fn with_on_unknown_release_a_lost_response_releases_the_key() {
    for (bytes, end, status) in LOST_RESPONSES {
        let upstream = sending(bytes, end);
        let gateway = with_short_timeouts("on_unknown = \"release\"", &upstream).start();
        for times in 1..=2 {
            let response = send(&gateway).await;
            assert_eq!(response.status, status, "{}", bytes.escape_ascii());
            assert_no_outcome(&response);
            assert_eq!(sent(&upstream), times, "{}", bytes.escape_ascii());
        }
        // Both requests have the same key, so upstream can recognise the second one as a duplicate.
        let received = upstream.received();
        let keys = received.matches("idempotency-key: k1").count();
        assert_eq!(keys, 2, "{received}");
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
}

#[tokio::test]
async fn a_truncated_response_whose_status_means_not_executed_releases_its_key() {
    for (head, rule) in [
        ("401 Unauthorized", ""),
        ("503 Busy\r\nRetry-After: 1", ""),
        ("500 Oops", "on_server_error = \"release\""),
    ] {
        for (end, status) in [(End::Close, 502), (End::Stall, 504)] {
            let bytes = format!("HTTP/1.1 {head}\r\nContent-Length: 10\r\n\r\nhalf ");
            let upstream = sending(bytes, end);
            let gateway = with_short_timeouts(rule, &upstream).start();
            for times in 1..=2 {
                let response = send(&gateway).await;
                assert_eq!(response.status, status, "{head}");
                assert!(response.text().contains("was not executed"), "{head}");
                assert_no_outcome(&response);
                assert_eq!(sent(&upstream), times, "{head}");
                assert_eq!(gateway.counts(), RecordCounts::default(), "{head}");
            }
        }
    }
}
