//! Requests whose texts try to break what operators read: log lines, events, lists of the admin API and metrics.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use percent_encoding::NON_ALPHANUMERIC;
use serde_json::Value;

use crate::support::Process;
use crate::support::raw_http::{RawClient, RawResponse, RawUpstream, ok};

const REQUESTS: usize = 10_000;

/// Part of each hostile text, so that a place where such a text appears is found.
const MARK: &str = "h0stile";

/// Texts that HTTP allows in the value of a header.
const TEXTS: [&[u8]; 16] = [
    b"<script>alert(1)</script>",
    b"\"'><img src=x onerror=alert(1)>",
    b"\",\"level\":\"ERROR\",\"x\":\"",
    b"\\\" \\n \\u000a \\",
    b"a\tb",
    b"%0d%0aSet-Cookie:%20a=b%00",
    b"key,device=192.0.2.1 status=500",
    "\u{9b}31m\u{85}\u{80}".as_bytes(),
    "\u{202e}gnp.\u{2066}exe\u{2069}".as_bytes(),
    "one\u{2028}two\u{2029}three".as_bytes(),
    "\u{200b}\u{200f}\u{61c}\u{feff}\u{2060}".as_bytes(),
    "\u{1f4a9}\u{e9}\u{10ffff}".as_bytes(),
    b"\xff\xfe\xc3(\xed\xa0\x80\xc0\xaf",
    b"\x80\x9b\x85",
    b"data: {}",
    b"{{7*7}}${7*7}%s%n",
];

/// Texts that HTTP does not allow in the value of a header. Such a request gets 400, and is still logged.
const FORBIDDEN: [&[u8]; 5] = [
    b"\x1b[2J\x1b[31m",
    b"a\nlevel=ERROR",
    b"a\rb",
    b"a\r\n folded",
    b"\0\x07\x08\x7f",
];

const CONFIG: &str = r#"
    server = { listen = "127.0.0.1:0", workers = 1 }
    admin = { listen = "127.0.0.1:0" }
    client = { trusted_proxies = ["127.0.0.1"] }
    upstream.api = { servers = ["{upstream}"] }
    limit.tenant = { key = "header:x-tenant", rate = "1/h", burst = 1, log_key = true }
    limit.both = { key = ["client", "header:x-tenant"], rate = "1/h", mode = "shadow", log_key = true }
    [[route]]
    name = "tenants"
    path = "/tenants"
    limits = ["tenant", "both"]
    [[route]]
    name = "all"
    path = "/"
    limits = ["both"]
    idempotency = { mode = "optional" }
    "#;

fn hostile(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut text = MARK.as_bytes().to_vec();
    // A single text is sent often, so a limit rejects it.
    for _ in 0..random.usize(1..=3) {
        let texts: &[&[u8]] = if random.u8(..) < 8 {
            &FORBIDDEN
        } else {
            &TEXTS
        };
        text.extend(texts[random.usize(..texts.len())]);
    }
    if random.u8(..) < 8 {
        let length = random.usize(1..=8_192);
        text = text.into_iter().cycle().take(length).collect();
    }
    text
}

