//! A replay is the first answer: the same status, the same header lines, the same bytes.

use http::{HeaderMap, HeaderValue};

use super::{is_execution, is_replay_of, numbering, url};
use crate::harness::{Answer, Gateway, Upstream, empty, full};
use crate::wire_raw;

/// `{"paid":true}` as gzip packs it.
const GZIP: [u8; 33] = [
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xab, 0x56, 0x2a, 0x48, 0xcc, 0x4c,
    0x51, 0xb2, 0x2a, 0x29, 0x2a, 0x4d, 0xad, 0x05, 0x00, 0x5d, 0x44, 0x0f, 0x0c, 0x0d, 0x00, 0x00,
    0x00,
];

/// Header lines that are hard to keep.
const HEAD: &[u8] = b"HTTP/1.1 201 Created\r\n\
    Set-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\n\
    X-First: 1\r\n\
    Set-Cookie: b=\"2, 3\"; Path=/\r\n\
    X-Latin: caf\xe9\r\n\
    X-Empty: \r\n\
    Link: </a>; rel=\"next\", </b>\r\n\
    Link: </c>\r\n\
    ETag: \"x\"\r\n\
    X-Request-Id: upstreams-own\r\n\
    Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n\
    Content-Type: application/octet-stream\r\n";

const BODY: &[u8] = b"\0\x01\xff\r\n0\r\n\r\n\0end";

/// An upstream that gives the first request this answer, and any other none that anybody would expect.
fn once(answer: Vec<u8>) -> wire_raw::Upstream {
    wire_raw::Upstream::scripted(move |conversation| {
        conversation.request();
        conversation.send(&answer);
        while conversation.request().is_some() {
            conversation.send(wire_raw::ok("a second execution"));
        }
    })
}

fn sized(head: &[u8], body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}\r\n\r\n", body.len());
    [head, length.as_bytes(), body].concat()
}

/// What is said of each request anew.
fn is_of_this_request(name: &str) -> bool {
    ["x-request-id", "idempotent-replayed"].contains(&name)
}

