//! What opens a circuit, and what never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;

use super::{STRICT, endless, fails, is_refused, of};
use crate::harness::{Gateway, Refusing, Upstream, empty, eventually, full};
use crate::wire_raw::{self, Conversation};

/// Half of ten requests open it.
const BY_RATIO: &str =
    "breaker = { consecutive_failures = 100, failure_ratio = 0.5, min_requests = 10 }";

/// A server that fails where it is asked to.
fn as_asked() -> Upstream {
    Upstream::with(|received| {
        let fails = received.target == "/fails";
        std::future::ready(empty(if fails { 502 } else { 200 }))
    })
}

#[tokio::test]
async fn half_of_the_requests_of_a_window_open_it_if_they_are_enough() {
    let upstream = as_asked();
    let gateway = Gateway::before(1, BY_RATIO)
        .upstream(&upstream)
        .admin()
        .start();
    let client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.get("/").send().await.status, 200);
        assert_eq!(client.get("/fails").send().await.status, 502);
    }
    is_refused(&client.get("/").send().await);
    assert_eq!(upstream.count(), 10);
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["opened_by"], "failure ratio", "{circuit}");
}

#[tokio::test]
async fn less_than_half_of_them_do_not() {
    let upstream = as_asked();
    let gateway = Gateway::before(1, BY_RATIO).upstream(&upstream).start();
    let client = gateway.client();
    for round in 0..20 {
        for target in ["/", "/", "/fails"] {
            let status = client.get(target).send().await.status;
            assert_ne!(status, 503, "{target} in round {round}");
        }
    }
    assert_eq!(upstream.count(), 60);
}

#[tokio::test]
async fn what_a_client_did_wrong_never_opens_it() {
    let (upstream, mood) = Upstream::moody(400);
    let breaker = "breaker = { consecutive_failures = 1, min_requests = 1, failure_ratio = 0.01 }";
    let gateway = Gateway::before(1, breaker)
        .upstream(&upstream)
        .admin()
        .start();
    for status in (400..430).chain([431, 451, 499]) {
        mood.becomes(status);
        assert_eq!(gateway.client().get("/").send().await.status, status);
    }
    assert_eq!(gateway.circuit().await["window"]["failed"], 0);
    mood.becomes(502);
    fails(&gateway, 1).await;
    is_refused(&gateway.client().get("/").send().await);
}

#[tokio::test]
async fn the_statuses_that_open_it_are_those_in_failures() {
    for (failures, opening, others) in [
        ("", &[502, 503, 504][..], &[500, 501, 505, 599][..]),
        (", failures = \"5xx\"", &[500, 502, 503, 599], &[499, 429]),
        (", failures = [500]", &[500], &[502, 503, 504]),
        (", failures = []", &[], &[500, 503]),
    ] {
        for status in opening.iter().chain(others) {
            let (upstream, _) = Upstream::moody(*status);
            let breaker =
                format!("breaker = {{ consecutive_failures = 2, open = \"1m\"{failures} }}");
            let gateway = Gateway::before(1, &breaker).upstream(&upstream).start();
            for _ in 0..3 {
                gateway.client().get("/").send().await;
            }
            let expected = if opening.contains(status) { 2 } else { 3 };
            assert_eq!(upstream.count(), expected, "{status}{failures}");
        }
    }
}

#[tokio::test]
async fn switched_off_it_never_opens() {
    let (upstream, _) = Upstream::moody(502);
    let breaker = "breaker = { enabled = false, consecutive_failures = 1, min_requests = 1 }";
    let gateway = Gateway::before(1, breaker).upstream(&upstream).start();
    fails(&gateway, 50).await;
    assert_eq!(upstream.count(), 50);
}

/// What a server does with a request, and the status its client gets; none where the answer is cut short.
type Failing = (&'static str, fn(&mut Conversation), Option<u16>);

const FAILURES: [Failing; 7] = [
    ("never answers", Conversation::until_closed, Some(504)),
    (
        "resets the connection",
        |conversation| conversation.will_reset(),
        Some(502),
    ),
    ("closes the connection", |_| (), Some(502)),
    (
        "does not speak HTTP",
        |conversation| conversation.send("SSH-2.0-OpenSSH_9.9\r\n"),
        Some(502),
    ),
    (
        "sends half a head",
        |conversation| conversation.send("HTTP/1.1 200 OK\r\nContent-"),
        Some(502),
    ),
    (
        "sends half of a body whose length it told",
        |conversation| conversation.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf "),
        None,
    ),
    (
        "sends half of a chunked body",
        |conversation| {
            conversation
                .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf \r\n");
        },
        None,
    ),
];

#[tokio::test]
async fn timeouts_lost_connections_and_half_sent_answers_open_it() {
    for (what, fail, status) in FAILURES {
        let upstream = wire_raw::Upstream::scripted(move |conversation| {
            if conversation.head().is_some() {
                fail(conversation);
            }
        });
        let hasty = "first_byte_timeout = \"200ms\"\nidle_timeout = \"200ms\"";
        let gateway = Gateway::before(1, &format!("{hasty}\n{STRICT}"))
            .upstream_url(&format!("http://{}", upstream.address))
            .start();
        for _ in 0..2 {
            let answer = gateway.client().get("/").try_send().await;
            let found = answer.ok().map(|answer| answer.status);
            assert_eq!(found, status, "a server that {what}");
        }
        is_refused(&gateway.client().get("/").send().await);
        let requests = upstream.received().matches("GET /").count();
        assert_eq!(requests, 2, "a server that {what}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_connections_opens_it() {
    let nobody = Refusing::new();
    let gateway = Gateway::before(1, STRICT)
        .upstream_url(&nobody.url())
        .start();
    for _ in 0..2 {
        let answer = gateway.client().get("/").send().await;
        assert_eq!(answer.problem(), "upstream-unavailable");
    }
    is_refused(&gateway.client().get("/").send().await);
}

/// One failure would open it.
const TOUCHY: &str = "breaker = { consecutive_failures = 1, open = \"1m\" }";

/// Holds that the circuit was never open and nothing was held against the server, which has nothing
/// underway.
async fn nothing_was_learnt(gateway: &Gateway, upstream: &Upstream) {
    gateway
        .comes_to(&of(upstream, "server_in_flight", ""), 0)
        .await;
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "closed", "{circuit}");
    assert_eq!(circuit["openings"], 0);
    assert_eq!(circuit["window"]["failed"], 0);
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_client_that_hangs_up_opens_nothing() {
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/silent" => std::future::pending().await,
            "/endless" => endless(),
            _ => full("ok"),
        }
    });
    let gateway = Gateway::before(1, TOUCHY)
        .upstream(&upstream)
        .admin()
        .start();
    let in_flight = of(&upstream, "server_in_flight", "");

    for arrived in 1..=3 {
        let asked = tokio::spawn(gateway.client().get("/silent").try_send());
        eventually("it has arrived", || upstream.count() == arrived).await;
        asked.abort();
        nothing_was_learnt(&gateway, &upstream).await;
    }
    let mut connection = gateway.client().keep_alive().await;
    let mut body = connection.body_of(gateway.client().get("/endless")).await;
    assert!(body.frame().await.is_some());
    gateway.comes_to(&in_flight, 1).await;
    drop((body, connection));
    nothing_was_learnt(&gateway, &upstream).await;

    let mut uploading = wire_raw::Client::connect(gateway.address());
    uploading.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    gateway.comes_to(&in_flight, 1).await;
    drop(uploading);
    nothing_was_learnt(&gateway, &upstream).await;
}

