//! Tests of the access log: the fields of its lines, escaping, and how truncated responses are logged and counted.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::gateway::circuit_breaker::endless;
use crate::support::raw_http;
use crate::support::{Process, TEST_TIMEOUT, Upstream, eventually, full};

/// Gateway process whose access log the tests read.
struct LoggingGateway {
    process: Process,
}

impl LoggingGateway {
    /// Starts a gateway that forwards to the URL `upstream`. `format` is the log format, `json` or `text`. `lines` are
    /// additional lines of the configuration file.
    fn start(upstream: &str, format: &str, lines: &str) -> Self {
        let gateway = Process::serving(&format!(
            "server = {{ listen = \"127.0.0.1:0\", workers = 1 }}\nadmin = {{ listen = \"127.0.0.1:0\" }}\n\
             upstream.api.servers = [\"{upstream}\"]\n{lines}"
        ));
        Self {
            process: gateway.args(&["--log-format", format]).start(),
        }
    }

    /// Waits until the access log has at least `count` lines whose request path is `path`, and returns these lines.
    async fn lines(&self, path: &str, count: usize) -> Vec<Value> {
        let found = || -> Vec<Value> {
            let lines = self.process.lines().into_iter();
            let events = lines.filter_map(|line| serde_json::from_str(&line).ok());
            events
                .filter(|event: &Value| {
                    event["target"] == "tidegate::access" && event["path"] == path
                })
                .collect()
        };
        eventually("the access log contains the expected lines", async || {
            found().len() >= count
        })
        .await;
        found()
    }

    async fn line(&self, path: &str) -> Value {
        self.lines(path, 1).await.remove(0)
    }

    async fn truncated(&self) -> u64 {
        self.process.metric("responses_truncated_total").await
    }
}

/// Starts an upstream server that sends `bytes` as its response to a request and then closes the connection.
fn sending_and_closing(bytes: &'static str) -> raw_http::RawUpstream {
    raw_http::RawUpstream::scripted(move |connection| {
        if connection.request().is_some() {
            connection.send(bytes);
        }
    })
}

const ROUTES: &str = r#"
    limit.device = { rate = "1/h", burst = 1 }
    limit.tenant = { key = ["client", "header:x-tenant"], rate = "1000/s", mode = "shadow" }
    limit.all = { key = "global", rate = "1000/s" }
    [[route]]
    name = "limited"
    path = "/limited"
    limits = ["device", "tenant", "all"]
    [[route]]
    name = "keyed"
    path = "/keyed"
    idempotency = { mode = "optional" }
    [[route]]
    name = "rest"
    path = "/"
    methods = ["GET", "POST"]
    "#;

#[tokio::test]
async fn a_reused_connection_that_closed_has_its_own_reason() {
    let upstream = raw_http::RawUpstream::scripted(|connection| {
        connection.request();
        connection.send(raw_http::ok("first"));
        connection.request();
    });
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let client = gateway.process.client();
    assert_eq!(client.get("/first").send().await.status, 200);
    assert_eq!(client.post("/second").send().await.status, 502);
    let line = gateway.line("/second").await;
    assert_eq!(line["reason"], "reused-connection-closed", "{line}");
}

fn assert_absent(line: &Value, fields: &[&str]) {
    for field in fields {
        assert!(
            line.get(field).is_none(),
            "the access log line has the field {field}: {line}"
        );
    }
}

#[tokio::test]
async fn a_trace_id_is_logged_and_in_problem_documents_and_traceparent_is_forwarded() {
    let upstream = Upstream::replying(200);
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let client = gateway.process.client();
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparent = format!("00-{id}-00f067aa0ba902b7-01");
    for _ in 0..3 {
        let request = client.get("/limited").header("traceparent", &traceparent);
        let response = request.header("tracestate", "vendor=1").send().await;
        if response.status == 429 {
            assert_eq!(response.json()["trace_id"], id);
        }
    }
    assert_eq!(upstream.last().header("traceparent"), traceparent);
    assert_eq!(upstream.last().header("tracestate"), "vendor=1");
    for line in gateway.lines("/limited", 3).await {
        assert_eq!(line["trace_id"], id, "{line}");
    }
    // The gateway creates none, and ignores an invalid one.
    client.get("/untraced").send().await;
    assert!(!upstream.last().has("traceparent"));
    let rejected = client.get("/limited").header("traceparent", "junk");
    assert!(rejected.send().await.json().get("trace_id").is_none());
    assert_absent(&gateway.line("/untraced").await, &["trace_id"]);
}

