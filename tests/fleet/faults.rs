//! What happens to a Redis while two gateways are at work with it.

mod scene;

use std::cell::Cell;
use std::time::Duration;

use self::scene::Scene;
use crate::redis::{Options, RedisCluster, RedisServer};
use crate::slow::SlowWay;

/// How long the trouble lasts after it has shown.
const TROUBLE: Duration = Duration::from_millis(1_500);

fn durable() -> RedisServer {
    RedisServer::options().append_only().start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back() {
    let scene = Scene::with(durable());
    let endured = scene.endure(RedisServer::kill, TROUBLE, RedisServer::restart);
    let seen = endured.await;
    scene.both_noticed();
    scene.both_said_little();
    scene.both_say("Redis does not keep idempotency keys");
    scene.both_say("Redis was restarted");
    scene.kept_all(&seen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_stands_still_and_goes_on() {
    let scene = Scene::with(RedisServer::start());
    let endured = scene.endure(RedisServer::freeze, TROUBLE, RedisServer::thaw);
    let seen = endured.await;
    scene.both_noticed();
    scene.both_said_little();
    scene.kept_all(&seen).await;
    for gateway in &*scene.gateways {
        assert!(!gateway.log().contains("Redis was restarted"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_full_and_has_room_again() {
    let scene = Scene::with(RedisServer::start());
    let endured = scene.endure(RedisServer::fill, TROUBLE, RedisServer::unfill);
    let seen = endured.await;
    scene.both_noticed();
    scene.both_said_little();
    scene.kept_all(&seen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_takes_no_writes_and_takes_them_again() {
    let scene = Scene::with(RedisServer::start());
    let replicas = |wanted: &'static str| {
        move |redis: &RedisServer| {
            redis.command(&["CONFIG", "SET", "min-replicas-to-write", wanted]);
        }
    };
    let seen = scene.endure(replicas("1"), TROUBLE, replicas("0")).await;
    scene.both_noticed();
    scene.both_said_little();
    scene.both_say("Redis does not keep idempotency keys");
    scene.kept_all(&seen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_restarted_with_all_it_had() {
    let scene = Scene::with(durable());
    let endured = scene.endure(RedisServer::kill, Duration::ZERO, RedisServer::restart);
    let seen = endured.await;
    scene.both_say("Redis was restarted");
    scene.kept_all(&seen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_restarted_without_anything() {
    let scene = Scene::with(durable());
    let endured = scene.endure(
        RedisServer::kill,
        Duration::ZERO,
        RedisServer::restart_empty,
    );
    let seen = endured.await;
    scene.both_say("Redis was restarted");
    // A key is carried out again only if it was before what was known of it was lost.
    let mut again = 0;
    for (key, answers) in &seen.tally.answers {
        let times = scene.api.times(key);
        assert!(times <= 2, "{key} was carried out {times} times");
        let (first, _) = answers[0];
        assert!(times == 1 || first < seen.healed, "{key}");
        again += usize::from(times == 2);
        let after = answers.iter().filter(|(at, _)| *at > seen.healed);
        let after: Vec<_> = after.map(|(_, print)| print).collect();
        assert!(after.windows(2).all(|pair| pair[0] == pair[1]), "{key}");
    }
    assert!(again > 0, "what was lost was asked for again");
}

/// As a failover looks to whoever still asks the old primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_made_a_replica_and_a_primary_again() {
    let scene = Scene::with(RedisServer::start());
    let other = RedisServer::options().replica_of(&scene.redis).start();
    let demote = |redis: &RedisServer| {
        other.command(&["REPLICAOF", "NO", "ONE"]);
        let port = other.port().to_string();
        redis.command(&["REPLICAOF", "127.0.0.1", &port]);
    };
    let promote = |redis: &RedisServer| {
        redis.command(&["REPLICAOF", "NO", "ONE"]);
    };
    scene.endure(demote, TROUBLE, promote).await;
    scene.both_noticed();
    scene.both_say("must name the primary");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_too_slow_for_limits_and_not_for_keys() {
    let redis = RedisServer::start();
    let way = SlowWay::to(redis.port()).await;
    let scene = Scene::by_way_of(&way.url(), redis);
    let slow = |_: &RedisServer| way.take(Duration::from_millis(100));
    let quick = |_: &RedisServer| way.take(Duration::ZERO);
    let seen = scene.endure(slow, TROUBLE, quick).await;
    scene.both_noticed();
    let refused = seen.tally.keyed.iter().find(|it| !it.is_done());
    assert!(refused.is_none(), "{refused:?}");
    scene.kept_all(&seen).await;
}

/// The node that has the most: the keys of all clients are one scope's, and so on one node.
fn busiest(cluster: &RedisCluster) -> usize {
    let sizes = cluster.nodes().iter();
    let sizes = sizes.map(|node| node.command(&["DBSIZE"]).int());
    let (_, busiest) = sizes.zip(0..).max().unwrap();
    busiest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_stands_still_and_goes_on() {
    let scene = Scene::on(RedisCluster::start());
    let node = Cell::new(0);
    let freeze = |cluster: &RedisCluster| {
        node.set(busiest(cluster));
        cluster.nodes()[node.get()].freeze();
    };
    let thaw = |cluster: &RedisCluster| cluster.nodes()[node.get()].thaw();
    let seen = scene.endure(freeze, TROUBLE, thaw).await;
    scene.both_noticed();
    scene.kept_all(&seen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_killed_and_comes_back() {
    let scene = Scene::on(RedisCluster::with(Options::default().append_only()));
    let node = Cell::new(0);
    let kill = |cluster: &RedisCluster| {
        node.set(busiest(cluster));
        cluster.nodes()[node.get()].kill();
    };
    let restart = |cluster: &RedisCluster| {
        cluster.nodes()[node.get()].restart();
        cluster.settle();
    };
    let seen = scene.endure(kill, Duration::ZERO, restart).await;
    scene.both_say("Redis was restarted");
    scene.kept_all(&seen).await;
}
