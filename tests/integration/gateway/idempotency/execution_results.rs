//! Tests of executions that end without a complete response, or with a response that means "not executed".

use tidegate::idempotency::RecordCounts;

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions_with, url};
use crate::support::raw_http;
use crate::support::{ClientResponse, Gateway, GatewayBuilder, RefusingPort, Upstream, full};

/// Sends a POST request with the idempotency key `k1`.
pub(super) async fn send(gateway: &Gateway) -> ClientResponse {
    let request = gateway.client().post("/pay").key("k1").body("amount=1");
    request.send().await
}

/// Creates an upstream that reads one request on each connection and sends `bytes`. If `stall` is set, it then keeps
/// the connection open. Otherwise it closes the connection.
pub(super) fn sending(bytes: &'static [u8], stall: bool) -> raw_http::RawUpstream {
    raw_http::RawUpstream::scripted(move |connection| {
        if connection.request().is_some() {
            connection.send(bytes);
            if stall {
                connection.read_to_close();
            }
        }
    })
}

/// Returns how many POST requests `upstream` has received.
fn sent(upstream: &raw_http::RawUpstream) -> usize {
    upstream.received().matches("POST /pay").count()
}

/// Builds a gateway with a `first_byte_timeout` and an `idle_timeout` of 300 ms. `rule` contains additional members of
/// the route's `idempotency` table.
pub(super) fn with_short_timeouts(rule: &str, upstream: &raw_http::RawUpstream) -> GatewayBuilder {
    let comma = if rule.is_empty() { "" } else { ", " };
    Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\nfirst_byte_timeout = \"300ms\"\n\
         idle_timeout = \"300ms\"\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
    ))
    .upstream_url(&url(upstream.address))
}

/// Invalid and incomplete responses. Each entry contains the bytes that the upstream sends, whether it then stalls, and
/// the status that the client gets.
pub(super) const LOST_RESPONSES: [(&[u8], bool, u16); 8] = [
    (b"", false, 502),
    (b"", true, 504),
    (b"not HTTP at all\r\n\r\n", true, 502),
    (b"HTTP/1.1 201 Created\r\nContent-", false, 502),
    (
        b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf ",
        false,
        502,
    ),
    (
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf \r\n",
        false,
        502,
    ),
    (
        b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nwhole\r\n0\r\n\r\n",
        true,
        502,
    ),
    (
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nwhole\r\n0\r\n\r\n",
        true,
        502,
    ),
];

#[tokio::test]
async fn a_request_whose_response_is_lost_is_never_sent_again() {
    for (bytes, stall, status) in LOST_RESPONSES {
        let upstream = sending(bytes, stall);
        let gateway = with_short_timeouts("", &upstream).start();
        let first = send(&gateway).await;
        let kind = match status {
            504 => "upstream-timeout",
            _ => "upstream-unavailable",
        };
        assert_problem(&first, status, kind);
        assert_eq!(first.header("x-should-retry"), "false", "{first:?}");
        for _ in 0..2 {
            assert_problem(&send(&gateway).await, 409, "idempotency-outcome-unknown");
        }
        let shown = bytes.escape_ascii();
        assert_eq!(sent(&upstream), 1, "{shown}");
        let counts = gateway.counts();
        assert_eq!((counts.unknown, counts.completed), (1, 0), "{shown}");
    }
}

