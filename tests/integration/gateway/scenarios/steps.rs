//! Tests of the steps of a scenario, over HTTP/1 and HTTP/2.

use std::time::{Duration, Instant};

use h2::Reason;

use super::super::http2::frames::{FrameClient, GOAWAY, HEADERS, RST_STREAM};
use super::scripted;
use crate::support::raw_http::{End, RawClient};
use crate::support::{Gateway, Upstream};

/// Sends `GET /` on a raw connection and reads until the connection ends.
fn read_to_end(gateway: &Gateway) -> (Vec<u8>, End) {
    let mut client = RawClient::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.read_to_end()
}

/// Returns the part of a response after its head.
fn body_of(response: &[u8]) -> &[u8] {
    let head = response.windows(4).position(|part| part == b"\r\n\r\n");
    &response[head.expect("a complete head") + 4..]
}

/// Sends `GET /` over HTTP/2. Returns the kinds of the frames with which the gateway ends the stream or the connection,
/// each with its error code.
async fn h2_end(gateway: &Gateway) -> Vec<(u8, Reason)> {
    let mut client = FrameClient::connect(gateway).await;
    client.get(1, "/").await;
    let mut ends = Vec::new();
    while let Some(frame) = client.next().await {
        let code = match frame.kind {
            RST_STREAM => &frame.payload[..4],
            GOAWAY => &frame.payload[4..8],
            HEADERS => panic!("the scenario sends no response"),
            _ => continue,
        };
        let code = u32::from_be_bytes(code.try_into().expect("four bytes"));
        ends.push((frame.kind, Reason::from(code)));
        if frame.kind == RST_STREAM {
            break;
        }
    }
    ends
}

#[tokio::test]
async fn requests_get_the_steps_in_order_and_then_pass() {
    let gateway = scripted(
        &[
            "429 retry-after=7",
            "503 times=2 header=\"X-A: b\" body=\"busy\"",
        ],
        "",
    )
    .start();
    for client in [gateway.client().from("127.0.0.2"), gateway.client().h2()] {
        let first = client.get("/").send().await;
        assert_eq!((first.status, first.retry_after()), (429, 7));
        assert_eq!(first.body.len(), 65_536);
        for _ in 0..2 {
            let second = client.get("/").send().await;
            assert_eq!((second.status, &*second.text()), (503, "busy"));
            assert_eq!(second.header("x-a"), "b");
        }
        let passed = client.get("/").send().await;
        assert_eq!((passed.status, &*passed.text()), (200, "{}"));
    }
}

#[tokio::test]
async fn a_lost_response_is_executed_once_and_resets_the_connection() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[scenario.s]\nsteps = [\"executed-then-lost\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nscenario = \"s\"\n",
    )
    .upstream(&upstream)
    .start();
    assert_eq!(read_to_end(&gateway), (Vec::new(), End::Reset));
    assert_eq!(upstream.count(), 1);
    assert_eq!(gateway.client().get("/").send().await.status, 201);
}

#[tokio::test]
async fn a_reset_comes_before_the_response_or_within_its_body() {
    let gateway = scripted(&["reset", "reset after=1KiB"], "").start();
    assert_eq!(read_to_end(&gateway), (Vec::new(), End::Reset));
    let (received, end) = read_to_end(&gateway);
    assert_eq!((body_of(&received).len(), end), (1_024, End::Reset));
    let gateway = scripted(&["reset"], "").start();
    let expected = [(RST_STREAM, Reason::INTERNAL_ERROR)];
    assert_eq!(h2_end(&gateway).await, expected);
}

#[tokio::test]
async fn a_truncated_response_ends_with_a_close_before_its_declared_length() {
    let gateway = scripted(&["truncate after=100"], "").start();
    let (received, end) = read_to_end(&gateway);
    assert_eq!((body_of(&received).len(), end), (100, End::Closed));
    assert!(String::from_utf8_lossy(&received).contains("content-length: 65536"));
}

#[tokio::test]
async fn a_stream_of_events_is_cut_without_the_end_of_its_chunks() {
    let step = "truncate after=12 header=\"Content-Type: text/event-stream\" body=\"data: one\\n\\ndata: two\\n\\n\"";
    let gateway = scripted(&[step], "").start();
    let (received, _) = read_to_end(&gateway);
    let text = String::from_utf8_lossy(&received).into_owned();
    assert!(text.contains("transfer-encoding: chunked"), "{text}");
    assert!(
        text.contains("data: one") && !text.contains("two"),
        "{text}"
    );
    assert!(!text.ends_with("0\r\n\r\n"), "{text}");
}

#[tokio::test]
async fn delays_stalls_and_rates_take_their_time() {
    let steps = ["delay 300ms + 200", "stall 300ms after=1KiB", "slow 256KiB"];
    let gateway = scripted(&steps, "").start();
    for step in steps {
        let start = Instant::now();
        let response = gateway.client().get("/").send().await;
        assert_eq!((response.status, response.body.len()), (200, 65_536));
        // The slow body has 64 KiB, which take 250 ms.
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(240), "{step}: {took:?}");
    }
}

#[tokio::test]
async fn a_refused_stream_and_goaway_are_reset_on_http_1() {
    let gateway = scripted(&["refused-stream", "goaway"], "").start();
    for _ in 0..2 {
        assert_eq!(read_to_end(&gateway), (Vec::new(), End::Reset));
    }
}