/// The header lines that have to be the same each time, in order.
fn lines(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let lines = headers.iter();
    lines
        .filter(|(name, _)| !is_of_this_request(name.as_str()))
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// Holds that `replay` is `first` once more, and both are requests of their own.
#[track_caller]
fn is_the_same(first: &Answer, replay: &Answer) {
    assert!(!first.is_replay() && replay.is_replay());
    assert_eq!(replay.status, first.status);
    assert_eq!(lines(&replay.headers), lines(&first.headers));
    assert_eq!(replay.body, first.body);
    assert!(first.has("x-request-id") && replay.has("x-request-id"));
    assert_ne!(replay.header("x-request-id"), first.header("x-request-id"));
}

#[test]
fn every_header_line_and_every_byte_comes_again_as_it_came() {
    let upstream = once(sized(HEAD, BODY));
    let gateway = Gateway::keyed("")
        .upstream_url(&url(upstream.address))
        .start();
    let ask = || {
        let mut client = wire_raw::Client::connect(gateway.address());
        client.send(
            "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 2\r\n\
             Connection: close\r\n\r\nhi",
        );
        client.rest().0
    };
    let (first, replay) = (ask(), ask());
    let same = |answer: &[u8]| -> Vec<Vec<u8>> {
        let end = wire_raw::find(answer, b"\r\n\r\n").expect("a head");
        let head = answer[..end].split(|&byte| byte == b'\n');
        let lines = head.filter(|line| {
            let name = line.split(|&byte| byte == b':').next();
            let name = String::from_utf8_lossy(name.unwrap_or_default()).to_lowercase();
            !is_of_this_request(&name)
        });
        let lines = lines.map(|line| line.trim_ascii_end().to_vec());
        lines.chain([answer[end + 4..].to_vec()]).collect()
    };
    assert_eq!(same(&replay), same(&first));
    assert!(!wire_raw::contains(&first, b"idempotent-replayed"));
    assert!(wire_raw::contains(&replay, b"idempotent-replayed: true"));

    // And the first was what upstream sent.
    let mut sent = same(&sized(HEAD, BODY));
    assert_eq!(sent.pop(), Some(BODY.to_vec()));
    for line in &sent[1..] {
        let at = line.iter().position(|&byte| byte == b':').expect("a name");
        let expected = [&line[..at].to_ascii_lowercase(), &line[at..]].concat();
        let found = same(&first).contains(&expected);
        assert!(found, "{:?}", expected.escape_ascii().to_string());
    }
    assert!(!wire_raw::contains(&replay, b"upstreams-own"));
    let cookie = |answer: &[u8], value: &[u8]| wire_raw::find(answer, value).expect("a cookie");
    assert!(cookie(&replay, b"a=1; Exp") < cookie(&replay, b"b=\"2, 3\""));
    assert_eq!(upstream.received().matches("POST /pay").count(), 1);
}

#[tokio::test]
async fn an_answer_is_the_same_in_either_version_of_http() {
    for (first_h2, replay_h2) in [(false, true), (true, false), (true, true)] {
        let upstream = once(sized(HEAD, BODY));
        let gateway = Gateway::keyed("")
            .upstream_url(&url(upstream.address))
            .start();
        let ask = |h2: bool| {
            let client = gateway.client();
            let client = if h2 { client.h2() } else { client };
            client.post("/pay").key("k1").body("hi").send()
        };
        let first = ask(first_h2).await;
        assert_eq!((first.status, &first.body[..]), (201, BODY));
        let replay = ask(replay_h2).await;
        assert_ne!(first.version == replay.version, first_h2 != replay_h2);
        is_the_same(&first, &replay);
        assert_eq!(upstream.received().matches("POST /pay").count(), 1);
    }
}

#[tokio::test]
async fn upstreams_gzip_is_left_as_it_came() {
    let upstream = Upstream::with(|_| async {
        let mut reply = full(&GZIP[..]);
        let coding = HeaderValue::from_static("gzip");
        reply.headers_mut().insert("content-encoding", coding);
        reply
    });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = || gateway.client().post("/").key("k1").send();
    let (first, replay) = (ask().await, ask().await);
    is_the_same(&first, &replay);
    assert_eq!(replay.header("content-encoding"), "gzip");
    assert_eq!(replay.body[..], GZIP);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn an_answer_in_chunks_is_kept_whole() {
    let chunks = b"4\r\none,\r\n5;x=y\r\n two,\r\n7\r\n thre\0e\r\n0\r\nX-Trailer: t\r\n\r\n";
    let head =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Trailer\r\nX-A: b\r\n\r\n";
    let upstream = once([&head[..], chunks].concat());
    let gateway = Gateway::keyed("")
        .upstream_url(&url(upstream.address))
        .start();
    let ask = || {
        let asking = gateway.client().post("/").header("TE", "trailers");
        asking.key("k1").send()
    };
    let (first, replay) = (ask().await, ask().await);
    is_the_same(&first, &replay);
    assert_eq!(&first.body[..], b"one, two, thre\0e");
    assert_eq!(first.header("x-a"), "b");
    // Trailers cannot be kept, so nobody gets them.
    assert_eq!((first.trailers.len(), replay.trailers.len()), (0, 0));
    assert!(!first.has("trailer"));
}

#[tokio::test]
async fn an_answer_without_a_body_is_kept_too() {
    for status in [204, 200, 304] {
        let upstream = Upstream::with(move |_| async move {
            let mut reply = empty(status);
            let location = HeaderValue::from_static("/made/1");
            reply.headers_mut().insert("location", location);
            reply
        });
        let gateway = Gateway::keyed("").upstream(&upstream).start();
        for client in [gateway.client(), gateway.client().h2()] {
            let ask = || client.request("PATCH", "/").key("k1").send();
            let replay = match upstream.count() {
                0 => {
                    let (first, replay) = (ask().await, ask().await);
                    is_the_same(&first, &replay);
                    replay
                }
                _ => ask().await,
            };
            assert!(replay.is_replay());
            assert_eq!((replay.status, replay.body.len()), (status, 0));
            assert_eq!(replay.header("location"), "/made/1");
        }
        assert_eq!(upstream.count(), 1, "{status}");
    }
}

#[tokio::test]
async fn server_errors_and_client_errors_are_answers_like_any_other() {
    for status in [400, 404, 408, 422, 500, 502, 503, 504] {
        let upstream = super::numbering_with(status);
        let gateway = Gateway::keyed("").upstream(&upstream).start();
        let ask = || gateway.client().post("/").key("k1").send();
        let (first, replay) = (ask().await, ask().await);
        assert_eq!(first.status, status);
        is_the_same(&first, &replay);
        is_replay_of(&replay, 1);
    }
}

#[tokio::test]
async fn the_two_spellings_of_a_key_are_one_key() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = |key: &str| gateway.client().post("/").key(key).send();
    is_execution(&ask("8e03978e-40d5").await, 1);
    is_replay_of(&ask("\"8e03978e-40d5\"").await, 1);
    is_execution(&ask("\"in\\\"side\"").await, 2);
    is_replay_of(&ask("in\"side").await, 2);
    // Case tells keys apart.
    is_execution(&ask("8E03978E-40D5").await, 3);
    // Each reached upstream as it was written.
    let sent: Vec<_> = upstream.requests();
    let sent: Vec<_> = sent
        .iter()
        .map(|one| one.header("idempotency-key"))
        .collect();
    assert_eq!(sent, ["8e03978e-40d5", "\"in\\\"side\"", "8E03978E-40D5"]);
}

#[tokio::test]
async fn what_is_excluded_is_said_once_only() {
    let upstream = once(sized(HEAD, BODY));
    let gateway = Gateway::keyed("exclude_headers = [\"Set-Cookie\", \"x-latin\"]")
        .upstream_url(&url(upstream.address))
        .start();
    let ask = || gateway.client().post("/").key("k1").send();
    let (first, replay) = (ask().await, ask().await);
    assert!(first.has("set-cookie") && first.has("x-latin"));
    let expected: Vec<_> = lines(&first.headers)
        .into_iter()
        .filter(|(name, _)| name != "set-cookie" && name != "x-latin")
        .collect();
    assert_eq!(lines(&replay.headers), expected);
    assert!(replay.is_replay());
    assert_eq!(&replay.body[..], BODY);
}

#[tokio::test]
async fn a_request_id_a_client_gives_is_its_own_on_a_replay_too() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for id in ["first-try", "second-try"] {
        let asking = gateway.client().post("/").key("k1");
        let answer = asking.header("X-Request-Id", id).send().await;
        assert_eq!(answer.header("x-request-id"), id);
        assert_eq!(answer.text(), "execution 1");
    }
    assert_eq!(upstream.last().header("x-request-id"), "first-try");
}

