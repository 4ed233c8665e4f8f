//! Tests of what all responses have in common: format of problems, CORS, access log.

use std::io;

use tracing_subscriber::fmt::MakeWriter;

use super::*;

#[tokio::test]
async fn a_problem_is_rendered_in_the_format_that_the_client_accepts() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    for (accept, expected) in [
        ("*/*", "application/problem+json"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
    ] {
        // The first request is rejected because its head is invalid, the second because it matches no route, and the
        // third because its idempotency key is invalid.
        for request in [Request::get("/pay"), get("/other"), post("two words")] {
            let rejected = chain.send(request.header("accept", accept)).await;
            assert_eq!(rejected.header("content-type"), Some(expected), "{accept}");
        }
    }
}

fn preflight(path: &str) -> Builder {
    get(path)
        .method(Method::OPTIONS)
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
}

const CORS: &str = "respond.cors.origins = [\"https://app.example\"]\n";

#[tokio::test]
async fn a_preflight_passes_no_stage_if_the_gateway_handles_cors() {
    let chain = Chain::new(&format!("{CORS}{LIMITED_AND_KEYED}"));
    for _ in 0..5 {
        let response = chain.send(preflight("/pay")).await;
        assert_eq!(response.status, StatusCode::NO_CONTENT);
        for (name, expected) in [
            ("access-control-allow-origin", Some("https://app.example")),
            ("access-control-allow-methods", Some("POST")),
            ("ratelimit", None),
        ] {
            assert_eq!(response.header(name), expected, "{name}");
        }
    }
    assert_eq!(chain.executions(), 0);
    chain
        .send(preflight("/other"))
        .await
        .assert_problem(404, "no-route");
}

#[tokio::test]
async fn a_preflight_without_cors_is_forwarded_and_charged_to_its_own_bucket() {
    let chain = Chain::new(LIMITED);
    for number in 1..=3 {
        chain.send(preflight("/")).await.assert_created(number);
    }
    chain
        .send(preflight("/"))
        .await
        .assert_problem(429, "rate-limited");
    let request = chain.send(get("/").method(Method::POST)).await;
    assert_eq!(request.header("ratelimit"), Some(r#""device";r=2;t=60"#));
    // An `OPTIONS` request without `Origin` is not a preflight. It is charged like other requests.
    let options = chain.send(get("/").method(Method::OPTIONS)).await;
    assert_eq!(options.header("ratelimit"), Some(r#""device";r=1;t=60"#));
}

#[tokio::test]
async fn responses_of_upstream_and_gateway_have_cors_headers_for_an_allowed_origin() {
    let chain = Chain::new(&format!("{CORS}{LIMITED_AND_KEYED}"));
    let from = |origin: &str| get("/pay").header("origin", origin);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let response = chain.send(from("https://app.example")).await;
        statuses.push(response.status.as_u16());
        let allowed = response.header("access-control-allow-origin");
        assert_eq!(allowed, Some("https://app.example"));
        let exposed = response.header("access-control-expose-headers").unwrap();
        assert!(
            exposed.contains("Retry-After") && exposed.contains("RateLimit"),
            "{exposed}"
        );
    }
    assert_eq!(statuses, [201, 201, 201, 429]);
    let other = chain.send(from("https://other.example")).await;
    assert_eq!(other.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(other.header("access-control-allow-origin").is_none());
}

#[tokio::test]
async fn every_response_of_a_route_is_counted_by_its_status() {
    let chain = Chain::new(LIMITED_AND_KEYED);
    for key in ["a", "a", "two words", "b", "c"] {
        chain.send(post(key)).await;
    }
    let counts = [201, 400, 429].map(|status| chain.count(status));
    assert_eq!(counts, [2, 1, 2]);
}

/// Log lines in JSON.
#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn the_access_log_states_what_each_stage_decided() {
    let lines = LogLines::default();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_writer(lines.clone())
        .finish();
    // If a process has only one subscriber, `tracing` disables an event that a thread without a subscriber reaches
    // first. Other tests are such threads, so this test creates a second subscriber.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let logging = tracing::subscriber::set_default(subscriber);
    let chain = Chain::new(LIMITED_AND_KEYED);
    let mut sizes = Vec::new();
    for key in ["a", "a", "two words", "b"] {
        let request = post(key).header("x-request-id", "r1");
        let response = chain.send_body(request, "order").await;
        sizes.push(response.body.len().to_string());
    }
    let response = chain.send(get("/other?q")).await;
    sizes.push(response.body.len().to_string());
    drop(logging);
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let lines: Vec<_> = lines
        .iter()
        .filter(|line| line["target"] == "tidegate::access")
        .collect();
    let fields = |name: &str| -> Vec<String> {
        let texts = lines.iter().map(|line| match line.get(name) {
            None => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        });
        texts.collect()
    };
    for (name, expected) in [
        ("status", ["201", "201", "400", "429", "404"]),
        ("route", ["pay", "pay", "pay", "pay", "-"]),
        ("client", ["192.0.2.1"; 5]),
        ("method", ["POST", "POST", "POST", "POST", "GET"]),
        ("path", ["/pay", "/pay", "/pay", "/pay", "/other"]),
        ("attempts", ["1", "-", "-", "-", "-"]),
        ("bytes_in", ["5", "5", "5", "5", "0"]),
        (
            "limits",
            [
                "device=192.0.2.1",
                "device=192.0.2.1",
                "device=192.0.2.1",
                "device=192.0.2.1",
                "-",
            ],
        ),
        ("limit", ["-", "-", "-", "device", "-"]),
        ("wait_ms", ["-", "-", "-", "60000", "-"]),
        ("idempotency", ["-", "replayed", "-", "-", "-"]),
        (
            "reason",
            [
                "-",
                "-",
                "idempotency-key-invalid",
                "rate-limited",
                "no-route",
            ],
        ),
        ("truncated", ["-"; 5]),
    ] {
        assert_eq!(fields(name), expected, "{name}");
    }
    assert_eq!(fields("request_id")[..4], ["r1"; 4]);
    assert_eq!(fields("bytes_out"), sizes);
}
