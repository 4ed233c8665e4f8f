//! Tests of the choice of the server for retries, and of failover of requests that were provably not sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{QUICK, gateway_to};
use crate::support::{RefusingPort, Upstream, empty};

/// For each request, in order of arrival: the index of the server that received it, and the request target.
type ReceivedRequests = Arc<Mutex<Vec<(usize, String)>>>;

/// Starts one server for each status. Returns the servers and a list of all requests that they receive.
fn with_statuses(statuses: &[u16]) -> (Vec<Upstream>, ReceivedRequests) {
    let received_requests = ReceivedRequests::default();
    let servers = statuses.iter().enumerate().map(|(index, &status)| {
        let received_requests = Arc::clone(&received_requests);
        Upstream::with(move |received| {
            received_requests.lock().push((index, received.target));
            async move { empty(status) }
        })
    });
    (servers.collect(), received_requests)
}

fn urls(servers: &[Upstream]) -> Vec<String> {
    servers.iter().map(Upstream::url).collect()
}

/// Returns for each request target the indexes of the servers that received it, in order.
fn servers_by_request(received_requests: &ReceivedRequests) -> BTreeMap<String, Vec<usize>> {
    let mut servers_by_request = BTreeMap::<_, Vec<_>>::new();
    for (index, target) in received_requests.lock().iter() {
        servers_by_request
            .entry(target.clone())
            .or_default()
            .push(*index);
    }
    servers_by_request
}

#[tokio::test]
async fn all_servers_are_tried_before_one_is_tried_again() {
    let (servers, received_requests) = with_statuses(&[503, 503, 503]);
    let api = format!("{QUICK}attempts = 9");
    let gateway = gateway_to(&urls(&servers), &api).start();
    for number in 0..10 {
        let response = gateway.client().get(&format!("/{number}")).send().await;
        assert_eq!(response.status, 503);
    }
    for (target, sequence) in servers_by_request(&received_requests) {
        assert_eq!(sequence.len(), 9, "{target}");
        let mut first = sequence[..3].to_vec();
        first.sort_unstable();
        assert_eq!(
            first,
            [0, 1, 2],
            "{target} was sent to the servers {sequence:?}"
        );
        let repeated = sequence.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(!repeated, "{target} was sent to the servers {sequence:?}");
    }
}

#[tokio::test]
async fn a_request_to_an_unreachable_server_fails_over_and_is_executed_once() {
    for api in ["", "[upstream.api.retry]\nattempts = 1", QUICK] {
        let (servers, received_requests) = with_statuses(&[200, 200]);
        let mut urls = urls(&servers);
        urls.insert(1, RefusingPort::permanent_url());
        let gateway = gateway_to(&urls, api).admin().start();
        for number in 0..300 {
            let request = gateway.client().post(&format!("/{number}")).body("once");
            assert_eq!(request.send().await.status, 200, "{number}");
        }
        let servers_by_request = servers_by_request(&received_requests);
        assert_eq!(servers_by_request.len(), 300);
        assert!(
            servers_by_request
                .values()
                .all(|sequence| sequence.len() == 1),
            "{servers_by_request:?}"
        );
        let mut requests = servers.iter().flat_map(Upstream::requests);
        assert!(requests.all(|request| request.body == "once"));
        // The 300 requests needed 300 successful attempts. At least 30 further attempts must have gone to the
        // unreachable server. Otherwise the test would hardly test failover. Failover does not count as a retry.
        let attempts = gateway.metric("upstream_attempts_total{upstream=\"api\"}");
        assert!(attempts.await >= 330.0, "{api}");
        let retries = gateway.metric("upstream_retries_total{upstream=\"api\"}");
        assert!(retries.await < 0.5, "{api}");
    }
}

#[tokio::test]
async fn a_post_that_no_server_received_is_retried_on_every_server() {
    let unreachable = [RefusingPort::permanent_url(), RefusingPort::permanent_url()];
    let api = format!("{QUICK}attempts = 3");
    let gateway = gateway_to(&unreachable, &api).admin().start();
    assert_eq!(gateway.client().post("/").send().await.status, 502);
    let attempts = gateway
        .metric("upstream_attempts_total{upstream=\"api\"}")
        .await;
    // The gateway makes three attempts on each of the two servers. It retries a POST request that no server has
    // received.
    assert!((attempts - 6.0).abs() < 0.5, "{attempts}");
}
