//! Test that only one of a thousand concurrent requests to a half-open circuit becomes the probe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{assert_rejected, state};
use crate::support::{Gateway, TEST_TIMEOUT, Upstream, empty, full};

const CALLERS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_concurrent_requests_one_becomes_the_probe() {
    let permits = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&permits);
    let upstream = Upstream::with(move |received| {
        let waiting = Arc::clone(&waiting);
        async move {
            if received.target == "/fails" {
                return empty(502);
            }
            waiting
                .acquire()
                .await
                .expect("the semaphore is never closed")
                .forget();
            full("back")
        }
    });
    let breaker = "breaker = { consecutive_failures = 1, open = \"500ms\" }";
    let gateway = Gateway::with_servers(1, breaker)
        .with_section("[server]\nworkers = 2")
        .upstream(&upstream)
        .admin()
        .start();
    let client = gateway.client();
    let mut connections = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        connections.push(client.keep_alive().await);
    }
    assert_eq!(client.get("/fails").send().await.status, 502);
    gateway
        .wait_for_metric(&state(&upstream, "half_open"), 1)
        .await;

    let mut callers = JoinSet::new();
    let started = Instant::now();
    for mut connection in connections {
        let request = client.get("/");
        callers.spawn(async move { connection.send(request).await });
    }
    for _ in 1..CALLERS {
        let next = tokio::time::timeout(TEST_TIMEOUT, callers.join_next()).await;
        let response = next.expect("all requests except the probe are rejected in time");
        assert_rejected(
            &response
                .expect("one more client is running")
                .expect("a response arrives"),
        );
    }
    println!(
        "the gateway rejected {} requests within {:?} and sent {} request as a probe to the server",
        CALLERS - 1,
        started.elapsed(),
        upstream.count() - 1
    );
    assert_eq!(
        upstream.count(),
        2,
        "the server received more than the failed request and the probe"
    );
    assert!(
        callers.try_join_next().is_none(),
        "the probe has a response before the test allowed it"
    );
    assert!(started.elapsed() < Duration::from_secs(20));

    permits.add_permits(CALLERS);
    let probe = callers
        .join_next()
        .await
        .expect("one more client is running");
    assert_eq!(probe.expect("a response arrives").text(), "back");
    assert_eq!(client.get("/").send().await.status, 200);
    assert_eq!(upstream.count(), 3);
}
