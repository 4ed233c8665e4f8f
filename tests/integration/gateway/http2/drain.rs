//! Test that a drain waits for requests with an idempotency key even if their HTTP/2 clients disconnect.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, block, frame};
use crate::support::{Gateway, Upstream, full};

const ROUNDS: usize = 100;
const STREAMS: u32 = 4;

/// Returns the bytes of an HTTP/2 connection with `STREAMS` requests, each with its own idempotency key. Each key
/// contains the number `connection`, so that no two connections send the same key.
fn keyed_requests(connection: usize) -> Vec<u8> {
    let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for number in 0..STREAMS {
        let key = format!("raw-{connection}-{number}");
        let headers = block(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/pay"),
            ("idempotency-key", &key),
        ]);
        let stream = 2 * number + 1;
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers));
    }
    sent
}

#[tokio::test]
async fn a_drain_waits_for_keyed_executions_whose_clients_disconnect() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut executions = 0;
    for round in 0..ROUNDS {
        let delay = Duration::from_millis(random.u64(5..40));
        let upstream = Upstream::with(move |_| async move {
            tokio::time::sleep(delay).await;
            full("done")
        });
        let gateway = Gateway::keyed("").upstream(&upstream).start();
        let mut random_delay = || Duration::from_millis(random.u64(0..50));
        let mut clients = Vec::new();
        // This client is a complete HTTP/2 client, so it acknowledges the ping that the gateway sends with GOAWAY. The
        // two clients below send fixed bytes and acknowledge nothing.
        let client = gateway.client().h2();
        let connection = client.keep_alive().await;
        for number in 0..STREAMS {
            let mut stream = connection.open_stream();
            let request = client.post("/pay").key(&format!("h2-{number}"));
            tokio::spawn(async move { stream.try_send(request).await });
        }
        let delay_before_close = random_delay();
        clients.push(tokio::spawn(async move {
            tokio::time::sleep(delay_before_close).await;
            drop(connection);
        }));
        for number in 0..2 {
            let mut socket = client.connect().await.expect("the connection is open");
            let delay_before_close = random_delay();
            clients.push(tokio::spawn(async move {
                let sent = socket.write_all(&keyed_requests(number)).await;
                sent.expect("the connection is open");
                tokio::time::sleep(delay_before_close).await;
                drop(socket);
            }));
        }
        tokio::time::sleep(random_delay() / 2).await;
        gateway.drain();
        let ended = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
        for client in clients {
            client.await.expect("the task does not panic");
        }
        let counts = ended.await.expect("the task does not panic");
        let completed = usize::try_from(counts.completed).expect("the number is small");
        assert_eq!(
            (counts.in_progress, counts.unknown, completed),
            (0, 0, upstream.count()),
            "round {round}: {counts:?}"
        );
        executions += completed;
    }
    println!(
        "all {executions} requests that were executed in {ROUNDS} drains have an idempotency record"
    );
    assert!(
        executions > ROUNDS,
        "only {executions} requests were executed, so most drains had none to wait for"
    );
}
