//! Tests of HTTP/2 responses to HEAD requests, and of `100 Continue`.

use std::future::poll_fn;

use bytes::Bytes;
use tokio::time::timeout;

use super::{Connection, request};
use crate::support::{Gateway, TEST_TIMEOUT, Upstream};

const WINDOW: u32 = 65_535;

#[tokio::test]
async fn a_rejected_head_request_has_no_body() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/m\"\nburst = 0")
        .upstream(&upstream)
        .start();
    let connection = Connection::open(&gateway, WINDOW).await;
    for (path, status) in [("/", 200), ("/", 429), ("/a\\b/..%00", 400)] {
        let head = request("HEAD", path)
            .body(())
            .expect("the request is valid");
        let (response, _) = connection
            .ready()
            .await
            .send_request(head, true)
            .expect("the bytes are sent");
        let response = timeout(TEST_TIMEOUT, response)
            .await
            .expect("a response arrives");
        let response = response.expect("the stream has no error");
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(
            response.headers().contains_key("retry-after"),
            status == 429
        );
        // `Content-Length` states the length that the body would have if the method were GET. It is thus not 0 for a
        // rejection.
        if status != 200 {
            let length = response.headers()["content-length"].to_str();
            assert_ne!(length.expect("Content-Length is ASCII"), "0");
        }
        let mut body = response.into_body();
        assert!(
            body.is_end_stream(),
            "{path}: the response head does not have END_STREAM"
        );
        assert!(
            body.data().await.is_none(),
            "the response to HEAD {path} has a body"
        );
    }
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it_if_the_request_is_admitted() {
    let upstream = Upstream::echo();
    let gateway = Gateway::keyed("")
        .with_section("[limit.all]\nrate = \"2/h\"\nburst = 1")
        .upstream(&upstream)
        .start();
    for key in ["", "k1"] {
        let connection = Connection::open(&gateway, WINDOW).await;
        let mut expecting = request("POST", "/upload").header("expect", "100-continue");
        if !key.is_empty() {
            expecting = expecting.header("idempotency-key", key);
        }
        let expecting = expecting.body(()).expect("the request is valid");
        let (mut response, mut body) = connection
            .ready()
            .await
            .send_request(expecting, false)
            .expect("the bytes are sent");
        let interim = timeout(TEST_TIMEOUT, poll_fn(|cx| response.poll_informational(cx)));
        let interim = interim
            .await
            .expect("100 Continue arrives in time")
            .expect("an interim response arrives");
        assert_eq!(interim.expect("the stream has no error").status(), 100);
        body.send_data(Bytes::from_static(b"the body"), true)
            .expect("the bytes are sent");
        let response = timeout(TEST_TIMEOUT, response)
            .await
            .expect("a response arrives");
        assert_eq!(response.expect("the stream has no error").status(), 200);
        assert_eq!(upstream.last().body, "the body");
        assert!(!upstream.last().has("expect"));
    }
}

#[tokio::test]
async fn a_rejected_request_that_expects_100_continue_gets_only_the_rejection() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"\nburst = 0")
        .upstream(&upstream)
        .start();
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    let connection = Connection::open(&gateway, WINDOW).await;
    let expecting = request("POST", "/").header("expect", "100-continue");
    let (mut response, _body) = connection
        .ready()
        .await
        .send_request(expecting.body(()).expect("the request is valid"), false)
        .expect("the bytes are sent");
    let interim = timeout(TEST_TIMEOUT, poll_fn(|cx| response.poll_informational(cx)));
    assert!(interim.await.expect("a response arrives").is_none());
    let response = timeout(TEST_TIMEOUT, response)
        .await
        .expect("a response arrives");
    assert_eq!(response.expect("the stream has no error").status(), 429);
}