#[tokio::test]
async fn a_client_that_takes_all_the_time_there_is_opens_nothing() {
    let upstream = Upstream::echo();
    let gateway = Gateway::before(1, &format!("timeout = \"500ms\"\n{TOUCHY}"))
        .upstream(&upstream)
        .admin()
        .start();
    let mut uploading = wire_raw::Client::connect(gateway.address());
    uploading.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    // The server has answered nothing because it was asked nothing yet.
    let answer = tokio::task::spawn_blocking(move || uploading.answer()).await;
    assert_eq!(answer.expect("an answer").status, 504);
    nothing_was_learnt(&gateway, &upstream).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_opens_nothing() {
    // More than all buffers on the way hold.
    const LENGTH: usize = 64 << 20;
    let upstream = wire_raw::Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            if request.line().contains("/large") {
                conversation.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"
                ));
                conversation.send(vec![b'x'; LENGTH - 1]);
            } else {
                conversation.send(wire_raw::ok("ok"));
            }
        }
    });
    let gateway = Gateway::before(1, &format!("timeout = \"1s\"\n{TOUCHY}"))
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
    let address = gateway.address();
    let reading = tokio::task::spawn_blocking(move || {
        let mut client = wire_raw::Client::connect(address);
        client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        // Until the time is over in which it could have read all but the last byte.
        std::thread::sleep(Duration::from_millis(1_500));
        client.rest()
    });
    let (read, _) = reading.await.expect("an end");
    assert!(read.len() < LENGTH, "cut short");
    let failures = "upstream_failures_total{upstream=\"api\",reason=\"total_timeout\"}";
    gateway.comes_to(failures, 1).await;
    assert_eq!(gateway.circuit().await["state"], "closed");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_server_that_gives_up_on_a_slow_reader_has_not_failed() {
    // More than all buffers on the way hold.
    const LENGTH: usize = 64 << 20;
    let gave_up = Arc::new(AtomicBool::new(false));
    let gives_up = Arc::clone(&gave_up);
    let upstream = wire_raw::Upstream::scripted(move |conversation| {
        while let Some(request) = conversation.request() {
            if !request.line().contains("/large") {
                conversation.send(wire_raw::ok("ok"));
                continue;
            }
            conversation.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"
            ));
            let patience = Some(Duration::from_millis(1_200));
            let stream = &conversation.stream;
            stream.set_write_timeout(patience).expect("an open socket");
            conversation.send(vec![b'x'; LENGTH]);
            conversation.will_reset();
            gives_up.store(true, Ordering::SeqCst);
            return;
        }
    });
    let gateway = Gateway::before(1, TOUCHY)
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
    let mut client = wire_raw::Client::connect(gateway.address());
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    // The client reads after the server closed the connection.
    eventually("the server gives up", || gave_up.load(Ordering::SeqCst)).await;
    let read = tokio::task::spawn_blocking(move || client.rest()).await;
    assert!(read.expect("an end").0.len() < LENGTH, "cut short");
    let failures = "upstream_failures_total{upstream=\"api\",reason=\"broken\"}";
    gateway.comes_to(failures, 1).await;
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["window"]["failed"], 0, "{circuit}");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_server_that_gives_up_on_a_slow_upload_has_not_failed() {
    let upstream = wire_raw::Upstream::scripted(|conversation| {
        while let Some(head) = conversation.head() {
            if !head.starts_with("POST") {
                conversation.send(wire_raw::ok("ok"));
                continue;
            }
            std::thread::sleep(Duration::from_millis(1_500));
            return;
        }
    });
    let gateway = Gateway::before(1, TOUCHY)
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
    let mut uploading = wire_raw::Client::connect(gateway.address());
    uploading.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    let answer = tokio::task::spawn_blocking(move || uploading.answer()).await;
    assert_eq!(answer.expect("an answer").status, 502);
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["window"]["failed"], 0, "{circuit}");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}
