//! How an execution can end without an answer, or with one that says "not done".

use tidegate::idempotency::RecordCounts;

use super::{is_execution, is_problem, is_replay_of, numbering_with, url};
use crate::harness::{Answer, Gateway, Plan, Upstream, full};
use crate::wire_raw;

/// Sends the request `k1` stands for.
pub(super) async fn ask(gateway: &Gateway) -> Answer {
    let asking = gateway.client().post("/pay").key("k1").body("amount=1");
    asking.send().await
}

/// An upstream that reads each request, sends `bytes` and closes the connection, or keeps it open if `stall` is
/// set.
pub(super) fn saying(bytes: &'static [u8], stall: bool) -> wire_raw::Upstream {
    wire_raw::Upstream::scripted(move |conversation| {
        if conversation.request().is_some() {
            conversation.send(bytes);
            if stall {
                conversation.until_closed();
            }
        }
    })
}

/// How often a request has reached `upstream`.
fn sent(upstream: &wire_raw::Upstream) -> usize {
    upstream.received().matches("POST /pay").count()
}

/// A gateway with a `first_byte_timeout` and an `idle_timeout` of 300 ms.
pub(super) fn impatient(rule: &str, upstream: &wire_raw::Upstream) -> Plan {
    let comma = if rule.is_empty() { "" } else { ", " };
    Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\nfirst_byte_timeout = \"300ms\"\n\
         idle_timeout = \"300ms\"\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
    ))
    .upstream_url(&url(upstream.address))
}

/// Invalid and incomplete responses: the bytes, whether the upstream then stalls, and the status that the client
/// receives.
pub(super) const LOST: [(&[u8], bool, u16); 8] = [
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
async fn a_request_whose_answer_is_lost_is_never_sent_again() {
    for (bytes, stall, status) in LOST {
        let upstream = saying(bytes, stall);
        let gateway = impatient("", &upstream).start();
        let first = ask(&gateway).await;
        let kind = match status {
            504 => "upstream-timeout",
            _ => "upstream-unavailable",
        };
        is_problem(&first, status, kind);
        assert_eq!(first.header("x-should-retry"), "false", "{first:?}");
        for _ in 0..2 {
            is_problem(&ask(&gateway).await, 409, "idempotency-outcome-unknown");
        }
        let shown = bytes.escape_ascii();
        assert_eq!(sent(&upstream), 1, "{shown}");
        let counts = gateway.counts();
        assert_eq!((counts.unknown, counts.completed), (1, 0), "{shown}");
    }
}

#[tokio::test]
async fn an_answer_that_stalls_half_way_is_lost() {
    let upstream = saying(
        b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf ",
        true,
    );
    let gateway = impatient("", &upstream).start();
    let first = ask(&gateway).await;
    assert!([502, 504].contains(&first.status), "{first:?}");
    assert!(!first.text().contains("half"), "{first:?}");
    is_problem(&ask(&gateway).await, 409, "idempotency-outcome-unknown");
    assert_eq!(sent(&upstream), 1);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn what_upstream_says_beyond_its_answer_is_nobodys() {
    let upstream = saying(
        b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\nexecution 1\
          HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nleft over",
        true,
    );
    let gateway = impatient("", &upstream).start();
    is_execution(&ask(&gateway).await, 1);
    is_replay_of(&ask(&gateway).await, 1);
    let other = gateway.client().post("/pay").key("k2").send().await;
    is_execution(&other, 1);
    assert_eq!(upstream.connections(), 2, "none is used again");
}

#[tokio::test]
async fn where_upstream_understands_keys_a_lost_answer_frees_its_key() {
    for (bytes, stall, status) in LOST {
        let upstream = saying(bytes, stall);
        let gateway = impatient("on_unknown = \"release\"", &upstream).start();
        for times in 1..=2 {
            let answer = ask(&gateway).await;
            assert_eq!(answer.status, status, "{}", bytes.escape_ascii());
            assert_eq!(sent(&upstream), times, "{}", bytes.escape_ascii());
        }
        // Upstream was told the key both times, and can do as it knows.
        let keys = upstream.received();
        assert_eq!(keys.matches("idempotency-key: k1").count(), 2, "{keys}");
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
}

#[tokio::test]
async fn what_provably_reached_nobody_leaves_its_key_free() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("an address");
    drop(socket);
    let gateway = Gateway::keyed("").upstream_url(&url(address)).start();
    for _ in 0..3 {
        is_problem(&ask(&gateway).await, 502, "upstream-unavailable");
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
}

#[tokio::test]
async fn a_key_that_was_free_again_is_carried_out_when_upstream_is_back() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("an address");
    drop(socket);
    let gateway = Gateway::keyed("").upstream_url(&url(address)).start();
    is_problem(&ask(&gateway).await, 502, "upstream-unavailable");
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.expect("the port that was free");
    let serving = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = [0; 4096];
        let read = stream.read(&mut head).await.expect("a request");
        assert!(head[..read].starts_with(b"POST /pay"));
        let answer = wire_raw::ok("execution 1");
        stream.write_all(answer.as_bytes()).await.expect("sent");
        stream
    });
    is_execution(&ask(&gateway).await, 1);
    is_replay_of(&ask(&gateway).await, 1);
    drop(serving.await.expect("an upstream"));
}

#[tokio::test]
async fn answers_that_say_not_done_are_not_kept() {
    for (status, retry_after, rule, kept) in [
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
                *reply.status_mut() = http::StatusCode::from_u16(status).expect("a status");
                if retry_after {
                    let value = http::HeaderValue::from_static("1");
                    reply.headers_mut().insert("retry-after", value);
                }
                reply
            }
        });
        let gateway = Gateway::keyed(rule).upstream(&upstream).start();
        let (first, second) = (ask(&gateway).await, ask(&gateway).await);
        assert_eq!((first.status, second.status), (status, status), "{rule}");
        is_execution(&first, 1);
        if kept {
            is_replay_of(&second, 1);
        } else {
            is_execution(&second, 2);
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
            let upstream = saying(bytes.into_bytes().leak(), stall);
            let gateway = impatient(rule, &upstream).start();
            for times in 1..=2 {
                let response = ask(&gateway).await;
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
async fn an_answer_that_was_released_makes_way_for_one_that_is_kept() {
    let upstream = Upstream::with(|received| async move {
        let authorised = received.has("x-code");
        let mut reply = full(if authorised { "paid" } else { "who are you?" });
        let status = if authorised { 201 } else { 401 };
        *reply.status_mut() = status.try_into().expect("a status");
        reply
    });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let asking = || gateway.client().post("/").key("k1");
    assert_eq!(asking().send().await.status, 401);
    let paid = asking().header("X-Code", "1").send().await;
    assert_eq!((paid.status, paid.is_replay()), (201, false));
    // Headers do not tell requests apart, so this is the same one.
    let replay = asking().send().await;
    assert_eq!((replay.status, replay.is_replay()), (201, true));
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn what_the_gateway_says_itself_is_never_kept() {
    let upstream = numbering_with(200);
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
    let ask = |target: &str, body: String| {
        let asking = gateway.client().post(target).key("k1");
        asking.body(body).send()
    };
    assert_eq!(ask("/nowhere", String::new()).await.status, 404);
    assert_eq!(ask("/pay", "x".repeat(2000)).await.status, 413);
    assert_eq!(ask("/pay/%00", String::new()).await.status, 400);
    assert_eq!(gateway.counts(), RecordCounts::default());
    is_execution(&ask("/pay", String::new()).await, 1);
}
