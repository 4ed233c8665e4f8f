//! Tests of the distribution of requests among the servers of an upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Client, Gateway, Upstream, full};

/// Sends `times` requests one after the other on one connection.
async fn send_requests(client: &Client, times: usize) {
    let mut connection = client.keep_alive().await;
    for _ in 0..times {
        assert_eq!(connection.send(client.get("/")).await.status, 200);
    }
}

#[tokio::test]
async fn servers_get_requests_in_proportion_to_their_weights() {
    let (heavy, light) = (Upstream::replying(200), Upstream::replying(200));
    let gateway = Gateway::with(
        "[upstream.api]\n\
         servers = [{ url = \"{upstream}\", weight = 3 }, { url = \"{upstream}\", weight = 1 }]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(&heavy)
    .upstream(&light)
    .start();
    send_requests(&gateway.client(), 800).await;
    let (heavy, light) = (heavy.count(), light.count());
    println!("the server with weight 3 got {heavy} requests, the one with weight 1 got {light}");
    assert_eq!(heavy + light, 800);
    // The server with weight 1 should get 200 of 800 requests. The accepted range is wider than six standard deviations
    // on each side.
    assert!(
        (125..=275).contains(&light),
        "weight 3 got {heavy} requests, weight 1 got {light}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_gets_fewer_requests() {
    const CALLERS: usize = 16;
    const REQUESTS: usize = 2_000;
    let fast = Upstream::replying(200);
    let slow = Upstream::with(|_| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        full("late")
    });
    let gateway = Gateway::with_servers(2, "")
        .with_section("[server]\nworkers = 2")
        .upstream(&fast)
        .upstream(&slow)
        .start();
    let left = Arc::new(AtomicUsize::new(REQUESTS));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (client, left) = (gateway.client(), Arc::clone(&left));
        callers.spawn(async move {
            let mut connection = client.keep_alive().await;
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
            {
                assert_eq!(connection.send(client.get("/")).await.status, 200);
            }
        });
    }
    callers.join_all().await;
    let (fast, slow) = (fast.count(), slow.count());
    println!("the fast server got {fast} requests, the slow server got {slow}");
    assert_eq!(fast + slow, REQUESTS);
    assert!(
        (1..=REQUESTS / 5).contains(&slow),
        "the fast server got {fast} requests, the slow one {slow}"
    );
}

#[tokio::test]
async fn a_restored_server_gets_its_share_gradually() {
    let (other, restored) = (Upstream::replying(200), Upstream::replying(200));
    let gateway = Gateway::with_servers(2, "slow_start = \"8s\"")
        .upstream(&other)
        .upstream(&restored)
        .admin()
        .start();
    let circuit = format!("/admin/v1/upstreams/api/servers/{}", restored.address());
    let set_circuit = async |how: &str| {
        let target = format!("{circuit}/{how}");
        assert_eq!(gateway.admin().post(&target).send().await.status, 200);
    };
    set_circuit("open").await;
    send_requests(&gateway.client(), 20).await;
    assert_eq!(restored.count(), 0);
    set_circuit("close").await;
    let restored_at = Instant::now();

    // Returns the share of the requests that the restored server gets during the next second, from 0 to 1.
    let share = async || {
        let (other_count, restored_count) = (other.count(), restored.count());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(1) {
            send_requests(&gateway.client(), 25).await;
        }
        let (other_count, restored_count) = (
            other.count() - other_count,
            restored.count() - restored_count,
        );
        let count = |count: usize| {
            f64::from(u32::try_from(count).expect("the number should fit in 32 bits"))
        };
        count(restored_count) / count(other_count + restored_count)
    };
    let at_first = share().await;
    tokio::time::sleep(Duration::from_secs(4).saturating_sub(restored_at.elapsed())).await;
    let half_way = share().await;
    tokio::time::sleep(Duration::from_secs(8).saturating_sub(restored_at.elapsed())).await;
    let at_the_end = share().await;
    println!(
        "share of requests of one restored server of two during slow start: \
         {at_first:.2} at the start, {half_way:.2} half-way, {at_the_end:.2} at the end"
    );
    assert!((0.01..0.2).contains(&at_first), "{at_first}");
    assert!(half_way > at_first);
    assert!((0.4..0.6).contains(&at_the_end), "{at_the_end}");
}
