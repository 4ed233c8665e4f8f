//! A thousand callers wait for a server to come back: one of them finds out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{is_refused, state};
use crate::harness::{Gateway, PATIENCE, Upstream, empty, full};

const CALLERS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_callers_one_reaches_a_server_that_is_slow_to_come_back() {
    let permits = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&permits);
    let upstream = Upstream::with(move |received| {
        let waiting = Arc::clone(&waiting);
        async move {
            if received.target == "/fails" {
                return empty(502);
            }
            waiting.acquire().await.expect("never closed").forget();
            full("back")
        }
    });
    let breaker = "breaker = { consecutive_failures = 1, open = \"500ms\" }";
    let gateway = Gateway::before(1, breaker)
        .and("[server]\nworkers = 2")
        .upstream(&upstream)
        .admin()
        .start();
    let client = gateway.client();
    let mut connections = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        connections.push(client.keep_alive().await);
    }
    assert_eq!(client.get("/fails").send().await.status, 502);
    gateway.comes_to(&state(&upstream, "half_open"), 1).await;

    let mut callers = JoinSet::new();
    let begun = Instant::now();
    for mut connection in connections {
        let asking = client.get("/");
        callers.spawn(async move { connection.send(asking).await });
    }
    for _ in 1..CALLERS {
        let next = tokio::time::timeout(PATIENCE, callers.join_next()).await;
        let answer = next.expect("all but one are refused while it waits");
        is_refused(&answer.expect("a caller left").expect("an answer"));
    }
    println!(
        "{} callers refused within {:?}, {} request at the server",
        CALLERS - 1,
        begun.elapsed(),
        upstream.count() - 1
    );
    assert_eq!(upstream.count(), 2, "the failure and the probe");
    assert!(
        callers.try_join_next().is_none(),
        "the probe is not answered yet"
    );
    assert!(begun.elapsed() < Duration::from_secs(20));

    permits.add_permits(CALLERS);
    let probe = callers.join_next().await.expect("a caller left");
    assert_eq!(probe.expect("an answer").text(), "back");
    assert_eq!(client.get("/").send().await.status, 200);
    assert_eq!(upstream.count(), 3);
}
