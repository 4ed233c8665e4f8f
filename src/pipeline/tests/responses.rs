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
async fn cors_headers_of_upstream_are_not_changed() {
    let config = format!("{CORS}respond.cors.credentials = true\n{LIMITED}");
    for (lines, allowed, vary) in [
        (
            "access-control-allow-origin: https://other.example",
            "https://other.example",
            None,
        ),
        (
            "vary: accept-encoding",
            "https://app.example",
            Some("accept-encoding, Origin"),
        ),
        (
            "vary: Accept-Encoding, origin",
            "https://app.example",
            Some("Accept-Encoding, origin"),
        ),
    ] {
        let chain = Chain::with_headers(&config, lines);
        let request = get("/").header("origin", "https://app.example");
        let response = chain.send(request).await;
        let origin = response.header("access-control-allow-origin");
        assert_eq!(origin, Some(allowed));
        let is_own = allowed == "https://app.example";
        let credentials = response.header("access-control-allow-credentials");
        assert_eq!(credentials.is_some(), is_own, "{lines:?}");
        let varies: Vec<_> = (response.headers.get_all("vary").iter())
            .map(|line| line.to_str().unwrap())
            .collect();
        assert_eq!(varies.join(", "), vary.unwrap_or_default());
    }
}

#[tokio::test]
async fn a_preflight_is_answered_for_the_origin_and_matched_by_its_method() {
    let config = format!("{CORS}{LIMITED_AND_KEYED}methods = \"POST\"\n");
    let chain = Chain::new(&config);
    let allowed = preflight("/pay").header("access-control-request-headers", "x-device-info");
    let allowed = chain.send(allowed).await;
    let headers = ["access-control-allow-headers", "access-control-max-age"];
    let headers = headers.map(|name| allowed.header(name));
    assert_eq!(headers, [Some("x-device-info"), Some("600")]);
    let mut other = preflight("/pay");
    let origin = "https://evil.example".parse().unwrap();
    other.headers_mut().unwrap().insert("origin", origin);
    let other = chain.send(other).await;
    assert_eq!(other.status, StatusCode::NO_CONTENT);
    assert!(other.header("access-control-allow-origin").is_none());
    assert!(other.header("access-control-allow-methods").is_none());
    let mut deleting = preflight("/pay");
    let method = "DELETE".parse().unwrap();
    (deleting.headers_mut().unwrap()).insert("access-control-request-method", method);
    let deleting = chain.send(deleting).await;
    deleting.assert_problem(405, "method-not-allowed");
    let origin = deleting.header("access-control-allow-origin");
    assert_eq!(origin, Some("https://app.example"));
    let options = chain.send(get("/pay").method(Method::OPTIONS)).await;
    options.assert_problem(405, "method-not-allowed");
    assert_eq!(chain.executions(), 0);
}

#[tokio::test]
async fn the_configuration_selects_the_hints_of_a_429() {
    for (hints, form, expected) in [
        ("[]", "seconds", [None; 4]),
        ("[\"ms\"]", "http-date", [Some("1500"), None, None, None]),
        (
            "[\"amz\", \"stripe\"]",
            "seconds",
            [None, None, Some("true"), Some("1500")],
        ),
        (
            "[\"should-retry\", \"ms\", \"stripe\", \"amz\", \"ms\"]",
            "seconds",
            [Some("1500"), Some("true"), Some("true"), Some("1500")],
        ),
    ] {
        let limit = format!("rate = \"1/2s\"\nretry_after = \"{form}\"");
        let chain = Chain::new(&format!("respond.hints = {hints}\n{}", limited(&limit)));
        let names = [
            "retry-after-ms",
            "x-should-retry",
            "stripe-should-retry",
            "x-amz-retry-after",
        ];
        let admitted = chain.send(get("/")).await;
        assert_eq!(names.map(|name| admitted.header(name)), [None; 4]);
        chain.advance(Duration::from_millis(500));
        let rejected = chain.send(get("/")).await;
        assert_eq!(names.map(|name| rejected.header(name)), expected, "{hints}");
        let date = "Thu, 01 Jan 1970 00:00:02 GMT";
        let wait = if form == "seconds" { "2" } else { date };
        assert_eq!(rejected.header("retry-after"), Some(wait));
        // The date is exact, because it is the end of the wait.
        chain.advance(Duration::from_millis(1_500));
        chain.send(get("/")).await.assert_created(2);
    }
}

#[tokio::test]
async fn a_wait_of_a_year_is_exact() {
    let chain = Chain::new(&limited("rate = \"1/364d\""));
    chain.send(get("/")).await.assert_created(1);
    let rejected = chain.send(get("/")).await;
    assert_eq!(rejected.header("retry-after"), Some("31449600"));
    assert_eq!(rejected.header("retry-after-ms"), Some("31449600000"));
}

#[tokio::test]
async fn problems_link_to_the_documentation_and_have_the_extra_headers() {
    const DOCS: &str = "https://docs.example/errors?lang=en#limits";
    let link = format!("<{DOCS}>; rel=\"describedby\"");
    let docs = format!("respond.docs = \"{DOCS}\"\n");
    let chain = Chain::new(&format!("{docs}{LIMITED_AND_KEYED}"));
    assert!(chain.send(get("/pay")).await.header("link").is_none());
    for accept in ["*/*", "text/html", "text/plain"] {
        let rejected = chain.send(get("/%zz").header("accept", accept)).await;
        assert_eq!(rejected.header("link"), Some(&*link), "{accept}");
    }
    let extra = "respond.headers = { Link = \"</help>; rel=\\\"help\\\"\" }\n";
    let chain = Chain::without_upstream(&format!("{docs}{extra}{KEYED}"));
    for request in [get("/pay"), post("a"), post("two words")] {
        let rejected = chain.send(request).await;
        let links: Vec<_> = rejected.headers.get_all("link").iter().collect();
        assert_eq!(links, ["</help>; rel=\"help\"", &*link]);
    }
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
