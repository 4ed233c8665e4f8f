//! Tests of the Redis clusters that other tests use. Each cluster has three servers.

use std::time::Duration;

use super::time::time_of;
use crate::support::redis::{RedisCluster, Reply};

#[test]
fn every_key_is_on_one_node_and_the_others_redirect_to_it() {
    let cluster = RedisCluster::start();
    assert_eq!(cluster.nodes().len(), 3);
    let mut used = [0; 3];
    for key in (0..100).map(|key| key.to_string()) {
        let home = cluster.node_of(&key);
        for (index, node) in cluster.nodes().iter().enumerate() {
            match node.command(&["SET", &key, "1"]) {
                Reply::Status(_) => {
                    assert_eq!(node.port(), home.port());
                    used[index] += 1;
                }
                Reply::Error(error) => {
                    let to = format!(" 127.0.0.1:{}", home.port());
                    assert!(
                        error.starts_with("MOVED ") && error.ends_with(&to),
                        "{error}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(used.iter().all(|&keys| keys > 10), "{used:?}");
    assert_eq!(cluster.calls("SET"), 100);
}

#[test]
fn a_restarted_node_rejoins_its_cluster() {
    let cluster = RedisCluster::start();
    let node = cluster.node_of("a");
    node.kill();
    node.restart();
    cluster.settle();
    assert_eq!(node.command(&["SET", "a", "1"]), Reply::Status("OK".into()));
}

#[test]
fn advancing_the_clock_affects_all_nodes() {
    let cluster = RedisCluster::in_fake_time();
    let node = cluster.node_of("a");
    for _ in 0..5 {
        node.command(&["SET", "a", "1", "PX", "3600000"]);
        let before: Vec<_> = cluster.nodes().iter().map(time_of).collect();
        cluster.advance(Duration::from_mins(59));
        assert_eq!(node.command(&["EXISTS", "a"]), Reply::Int(1));
        cluster.advance(Duration::from_mins(1) + Duration::from_millis(2));
        assert_eq!(node.command(&["EXISTS", "a"]), Reply::Int(0));
        for (node, before) in cluster.nodes().iter().zip(before) {
            assert!(time_of(node) >= before + Duration::from_hours(1));
        }
    }
}