#[tokio::test]
async fn a_response_that_stalls_becomes_unknown() {
    let upstream = sending(
        b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf ",
        true,
    );
    let gateway = with_short_timeouts("", &upstream).start();
    let first = send(&gateway).await;
    assert!([502, 504].contains(&first.status), "{first:?}");
    assert!(!first.text().contains("half"), "{first:?}");
    assert_problem(&send(&gateway).await, 409, "idempotency-outcome-unknown");
    assert_eq!(sent(&upstream), 1);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn bytes_after_a_response_are_discarded_with_their_connection() {
    let upstream = sending(
        b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\nexecution 1\
          HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nleft over",
        true,
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

#[tokio::test]
async fn with_on_unknown_release_a_lost_response_releases_the_key() {
    for (bytes, stall, status) in LOST_RESPONSES {
        let upstream = sending(bytes, stall);
        let gateway = with_short_timeouts("on_unknown = \"release\"", &upstream).start();
        for times in 1..=2 {
            let response = send(&gateway).await;
            assert_eq!(response.status, status, "{}", bytes.escape_ascii());
            assert_eq!(sent(&upstream), times, "{}", bytes.escape_ascii());
        }
        // Upstream received the same idempotency key in both requests, so it can recognise the second one as a
        // duplicate.
        let keys = upstream.received();
        assert_eq!(keys.matches("idempotency-key: k1").count(), 2, "{keys}");
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
}

#[tokio::test]
async fn a_request_that_was_provably_not_sent_releases_its_key() {
    let refusing = RefusingPort::new();
    let gateway = Gateway::keyed("").upstream_url(&refusing.url()).start();
    for _ in 0..3 {
        assert_problem(&send(&gateway).await, 502, "upstream-unavailable");
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
}

#[tokio::test]
async fn a_released_key_is_executed_once_upstream_is_reachable() {
    let socket =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a free port should be available");
    let address = socket
        .local_addr()
        .expect("the listen address should be known");
    drop(socket);
    let gateway = Gateway::keyed("").upstream_url(&url(address)).start();
    assert_problem(&send(&gateway).await, 502, "upstream-unavailable");
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.expect("the port should still be free");
    let serving = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener
            .accept()
            .await
            .expect("the connection should be established");
        let mut head = [0; 4096];
        let read = stream
            .read(&mut head)
            .await
            .expect("the upstream should receive a request");
        assert!(head[..read].starts_with(b"POST /pay"));
        let response = raw_http::ok("execution 1");
        stream
            .write_all(response.as_bytes())
            .await
            .expect("the response should be sent");
        stream
    });
    assert_execution(&send(&gateway).await, 1);
    assert_replay_of(&send(&gateway).await, 1);
    drop(serving.await.expect("the upstream task should not panic"));
}

#[tokio::test]
async fn responses_that_mean_not_executed_are_not_stored() {
    for (status, retry_after, rule, stored) in [
        (401, false, "", false),
        (403, false, "", false),
        (425, false, "", false),
        (429, false, "", false),
        (408, true, "", false),
        (503, true, "", false),
        (408, false, "", true),
        (503, false, "", true),
        (500, true, "", true),
        (409, false, "", true),
        (500, false, "on_server_error = \"release\"", false),
        (503, false, "on_server_error = \"release\"", false),
        (599, false, "on_server_error = \"release\"", false),
        (404, false, "on_server_error = \"release\"", true),
        (404, false, "release_on = [404]", false),
        (401, false, "release_on = [404]", true),
        (403, false, "release_on = [401, 425, 429]", true),
        (503, true, "release_on = [404]", true),
        (429, false, "release_on = []", true),
    ] {
        let executions = std::sync::atomic::AtomicUsize::new(0);
        let upstream = Upstream::with(move |_| {
            let number = executions.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
            async move {
                let mut reply = full(format!("execution {number}"));
                *reply.status_mut() =
                    http::StatusCode::from_u16(status).expect("the status code should be valid");
                if retry_after {
                    let value = http::HeaderValue::from_static("1");
                    reply.headers_mut().insert("retry-after", value);
                }
                reply
            }
        });
        let gateway = Gateway::keyed(rule).upstream(&upstream).start();
        let (first, second) = (send(&gateway).await, send(&gateway).await);
        assert_eq!((first.status, second.status), (status, status), "{rule}");
        assert_execution(&first, 1);
        if stored {
            assert_replay_of(&second, 1);
        } else {
            assert_execution(&second, 2);
        }
    }
}

#[tokio::test]
async fn a_truncated_response_whose_status_means_not_executed_releases_its_key() {
    for (head, rule) in [
        ("401 Unauthorized", ""),
        ("403 Forbidden", ""),
        ("425 Too Early", ""),
        ("429 Too Many Requests", ""),
        ("503 Busy\r\nRetry-After: 1", ""),
        ("500 Oops", "on_server_error = \"release\""),
        ("404 Not Found", "release_on = [404]"),
    ] {
        for (stall, status) in [(false, 502), (true, 504)] {
            let bytes = format!("HTTP/1.1 {head}\r\nContent-Length: 10\r\n\r\nhalf ");
            let upstream = sending(bytes.into_bytes().leak(), stall);
            let gateway = with_short_timeouts(rule, &upstream).start();
            for times in 1..=2 {
                let response = send(&gateway).await;
                assert_eq!(response.status, status, "{head}");
                let detail = response.json()["detail"].to_string();
                assert!(detail.contains("was not executed"), "{head}: {detail}");
                assert_eq!(sent(&upstream), times, "{head}");
                assert_eq!(gateway.counts(), RecordCounts::default(), "{head}");
            }
        }
    }
}

#[tokio::test]
async fn after_a_released_response_the_next_one_is_stored() {
    let upstream = Upstream::with(|received| async move {
        let authorised = received.has("x-code");
        let mut reply = full(if authorised { "paid" } else { "who are you?" });
        let status = if authorised { 201 } else { 401 };
        *reply.status_mut() = status.try_into().expect("the status code should be valid");
        reply
    });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let request = || gateway.client().post("/").key("k1");
    assert_eq!(request().send().await.status, 401);
    let paid = request().header("X-Code", "1").send().await;
    assert_eq!((paid.status, paid.is_replay()), (201, false));
    // The fingerprint of a request does not include `X-Code`. A request without this header is thus a duplicate of the
    // request that got 201.
    let replay = request().send().await;
    assert_eq!((replay.status, replay.is_replay()), (201, true));
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn responses_of_the_gateway_are_never_stored() {
    let upstream = numbered_executions_with(200);
    let gateway = Gateway::with(
        r#"
        [server]
        max_body = "1KiB"
        [upstream.api]
        servers = ["{upstream}"]
        [[route]]
        name = "all"
        path = "/pay"
        idempotency = { mode = "optional" }
        "#,
    )
    .upstream(&upstream)
    .start();
    let send = |target: &str, body: String| {
        let request = gateway.client().post(target).key("k1");
        request.body(body).send()
    };
    assert_eq!(send("/nowhere", String::new()).await.status, 404);
    assert_eq!(send("/pay", "x".repeat(2000)).await.status, 413);
    assert_eq!(send("/pay/%00", String::new()).await.status, 400);
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_execution(&send("/pay", String::new()).await, 1);
}