#[tokio::test]
async fn a_limit_in_shadow_mode_that_would_reject_is_named() {
    let upstream = Upstream::replying(200);
    let trial = "limit.trial = { key = \"header:x-tenant\", rate = \"1/h\", mode = \"shadow\", log_key = true }\n\
                 [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"trial\"]";
    let gateway = LoggingGateway::start(&upstream.url(), "json", trial);
    let client = gateway.process.client();
    for _ in 0..2 {
        client.get("/").header("x-tenant", "a,b=\"c\"").send().await;
    }
    let lines = gateway.lines("/", 2).await;
    assert_absent(&lines[0], &["shadow"]);
    assert_eq!(lines[1]["shadow"], "trial");
    assert_eq!(lines[1]["limits"], "trial=a\\u{2c}b=\"c\"");
}

#[tokio::test]
async fn a_proxied_request_has_all_fields() {
    let upstream = Upstream::with(|_| async { full("hello") });
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    for (client, protocol) in [
        (gateway.process.client(), "HTTP/1.1"),
        (gateway.process.client().h2(), "HTTP/2.0"),
    ] {
        let path = format!("/{protocol}");
        let sent = client
            .post(&path)
            .header("X-Request-Id", protocol_id(protocol));
        let response = sent.body("1234567").send().await;
        assert_eq!(response.status, 200);
        let line = gateway.line(&path).await;
        for (field, value) in [
            ("peer", "127.0.0.1"),
            ("client", "127.0.0.1"),
            ("method", "POST"),
            ("protocol", protocol),
            ("route", "rest"),
            ("server", &upstream.address().to_string()),
            ("request_id", protocol_id(protocol)),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert_eq!(line["host"], gateway.process.address().to_string());
        for (field, value) in [
            ("status", 200),
            ("bytes_in", 7),
            ("bytes_out", 5),
            ("attempts", 1),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert!(
            line["duration_us"]
                .as_u64()
                .is_some_and(|micros| micros > 0),
            "unexpected line of the access log: {line}"
        );
        let time = line["time"].as_str().expect("the field is a time");
        // The time has microseconds, for example 2026-11-17T05:42:08.123456Z.
        assert_eq!(
            (time.len(), &time[10..11], &time[19..20]),
            (27, "T", "."),
            "{time}"
        );
        assert!(
            time <= line["timestamp"].as_str().expect("the field is a time"),
            "unexpected line of the access log: {line}"
        );
        assert_absent(
            &line,
            &[
                "limits",
                "limit",
                "wait_ms",
                "idempotency",
                "reason",
                "truncated",
            ],
        );
    }
}

fn protocol_id(protocol: &str) -> &'static str {
    if protocol == "HTTP/1.1" { "one" } else { "two" }
}

#[tokio::test]
async fn a_rejection_names_the_limit_the_wait_and_the_keys() {
    let upstream = Upstream::echo();
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let client = gateway.process.client();
    let mut hashes = Vec::new();
    for (number, (tenant, status)) in [("a", 200), ("b", 200), ("a", 429)].into_iter().enumerate() {
        let path = format!("/limited/{number}");
        let response = client.get(&path).header("x-tenant", tenant).send().await;
        assert_eq!(response.status, status);
        let line = gateway.line(&path).await;
        let limits = line["limits"]
            .as_str()
            .expect("the line has the field `limits`");
        let rest = limits.strip_prefix("device=127.0.0.1,all=global,tenant=");
        let hash = rest
            .unwrap_or_else(|| panic!("unexpected field `limits`: {limits}"))
            .to_owned();
        assert!(hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()));
        hashes.push(hash);
        if status == 200 {
            assert_absent(&line, &["limit", "wait_ms", "reason"]);
            continue;
        }
        assert_eq!(line["limit"], "device");
        assert_eq!(line["reason"], "rate-limited");
        let wait = line["wait_ms"]
            .as_u64()
            .expect("the line has the field `wait_ms`");
        assert!((3_500_000..=3_600_000).contains(&wait), "wait_ms is {wait}");
        assert!(
            wait <= response.retry_after() * 1_000,
            "wait_ms is {wait}, more than Retry-After"
        );
        assert_absent(&line, &["attempts", "server"]);
    }
    assert_eq!(hashes[0], hashes[2]);
    assert_ne!(hashes[0], hashes[1]);
}

