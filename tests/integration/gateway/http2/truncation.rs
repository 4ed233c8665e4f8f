//! Tests of which HTTP/2 responses the gateway counts as truncated.

use std::collections::BTreeSet;

use bytes::Bytes;
use tokio::time::timeout;

use super::frames::{
    DATA, END_STREAM, FrameClient, GOAWAY, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
};
use crate::support::{Gateway, TEST_TIMEOUT, Upstream, eventually, full};
use tidegate::internals::truncated_responses;

/// Number of requests on one connection.
const STREAMS: u32 = 100;

/// Length of a response body in bytes. It is below the maximum that the gateway queues per stream, so that the gateway
/// can queue each response completely.
const SIZE: usize = 60_000;

fn truncated(gateway: &Gateway) -> u64 {
    truncated_responses(&gateway.shared())
}

/// Opens a connection and sends `STREAMS` requests, but reads no response. The flow-control windows are large enough
/// for all responses.
async fn connect_and_request(gateway: &Gateway, upstream: &Upstream) -> FrameClient {
    let mut client = FrameClient::connect(gateway).await;
    let window = (1_u32 << 20).to_be_bytes();
    let settings = [&[0, 4][..], &window].concat();
    client.send(frame(SETTINGS, 0, 0, &settings)).await;
    client
        .send(frame(WINDOW_UPDATE, 0, 0, &(64_u32 << 20).to_be_bytes()))
        .await;
    for stream in 0..STREAMS {
        client.get(2 * stream + 1, "/").await;
    }
    eventually("the upstream has received all requests", async || {
        upstream.count() == STREAMS as usize
    })
    .await;
    // Then the gateway has queued the responses, also those that its full socket does not accept.
    let in_flight = "upstream_in_flight{upstream=\"api\"}";
    gateway.wait_for_metric(in_flight, 0).await;
    client
}

/// Reads frames until `until` returns true for the type and the flags of a frame, or the gateway closes the connection.
/// Returns the number of complete responses.
async fn count_complete(client: &mut FrameClient, until: impl Fn(u8, u8) -> bool) -> u64 {
    let mut ended = BTreeSet::new();
    loop {
        // `next` would acknowledge pings, but the client cannot send after it has shut down its sending side. `read`
        // does not acknowledge pings.
        let frame = timeout(TEST_TIMEOUT, client.read()).await;
        let Some(frame) = frame.expect("a frame or the close arrives in time") else {
            break;
        };
        if frame.kind == DATA && frame.flags & END_STREAM != 0 {
            ended.insert(frame.stream);
        }
        if until(frame.kind, frame.flags) {
            break;
        }
    }
    ended.len() as u64
}

#[tokio::test]
async fn responses_of_streams_that_the_client_resets_before_they_are_written_are_truncated() {
    let upstream = Upstream::with(|_| async { full(Bytes::from(vec![b'x'; SIZE])) });
    let gateway = Gateway::proxying("[log]\naccess = false")
        .admin()
        .upstream(&upstream)
        .start();
    let mut client = connect_and_request(&gateway, &upstream).await;
    for stream in 0..STREAMS {
        let cancel = 8_u32.to_be_bytes();
        client
            .send(frame(RST_STREAM, 0, 2 * stream + 1, &cancel))
            .await;
    }
    client.send(frame(6, 0, 0, &[7; 8])).await;
    let count_complete = count_complete(&mut client, |kind, flags| (kind, flags) == (6, 1)).await;
    assert!(
        count_complete < STREAMS.into(),
        "the socket accepted all responses, so none was truncated"
    );
    eventually(
        "the incomplete responses are counted as truncated",
        async || truncated(&gateway) >= u64::from(STREAMS) - count_complete,
    )
    .await;
}

#[tokio::test]
async fn a_response_after_the_goaway_of_the_client_is_complete() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = Gateway::proxying("").admin().upstream(&upstream).start();
    let mut client = FrameClient::connect(&gateway).await;
    client.get(1, "/").await;
    eventually("the upstream has received the request", async || {
        upstream.count() == 1
    })
    .await;
    client.send(frame(GOAWAY, 0, 0, &[0; 8])).await;
    permits.add_permits(1);
    client.response(1).await;
    drop(client);
    gateway.wait_for_metric("connections", 0).await;
    assert_eq!(truncated(&gateway), 0);
}

#[tokio::test]
async fn responses_lost_in_a_drain_because_the_client_closes_are_truncated() {
    let upstream = Upstream::with(|_| async { full(Bytes::from(vec![b'x'; SIZE])) });
    let gateway = Gateway::proxying("[log]\naccess = false")
        .admin()
        .upstream(&upstream)
        .start();
    let mut client = connect_and_request(&gateway, &upstream).await;
    gateway.drain();
    eventually("the drain has started", async || {
        gateway.client().connect().await.is_err()
    })
    .await;
    client.end().await;
    let count_complete = count_complete(&mut client, |_, _| false).await;
    assert!(
        count_complete < STREAMS.into(),
        "the client got all responses, so none was truncated"
    );
    eventually(
        "the incomplete responses are counted as truncated",
        async || truncated(&gateway) >= u64::from(STREAMS) - count_complete,
    )
    .await;
}
