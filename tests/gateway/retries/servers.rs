//! Where another attempt goes to, and what goes on at once to whoever takes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{QUICK, before};
use crate::harness::{Upstream, empty};

/// Which server got which request, in order.
type Visits = Arc<Mutex<Vec<(usize, String)>>>;

/// Servers that answer with these statuses, and what they are asked for.
fn answering(statuses: &[u16]) -> (Vec<Upstream>, Visits) {
    let visits = Visits::default();
    let servers = statuses.iter().enumerate().map(|(place, &status)| {
        let visits = Arc::clone(&visits);
        Upstream::with(move |received| {
            visits.lock().push((place, received.target));
            async move { empty(status) }
        })
    });
    (servers.collect(), visits)
}

fn urls(servers: &[Upstream]) -> Vec<String> {
    servers.iter().map(Upstream::url).collect()
}

/// The servers each request went to, in order.
fn ways(visits: &Visits) -> BTreeMap<String, Vec<usize>> {
    let mut ways = BTreeMap::<_, Vec<_>>::new();
    for (place, target) in visits.lock().iter() {
        ways.entry(target.clone()).or_default().push(*place);
    }
    ways
}

#[tokio::test]
async fn a_second_attempt_goes_to_the_other_of_two_servers() {
    let (servers, visits) = answering(&[503, 200]);
    let api = format!("{QUICK}attempts = 2");
    let gateway = before(&urls(&servers), &api).start();
    for number in 0..40 {
        let answer = gateway.client().get(&format!("/{number}")).send().await;
        assert_eq!(answer.status, 200, "{number}");
    }
    let ways = ways(&visits);
    assert_eq!(ways.len(), 40);
    let direct = ways.values().filter(|way| **way == [1]).count();
    let round_about = ways.values().filter(|way| **way == [0, 1]).count();
    assert_eq!(direct + round_about, 40, "{ways:?}");
    assert!(direct > 0 && round_about > 0, "{ways:?}");
}

#[tokio::test]
async fn three_attempts_are_enough_to_find_the_one_of_three_servers_that_is_well() {
    let (servers, visits) = answering(&[500, 200, 503]);
    let api = format!("{QUICK}attempts = 3");
    let gateway = before(&urls(&servers), &api).start();
    for number in 0..40 {
        let answer = gateway.client().get(&format!("/{number}")).send().await;
        assert_eq!(answer.status, 200, "{number}");
    }
    for (target, way) in ways(&visits) {
        let mut asked = way.clone();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), way.len(), "{target} went to {way:?}");
    }
}

#[tokio::test]
async fn all_servers_are_asked_before_one_is_asked_again_and_none_twice_in_a_row() {
    let (servers, visits) = answering(&[503, 503, 503]);
    let api = format!("{QUICK}attempts = 9");
    let gateway = before(&urls(&servers), &api).start();
    for number in 0..10 {
        let answer = gateway.client().get(&format!("/{number}")).send().await;
        assert_eq!(answer.status, 503);
    }
    for (target, way) in ways(&visits) {
        assert_eq!(way.len(), 9, "{target}");
        let mut first = way[..3].to_vec();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2], "{target} went to {way:?}");
        let repeated = way.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(!repeated, "{target} went to {way:?}");
    }
}

#[tokio::test]
async fn what_one_server_refuses_goes_to_the_next_at_once_and_is_carried_out_once() {
    for api in ["", "[upstream.api.retry]\nattempts = 1", QUICK] {
        let (servers, visits) = answering(&[200, 200]);
        let mut urls = urls(&servers);
        urls.insert(1, Upstream::gone());
        let gateway = before(&urls, api).admin().start();
        for number in 0..300 {
            let asking = gateway.client().post(&format!("/{number}")).body("once");
            assert_eq!(asking.send().await.status, 200, "{number}");
        }
        let ways = ways(&visits);
        assert_eq!(ways.len(), 300);
        assert!(ways.values().all(|way| way.len() == 1), "{ways:?}");
        let mut requests = servers.iter().flat_map(Upstream::requests);
        assert!(requests.all(|request| request.body == "once"));
        // It was met with often enough to mean something, and nobody called that a retry.
        let attempts = gateway.metric("upstream_attempts_total{upstream=\"api\"}");
        assert!(attempts.await >= 330.0, "{api}");
        let retries = gateway.metric("upstream_retries_total{upstream=\"api\"}");
        assert!(retries.await < 0.5, "{api}");
    }
}

#[tokio::test]
async fn where_nobody_is_there_a_post_is_tried_again_and_every_server_each_time() {
    let gone = [Upstream::gone(), Upstream::gone()];
    let api = format!("{QUICK}attempts = 3");
    let gateway = before(&gone, &api).admin().start();
    assert_eq!(gateway.client().post("/").send().await.status, 502);
    let attempts = gateway
        .metric("upstream_attempts_total{upstream=\"api\"}")
        .await;
    // What nobody got can do no harm.
    assert!((attempts - 6.0).abs() < 0.5, "{attempts}");
}
