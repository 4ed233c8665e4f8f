//! Tests that the gateway counts and logs the status 499 for a request if the client disconnects before it gets the
//! response.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Gateway, Process, TEST_TIMEOUT, Upstream, eventually};

const REQUESTS: usize = 20;

#[tokio::test]
async fn requests_whose_clients_disconnect_are_counted_with_status_499() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    for (number, client) in [gateway.client(), gateway.client().h2()]
        .into_iter()
        .enumerate()
    {
        let arrived = upstream.count();
        let pending: Vec<_> = (0..REQUESTS)
            .map(|n| {
                let request = client.post("/pay");
                // Every second request has an idempotency key. The gateway finishes such a request although its client
                // disconnects.
                let request = if n % 2 == 0 {
                    request.key(&format!("k{number}-{n}"))
                } else {
                    request
                };
                tokio::spawn(request.try_send())
            })
            .collect();
        eventually("the upstream has received the requests", async || {
            upstream.count() == arrived + REQUESTS
        })
        .await;
        for request in pending {
            request.abort();
        }
        let wanted = u32::try_from((number + 1) * REQUESTS).expect("the number is small");
        let series = "requests_total{route=\"all\",status=\"499\"}";
        eventually(
            "requests_total has a series with the status 499",
            async || {
                let metrics = gateway.admin().get("/metrics").send().await;
                metrics.text().contains(series)
            },
        )
        .await;
        gateway.wait_for_metric(series, wanted).await;
    }
    permits.add_permits(2 * REQUESTS);
    eventually(
        "the responses to the requests with a key are stored",
        async || usize::try_from(gateway.counts().completed) == Ok(REQUESTS),
    )
    .await;
}

#[tokio::test]
async fn a_request_whose_client_disconnects_is_in_the_access_log() {
    let upstream = Upstream::silent();
    let url = upstream.url();
    let arguments = ["serve", "--upstream", &url, "--listen", "127.0.0.1:0"];
    let process = Process::start(&arguments);
    let pending = tokio::spawn(process.client().get("/slow").try_send());
    eventually("the upstream has received the request", async || {
        upstream.count() == 1
    })
    .await;
    pending.abort();
    assert!(pending.await.is_err());
    let line = process.wait_for_line("status=499");
    assert!(
        line.contains("path=\"/slow\"") || line.contains("path=/slow"),
        "unexpected line of the access log: {line}"
    );
}

#[tokio::test]
async fn a_client_that_half_closes_after_its_request_counts_as_disconnected() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = Gateway::proxying("").admin().upstream(&upstream).start();
    let mut socket = gateway
        .client()
        .connect()
        .await
        .expect("the connection is open");
    let request = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    socket
        .write_all(request)
        .await
        .expect("the connection is open");
    eventually("the upstream has received the request", async || {
        upstream.count() == 1
    })
    .await;
    socket.shutdown().await.expect("the socket is open");
    let mut received = Vec::new();
    let ended = tokio::time::timeout(TEST_TIMEOUT, socket.read_to_end(&mut received)).await;
    ended
        .expect("the gateway closes the connection")
        .expect("the connection is not reset");
    assert!(
        received.is_empty(),
        "the client received a response: {received:?}"
    );
    let counted = gateway.metric("requests_total{route=\"all\",status=\"499\"}");
    assert!((counted.await - 1.0).abs() < f64::EPSILON);
    permits.add_permits(1);
}
