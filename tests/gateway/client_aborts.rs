//! Requests whose clients disconnect before the response are counted and logged with the status 499.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Gateway, Process, TEST_TIMEOUT, Upstream, eventually};

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
                // Every second request has a key, so its execution finishes although the client disconnects.
                let request = if n % 2 == 0 {
                    request.key(&format!("k{number}-{n}"))
                } else {
                    request
                };
                tokio::spawn(request.try_send())
            })
            .collect();
        eventually("upstream has the requests", || {
            upstream.count() == arrived + REQUESTS
        })
        .await;
        for request in pending {
            request.abort();
        }
        let wanted = u32::try_from((number + 1) * REQUESTS).expect("few");
        let series = "requests_total{route=\"all\",status=\"499\"}";
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !gateway
            .admin()
            .get("/metrics")
            .send()
            .await
            .text()
            .contains(series)
        {
            assert!(Instant::now() < deadline, "no request has the status 499");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        gateway.wait_for_metric(series, wanted).await;
    }
    permits.add_permits(2 * REQUESTS);
    eventually("keyed executions are recorded", || {
        usize::try_from(gateway.counts().completed) == Ok(REQUESTS)
    })
    .await;
}

#[tokio::test]
async fn a_request_whose_client_disconnects_is_in_the_access_log() {
    let upstream = Upstream::silent();
    let url = upstream.url();
    let arguments = ["serve", "--upstream", &url, "--listen", "127.0.0.1:0"];
    let process = Process::start(&arguments);
    let pending = tokio::spawn(process.client().get("/slow").try_send());
    eventually("upstream has the request", || upstream.count() == 1).await;
    pending.abort();
    assert!(pending.await.is_err());
    let line = process.wait_for_line("status=499");
    assert!(
        line.contains("path=\"/slow\"") || line.contains("path=/slow"),
        "{line}"
    );
}

#[tokio::test]
async fn a_client_that_half_closes_after_its_request_counts_as_disconnected() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = Gateway::proxying("").admin().upstream(&upstream).start();
    let mut socket = gateway.client().connect().await.expect("a connection");
    let request = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    socket.write_all(request).await.expect("a connection");
    eventually("upstream has the request", || upstream.count() == 1).await;
    socket.shutdown().await.expect("an open socket");
    let mut received = Vec::new();
    let ended = tokio::time::timeout(TEST_TIMEOUT, socket.read_to_end(&mut received)).await;
    ended.expect("the gateway closes").expect("no reset");
    assert!(received.is_empty(), "{received:?}");
    let counted = gateway.metric("requests_total{route=\"all\",status=\"499\"}");
    assert!((counted.await - 1.0).abs() < f64::EPSILON);
    permits.add_permits(1);
}