fn percent_encoded(text: &[u8]) -> String {
    percent_encoding::percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A request with hostile texts in about two of its parts.
fn request(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut part = |otherwise: &str| match random.u8(..4) {
        0 => hostile(random),
        _ => otherwise.as_bytes().to_vec(),
    };
    let [path, query] = [part(""), part("")];
    let headers = [
        ("User-Agent", part("curl/8")),
        ("X-Tenant", part("")),
        ("X-Forwarded-For", part("203.0.113.7")),
        ("Idempotency-Key", part("")),
        ("X-Request-Id", part("")),
        (
            "traceparent",
            part("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ),
    ];
    let method = ["GET", "POST"][random.usize(..2)];
    let mut sent = format!("{method} /").into_bytes();
    if random.bool() {
        sent.extend(b"tenants/");
    }
    // A raw space ends the target, and other characters are sent raw and escaped.
    if random.bool() {
        sent.extend(percent_encoded(&path).bytes());
    } else {
        sent.extend(path);
    }
    sent.push(b'?');
    sent.extend(query);
    sent.extend(b" HTTP/1.1\r\nHost: api.example\r\nContent-Length: 0\r\n");
    for (name, value) in headers {
        if !value.is_empty() {
            sent.extend([name.as_bytes(), b": ", &value, b"\r\n"].concat());
        }
    }
    sent.extend(b"\r\n");
    sent
}

/// Sends a request, and connects again if the gateway closes the connection after the response.
fn exchange(client: &mut RawClient, address: SocketAddr, request: &[u8]) -> RawResponse {
    let response = client.send(request).response();
    if response.header("connection") == Some("close") {
        *client = RawClient::connect(address);
    }
    response
}

/// Subscribes to the events, and returns their bytes when the gateway has stopped.
fn subscribe(admin: SocketAddr) -> JoinHandle<Vec<u8>> {
    let mut stream = TcpStream::connect(admin).expect("the admin listener is open");
    // The body of a response to HTTP/1.0 has no framing.
    let request = b"GET /admin/v1/events HTTP/1.0\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).expect("the request is sent");
    std::thread::spawn(move || {
        let mut received = Vec::new();
        // An error is ignored: it means that the gateway reset the connection.
        let _ = stream.read_to_end(&mut received);
        received
    })
}

/// Whether a character is one that a log must not contain raw.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// Returns the number of events of each kind, and how many have a hostile text.
fn check_events(received: Vec<u8>) -> (usize, usize) {
    let received = String::from_utf8(received).expect("events are UTF-8");
    let (_, body) = received.split_once("\r\n\r\n").expect("a head");
    let (mut rejected, mut marked, mut kind) = (0, 0, "");
    for line in body.lines() {
        if let Some(name) = line.strip_prefix("event: ") {
            assert!(["rejected", "lost"].contains(&name), "{line:?}");
            kind = name;
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data).expect("the data of an event is JSON");
            rejected += usize::from(kind == "rejected");
            marked += usize::from(data["key"].as_str().is_some_and(|key| key.contains(MARK)));
        } else {
            assert!(line.is_empty() || line == ":", "{line:?}");
        }
    }
    (rejected, marked)
}

#[test]
fn hostile_texts_of_10_000_requests_break_no_log_line_event_list_or_metric() {
    let upstream = RawUpstream::scripted(|connection| {
        while connection.request().is_some() {
            connection.send(ok("hello"));
        }
    });
    let gateway = Process::serving(&CONFIG.replace("{upstream}", &upstream.url()));
    let gateway = gateway.args(&["--log-format", "json"]).start();
    let (address, admin) = (gateway.address(), gateway.admin().address());
    let events = subscribe(admin);

    let mut random = fastrand::Rng::with_seed(11);
    let mut client = RawClient::connect(address);
    let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
    for _ in 0..REQUESTS {
        let sent = request(&mut random);
        let response = exchange(&mut client, address, &sent);
        *statuses.entry(response.status).or_default() += 1;
        let head = sent.escape_ascii();
        assert!(response.status < 500, "{}: {head}", response.status);
    }
    for status in [200, 400, 429] {
        let count = statuses.get(&status).copied().unwrap_or_default();
        assert!(count > REQUESTS / 100, "{statuses:?}");
    }

    let mut operator = RawClient::connect(admin);
    let mut ask = |method: &str, path: &str, expected: u16| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let response = exchange(&mut operator, admin, request.as_bytes());
        let body = String::from_utf8(response.body).expect("the body is UTF-8");
        assert_eq!(response.status, expected, "{path}: {body}");
        body
    };
    let mut json = |method: &str, path: &str, expected: u16| -> Value {
        let body = ask(method, &format!("/admin/v1/{path}"), expected);
        serde_json::from_str(&body).unwrap_or_default()
    };
    for path in ["limits", "overview", "upstreams", "idempotency"] {
        assert!(json("GET", path, 200).is_object(), "{path}");
    }
    for limit in ["tenant", "both"] {
        for by in ["rejected", "near", "early"] {
            let top = json("GET", &format!("limits/{limit}/top?by={by}"), 200);
            let keys = top["keys"].as_array().expect("a list of keys");
            let marked = |member: &str| {
                let texts = keys.iter().filter_map(|key| key[member].as_str());
                texts.filter(|text| text.contains(MARK)).count()
            };
            if by == "rejected" {
                assert!(marked("key") > 0 && marked("user_agent") > 0, "{top}");
            }
        }
    }
    for text in TEXTS {
        let key = percent_encoded(&[MARK.as_bytes(), text].concat());
        let shown = json("GET", &format!("limits/tenant/keys/{key}"), 200);
        assert!(shown["key"].as_str().is_some_and(|key| key.contains(MARK)));
        json("DELETE", &format!("limits/tenant/keys/{key}"), 204);
    }
    let metrics = ask("GET", "/metrics", 200);
    for part in [MARK, "alert(1)", "203.0.113", "curl/8"] {
        assert!(
            !metrics.contains(part),
            "the metrics contain {part:?}:\n{metrics}"
        );
    }

    let refilled = "bucket refilled by operator";
    crate::support::wait_until("all requests are logged", || {
        gateway.count_lines("tidegate::access") >= REQUESTS
            && gateway.count_lines(refilled) == TEXTS.len()
    });
    let lines = gateway.lines();
    gateway.stop();
    let mut logged = 0;
    for line in lines {
        assert!(!line.chars().any(is_unsafe), "{line:?}");
        let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        logged += usize::from(line["target"] == "tidegate::access");
    }
    assert_eq!(logged, REQUESTS, "one line per request");

    let (rejected, marked) = check_events(events.join().expect("the events are read"));
    assert!(
        rejected > 0 && marked > 0,
        "{rejected} events, {marked} hostile"
    );
}
