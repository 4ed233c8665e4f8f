//! Tests of `concurrency`, the limit on the number of requests in flight to an upstream.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Gateway, Upstream, empty, eventually};

/// Upstream settings: a fixed concurrency limit of two requests in flight.
const TWO_IN_FLIGHT: &str = "concurrency = { min = 2, max = 2 }";

#[tokio::test]
async fn a_request_above_the_concurrency_limit_returns_503_with_retry_after() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = Gateway::with_servers(1, TWO_IN_FLIGHT)
        .upstream(&upstream)
        .admin()
        .start();
    let in_flight: Vec<_> = (0..2)
        .map(|_| tokio::spawn(gateway.client().get("/").send()))
        .collect();
    eventually("two requests are in flight", async || upstream.count() == 2).await;

    let shed = gateway.client().get("/").send().await;
    assert_eq!((shed.status, shed.retry_after()), (503, 1));
    assert_eq!(shed.problem(), "upstream-unavailable");
    let overloaded = "upstream_failures_total{upstream=\"api\",reason=\"overloaded\"}";
    gateway.wait_for_metric(overloaded, 1).await;
    let limit = gateway
        .metric("upstream_concurrency_limit{upstream=\"api\"}")
        .await;
    assert!((limit - 2.0).abs() < f64::EPSILON);
    let overview = gateway
        .admin()
        .get("/admin/v1/upstreams/api")
        .send()
        .await
        .text();
    let overview: serde_json::Value = serde_json::from_str(&overview).expect("the text is JSON");
    let expected = serde_json::json!({ "limit": 2, "in_flight": 2, "shed": 1 });
    assert_eq!(overview["concurrency"], expected);

    permits.add_permits(3);
    for response in in_flight {
        assert_eq!(response.await.expect("a response arrives").status, 200);
    }
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    assert_eq!(
        upstream.count(),
        3,
        "the upstream received a request that the gateway rejected"
    );
}

#[tokio::test]
async fn endless_responses_do_not_count_as_in_flight() {
    let upstream = Upstream::with(|received| async move {
        if received.target != "/stream" {
            return empty(204);
        }
        let (mut events, body) = Channel::new(1);
        tokio::spawn(async move {
            let sent = events.send_data(Bytes::from_static(b"data: 1\n\n")).await;
            sent.expect("the gateway reads the response");
            std::future::pending::<()>().await;
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::with_servers(1, TWO_IN_FLIGHT)
        .upstream(&upstream)
        .start();
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut stream = gateway
            .client()
            .connect()
            .await
            .expect("the connection is open");
        let request = b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).await.expect("the bytes are sent");
        let mut head = [0; 15];
        stream
            .read_exact(&mut head)
            .await
            .expect("a response arrives");
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        streams.push(stream);
    }
    assert_eq!(gateway.client().get("/").send().await.status, 204);
}