#[tokio::test]
async fn a_record_is_forgotten_when_its_time_is_over() {
    let upstream = numbering();
    let gateway = Gateway::keyed("ttl = \"1s\"").upstream(&upstream).start();
    let ask = || gateway.client().post("/").key("k1").send();
    is_execution(&ask().await, 1);
    let answered = tokio::time::Instant::now();
    is_replay_of(&ask().await, 1);
    tokio::time::sleep_until(answered + std::time::Duration::from_millis(1100)).await;
    is_execution(&ask().await, 2);
}

#[tokio::test]
async fn a_response_with_two_equal_content_length_lines_is_replayed_over_both_versions() {
    let upstream = wire_raw::Upstream::scripted(|conversation| {
        while conversation.request().is_some() {
            conversation.send(
                "HTTP/1.1 201 Created\r\nContent-Length: 4\r\nX-A: b\r\nContent-Length: 4\r\n\r\npaid",
            );
        }
    });
    let gateway = Gateway::keyed("").upstream_url(&upstream.url()).start();
    for (turn, client) in [
        gateway.client(),
        gateway.client().h2(),
        gateway.client(),
        gateway.client().h2(),
    ]
    .iter()
    .enumerate()
    {
        let response = client.post("/").key("k1").send().await;
        assert_eq!((response.status, response.text().as_str()), (201, "paid"));
        assert_eq!(response.header("content-length"), "4");
        assert_eq!(response.is_replay(), turn > 0);
    }
    assert_eq!(upstream.connections(), 1);
    let first = gateway.client().h2().post("/").key("k2").send().await;
    assert_eq!((first.status, first.is_replay()), (201, false));
}