#[tokio::test]
async fn a_refused_stream_and_goaway_have_their_http_2_form() {
    let gateway = scripted(&["refused-stream", "goaway"], "").start();
    let refused = [(RST_STREAM, Reason::REFUSED_STREAM)];
    assert_eq!(h2_end(&gateway).await, refused);
    // The connection ends with GOAWAY, without a reset of the stream.
    assert_eq!(h2_end(&gateway).await, [(GOAWAY, Reason::NO_ERROR)]);
}

#[tokio::test]
async fn other_streams_of_the_connection_continue_after_a_refused_stream() {
    let gateway = scripted(&["refused-stream", "200 body=\"ok\""], "").start();
    let mut connection = gateway.client().h2().keep_alive().await;
    let error = connection.try_send(gateway.client().h2().get("/")).await;
    assert!(error.is_err());
    let response = connection.send(gateway.client().h2().get("/")).await;
    assert_eq!((response.status, &*response.text()), (200, "ok"));
}

#[tokio::test]
async fn the_test_of_a_request_is_in_its_path_or_in_a_header() {
    let gateway = scripted(&["503", "200"], "by = \"test\"").start();
    let client = gateway.client();
    for (request, status) in [
        (client.get("/t/one/x"), 503),
        (client.get("/x").header("X-Tidegate-Test", "two"), 503),
        (client.get("/x").header("X-Tidegate-Test", "one"), 200),
        (client.get("/t/two/x"), 200),
        (client.get("/x"), 503),
    ] {
        assert_eq!(request.send().await.status, status);
    }
}

#[tokio::test]
async fn a_quoted_key_counts_as_the_key_without_quotes() {
    let gateway = scripted(&["503", "200"], "by = \"key\"").start();
    for (key, status) in [("a", 503), ("b", 503), ("\"a\"", 200)] {
        let response = gateway.client().post("/").key(key).send().await;
        assert_eq!(response.status, status, "{key}");
    }
}

#[tokio::test]
async fn the_test_prefix_is_removed_only_for_a_scenario_that_counts_by_test() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n\
         [scenario.s]\nsteps = [\"pass\"]\nby = \"test\"\nat_end = \"repeat\"\n\
         [[route]]\nname = \"tested\"\npath = \"/v1/\"\nscenario = \"s\"\n\
         [[route]]\nname = \"rest\"\npath = \"/\"\n",
    )
    .upstream(&upstream)
    .start();
    let targets = [
        ("/t/a/v1/x?y=1", "/v1/x?y=1"),
        ("/t/a/v2/x", "/t/a/v2/x"),
        ("/t/a b/v1/x", "/t/a%20b/v1/x"),
        ("/t/", "/t/"),
    ];
    for (sent, received) in targets {
        let client = gateway.client();
        let sent = sent.replace(' ', "%20");
        assert_eq!(client.get(&sent).send().await.status, 200, "{sent}");
        assert_eq!(upstream.last().target, received);
    }
}

#[tokio::test]
async fn a_rate_limit_rejects_before_a_step_is_used() {
    let gateway = Gateway::with(
        "[limit.one]\nrate = \"1/h\"\nburst = 0\n[scenario.s]\nsteps = [\"503\", \"502\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nscenario = \"s\"\nlimits = [\"one\"]\n",
    )
    .start();
    let client = gateway.client();
    assert_eq!(client.get("/").send().await.status, 503);
    let rejected = client.get("/").send().await;
    assert_eq!(rejected.status, 429);
    assert!(rejected.has("retry-after"));
}

#[tokio::test]
async fn scripted_failures_do_not_count_against_the_circuit_breaker() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[upstream.api.breaker]\nconsecutive_failures = 2\n\
         [scenario.s]\nsteps = [\"503 times=5\", \"reset times=5\"]\n\
         [[route]]\nname = \"tested\"\npath = \"/tested\"\nscenario = \"s\"\n[[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(&upstream)
    .admin()
    .start();
    for _ in 0..10 {
        let _failed = gateway.client().get("/tested").try_send().await;
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    assert_eq!(gateway.circuit().await["state"], "closed");
}

#[tokio::test]
async fn a_large_body_of_a_passing_request_arrives_unchanged() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[scenario.s]\nsteps = [\"pass\"]\nat_end = \"repeat\"\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nscenario = \"s\"\nrequest_buffer = \"64KiB\"\n",
    )
    .upstream(&upstream)
    .start();
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|byte| byte.to_le_bytes()[1])
        .collect();
    for client in [gateway.client(), gateway.client().h2()] {
        let response = client.post("/").body(body.clone()).send().await;
        assert_eq!(response.status, 200);
        assert!(upstream.last().body == body, "the body changed");
    }
}

#[tokio::test]
async fn a_preflight_uses_no_step_and_its_test_prefix_is_removed() {
    let upstream = Upstream::replying(204);
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[scenario.s]\nsteps = [\"503\"]\nby = \"test\"\n\
         [[route]]\nname = \"all\"\npath = \"/v1\"\nmethods = \"POST\"\nscenario = \"s\"\n",
    )
    .upstream(&upstream)
    .start();
    let preflight = gateway.client().request("OPTIONS", "/t/a/v1");
    let preflight = preflight
        .header("Origin", "https://app.example")
        .header("Access-Control-Request-Method", "POST");
    assert_eq!(preflight.send().await.status, 204);
    assert_eq!(upstream.last().target, "/v1");
    assert_eq!(gateway.client().post("/t/a/v1").send().await.status, 503);
}
