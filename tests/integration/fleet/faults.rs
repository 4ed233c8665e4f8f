//! Tests of faults of Redis while two gateways are under load.

mod fault_test;

use std::cell::Cell;
use std::time::Duration;

use self::fault_test::FaultTest;
use crate::fleet::slow_proxy::SlowProxy;
use crate::support::redis::{Options, RedisCluster, RedisServer};

/// Minimum duration of a fault.
const FAULT: Duration = Duration::from_millis(1_500);

fn durable() -> RedisServer {
    RedisServer::options().append_only().start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_redis_crashes_and_restarts() {
    let test = FaultTest::with(durable());
    let run = test.run_with_fault(RedisServer::kill, FAULT, RedisServer::restart);
    let observed = run.await;
    test.assert_noticed();
    test.assert_few_messages();
    test.wait_for_logs("Redis cannot be used for idempotency records");
    test.wait_for_logs("Redis restarted");
    test.assert_executed_once(&observed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_redis_freezes() {
    let test = FaultTest::with(RedisServer::start());
    let run = test.run_with_fault(RedisServer::freeze, FAULT, RedisServer::thaw);
    let observed = run.await;
    test.assert_noticed();
    test.assert_few_messages();
    test.assert_executed_once(&observed).await;
    for gateway in &*test.gateways {
        assert!(!gateway.log().contains("Redis restarted"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_redis_runs_out_of_memory() {
    let test = FaultTest::with(RedisServer::start());
    let run = test.run_with_fault(RedisServer::fill, FAULT, RedisServer::unfill);
    let observed = run.await;
    test.assert_noticed();
    test.assert_few_messages();
    test.assert_executed_once(&observed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_redis_rejects_writes() {
    let test = FaultTest::with(RedisServer::start());
    let replicas = |wanted: &'static str| {
        move |redis: &RedisServer| {
            redis.command(&["CONFIG", "SET", "min-replicas-to-write", wanted]);
        }
    };
    let observed = test
        .run_with_fault(replicas("1"), FAULT, replicas("0"))
        .await;
    test.assert_noticed();
    test.assert_few_messages();
    test.wait_for_logs("Redis cannot be used for idempotency records");
    test.assert_executed_once(&observed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_executes_twice_when_redis_restarts_with_its_data() {
    let test = FaultTest::with(durable());
    let run = test.run_with_fault(RedisServer::kill, Duration::ZERO, RedisServer::restart);
    let observed = run.await;
    test.wait_for_logs("Redis restarted");
    test.assert_executed_once(&observed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_keys_that_redis_lost_execute_again() {
    let test = FaultTest::with(durable());
    let run = test.run_with_fault(
        RedisServer::kill,
        Duration::ZERO,
        RedisServer::restart_empty,
    );
    let observed = run.await;
    test.wait_for_logs("Redis restarted");
    // A request can be executed twice only if its first execution was before the restart.
    let mut repeated = 0;
    for (key, responses) in &observed.results.responses {
        let times = test.api.times(key);
        assert!(times <= 2, "{key} was executed {times} times");
        let (first, _) = responses[0];
        assert!(times == 1 || first < observed.recovered, "{key}");
        repeated += usize::from(times == 2);
        let after = responses.iter().filter(|(at, _)| *at > observed.recovered);
        let after: Vec<_> = after.map(|(_, content)| content).collect();
        assert!(after.windows(2).all(|pair| pair[0] == pair[1]), "{key}");
    }
    assert!(repeated > 0, "no lost key was sent again");
}

/// This test simulates a failover for gateways that still call the old primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_redis_is_a_replica_for_a_time() {
    let test = FaultTest::with(RedisServer::start());
    let other = RedisServer::options().replica_of(&test.redis).start();
    let demote = |redis: &RedisServer| {
        other.command(&["REPLICAOF", "NO", "ONE"]);
        let port = other.port().to_string();
        redis.command(&["REPLICAOF", "127.0.0.1", &port]);
    };
    let promote = |redis: &RedisServer| {
        redis.command(&["REPLICAOF", "NO", "ONE"]);
    };
    test.run_with_fault(demote, FAULT, promote).await;
    test.assert_noticed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_too_slow_for_limits_still_serves_keys() {
    let redis = RedisServer::start();
    let proxy = SlowProxy::to(redis.port()).await;
    let test = FaultTest::through(&proxy.url(), redis);
    let slow = |_: &RedisServer| proxy.set_delay(Duration::from_millis(100));
    let fast = |_: &RedisServer| proxy.set_delay(Duration::ZERO);
    let observed = test.run_with_fault(slow, FAULT, fast).await;
    test.assert_noticed();
    let rejected = observed.results.keyed.iter().find(|it| !it.is_success());
    assert!(rejected.is_none(), "{rejected:?}");
    test.assert_executed_once(&observed).await;
}

/// Returns the index of the node with the most Redis keys. All clients have the same scope, so all their records are on
/// one node.
fn busiest(cluster: &RedisCluster) -> usize {
    let sizes = cluster.nodes().iter();
    let sizes = sizes.map(|node| node.command(&["DBSIZE"]).int());
    let (_, busiest) = sizes.zip(0..).max().unwrap();
    busiest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_a_cluster_node_freezes() {
    let test = FaultTest::on(RedisCluster::start());
    let node = Cell::new(0);
    let freeze = |cluster: &RedisCluster| {
        node.set(busiest(cluster));
        cluster.nodes()[node.get()].freeze();
    };
    let thaw = |cluster: &RedisCluster| cluster.nodes()[node.get()].thaw();
    let observed = test.run_with_fault(freeze, FAULT, thaw).await;
    test.assert_noticed();
    test.assert_executed_once(&observed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_recover_after_a_cluster_node_crashes_and_restarts() {
    let test = FaultTest::on(RedisCluster::with(Options::default().append_only()));
    let node = Cell::new(0);
    let kill = |cluster: &RedisCluster| {
        node.set(busiest(cluster));
        cluster.nodes()[node.get()].kill();
    };
    let restart = |cluster: &RedisCluster| {
        cluster.nodes()[node.get()].restart();
        cluster.settle();
    };
    let observed = test.run_with_fault(kill, Duration::ZERO, restart).await;
    test.wait_for_logs("Redis restarted");
    test.assert_executed_once(&observed).await;
}