#[tokio::test]
async fn the_path_is_logged_as_it_is_forwarded() {
    let upstream = Upstream::echo();
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let client = gateway.process.client();
    for (requested, forwarded) in [
        ("/%61/{b}/%2f", "/a/%7Bb%7D/%2F"),
        ("/c/../d//", "/c/../d//"),
    ] {
        let response = client.get(requested).send().await;
        assert_eq!(response.json()["target"], forwarded);
        assert_eq!(gateway.line(forwarded).await["route"], "rest");
    }
}

#[tokio::test]
async fn responses_of_the_gateway_have_a_reason() {
    let upstream = sending_and_closing("");
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let client = gateway.process.client();
    for (method, path, status, reason) in [
        ("GET", "/%00", 400, "bad-request"),
        ("DELETE", "/absent", 405, "method-not-allowed"),
        ("GET", "/x/../limited", 400, "bad-request"),
        ("GET", "/unavailable", 502, "upstream-unavailable"),
    ] {
        let response = client.request(method, path).send().await;
        assert_eq!(response.status, status, "{path}");
        let line = gateway.line(path).await;
        assert_eq!(
            (&line["status"], &line["reason"]),
            (&status.into(), &reason.into())
        );
    }
    let traced = client.clone().h2().request("TRACE", "/traced").send().await;
    assert_eq!(traced.status, 405);
    let line = gateway.line("/traced").await;
    assert_eq!(
        line["host"],
        gateway.process.address().to_string(),
        "{line}"
    );
    assert_eq!(line["protocol"], "HTTP/2.0", "{line}");
    let response = client
        .post("/keyed/invalid")
        .key(&"k".repeat(256))
        .send()
        .await;
    assert_eq!(response.status, 400);
    let line = gateway.line("/keyed/invalid").await;
    assert_eq!(line["reason"], "idempotency-key-invalid");
}

#[tokio::test]
async fn a_malformed_request_is_logged_without_method_host_and_path() {
    let upstream = Upstream::echo();
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let mut socket = gateway.process.client().connect().await.unwrap();
    socket.write_all(b"BAD\r\n\r\n").await.unwrap();
    let line = gateway.process.wait_for_line("\"reason\":\"bad-request\"");
    let line: Value = serde_json::from_str(&line).expect("the text is JSON");
    assert_eq!(line["status"], 400, "{line}");
    assert_absent(&line, &["method", "host", "path", "protocol", "route"]);
}

#[tokio::test]
async fn keyed_requests_without_an_execution_are_logged_with_the_reason() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    let client = gateway.process.client();
    let first = tokio::spawn(client.post("/keyed/first").key("one").send());
    eventually("the upstream has received the request", async || {
        upstream.count() == 1
    })
    .await;
    let second = tokio::spawn(client.post("/keyed/first").key("one").send());
    let waited = "idempotency_requests_total{route=\"keyed\",outcome=\"waited\"}";
    let waiting = async {
        while gateway.process.metric(waited).await < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waiting = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
    waiting.expect("the second request waits for the first");
    permits.add_permits(1);
    assert_eq!(first.await.expect("a response arrives").status, 200);
    assert!(second.await.expect("a response arrives").is_replay());
    assert!(
        client
            .post("/keyed/first")
            .key("one")
            .send()
            .await
            .is_replay()
    );
    let lines = gateway.lines("/keyed/first", 3).await;
    let mut logged: Vec<_> = lines
        .iter()
        .map(|line| line["idempotency"].as_str())
        .collect();
    logged.sort_unstable();
    assert_eq!(logged, [None, Some("replayed"), Some("waited")]);

    let lost = sending_and_closing("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    let gateway = LoggingGateway::start(&lost.url(), "json", ROUTES);
    let client = gateway.process.client();
    for status in [502, 409] {
        let response = client.post("/keyed/lost").key("two").send().await;
        assert_eq!(response.status, status);
    }
    let lines = gateway.lines("/keyed/lost", 2).await;
    let reasons = ["upstream-unavailable", "idempotency-outcome-unknown"];
    for (line, reason) in lines.iter().zip(reasons) {
        assert_eq!(line["idempotency"], "unknown", "{line}");
        assert_eq!(line["reason"], reason, "{line}");
    }
}

#[tokio::test]
async fn a_response_whose_client_disconnects_is_logged_and_counted_as_truncated() {
    const SIZE: usize = 64 << 20;
    let upstream = Upstream::with(|request| async move {
        match &*request.target {
            "/two" => endless(),
            _ => full(Bytes::from(vec![b'x'; SIZE])),
        }
    });
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    assert_eq!(gateway.truncated().await.to_string(), "0");

    let mut socket = gateway.process.client().connect().await.unwrap();
    let request = b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n";
    socket.write_all(request).await.unwrap();
    socket.read_exact(&mut [0; 1_000]).await.unwrap();
    drop(socket);
    let line = gateway.line("/one").await;
    assert_eq!(line["truncated"], true, "{line}");
    assert!(
        line["bytes_out"]
            .as_u64()
            .is_some_and(|bytes| bytes < SIZE as u64)
    );

    let client = gateway.process.client().h2();
    let mut connection = client.keep_alive().await;
    let mut body = connection.response_body(client.get("/two")).await;
    assert!(body.frame().await.is_some());
    drop((body, connection));
    let line = gateway.line("/two").await;
    assert_eq!(line["truncated"], true, "{line}");
    assert_eq!(gateway.truncated().await.to_string(), "2");
}

#[tokio::test]
async fn a_response_that_upstream_truncates_is_logged_and_counted_as_truncated() {
    let upstream = sending_and_closing("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    for (client, path) in [
        (gateway.process.client(), "/one"),
        (gateway.process.client().h2(), "/two"),
    ] {
        assert!(client.get(path).try_send().await.is_err());
        let line = gateway.line(path).await;
        assert_eq!(
            (&line["truncated"], &line["status"]),
            (&true.into(), &200.into())
        );
    }
    assert_eq!(gateway.truncated().await.to_string(), "2");
}

#[tokio::test]
async fn complete_responses_are_not_truncated() {
    let upstream = Upstream::with(|_| async { full(Bytes::from(vec![b'x'; 1 << 20])) });
    let gateway = LoggingGateway::start(&upstream.url(), "json", ROUTES);
    for client in [gateway.process.client(), gateway.process.client().h2()] {
        for method in ["GET", "HEAD", "POST", "DELETE"] {
            client.request(method, "/complete").send().await;
        }
    }
    for line in gateway.lines("/complete", 8).await {
        assert_absent(&line, &["truncated"]);
        let bytes = match line["method"].as_str().expect("the method is valid") {
            "HEAD" | "DELETE" => continue,
            _ => 1 << 20,
        };
        assert_eq!(line["bytes_out"], bytes, "{line}");
    }
    assert_eq!(gateway.truncated().await.to_string(), "0");
}

#[tokio::test]
async fn characters_of_a_request_cannot_change_how_a_line_is_displayed() {
    let upstream = Upstream::echo();
    let harmful = ["\u{9b}31m", "\u{202e}gnp", "\u{2028}"];
    for format in ["json", "text"] {
        let gateway = LoggingGateway::start(&upstream.url(), format, ROUTES);
        let mut sent = 0;
        for text in harmful {
            for head in [
                format!("GET /a{text}b HTTP/1.1\r\nHost: a\r\n\r\n"),
                format!("GET /a HTTP/1.1\r\nHost: a{text}b\r\n\r\n"),
                format!("GET /a HTTP/1.1\r\nHost: a\r\nX-Request-Id: {text}\r\n\r\n"),
                format!("GET{text} /a HTTP/1.1\r\nHost: a\r\n\r\n"),
            ] {
                let mut socket = gateway.process.client().connect().await.unwrap();
                socket.write_all(head.as_bytes()).await.unwrap();
                let mut start = [0; 12];
                let read = tokio::time::timeout(TEST_TIMEOUT, socket.read_exact(&mut start)).await;
                read.expect("a response arrives in time").unwrap();
                sent += 1;
            }
        }
        let access = || {
            let lines = gateway.process.lines();
            lines
                .into_iter()
                .filter(|line| line.contains("tidegate::access"))
                .count()
        };
        eventually("the access log has a line for each request", async || {
            access() >= sent
        })
        .await;
        for line in gateway.process.lines() {
            assert!(
                !harmful.iter().any(|text| line.contains(text)),
                "the line contains a control or formatting character: {line:?}"
            );
        }
    }
}
