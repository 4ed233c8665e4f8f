//! A Redis that is not what the configuration says: somebody is told what is wrong, and all is served that can be.

use crate::api::Api;
use crate::gateways::{Setup, is_unavailable};
use crate::redis::{Garbage, Options, RedisCluster, RedisServer, Silent};

/// Three at once and no more for a long time.
const SCARCE: &str = "rate = \"1/m\"\nburst = 2";

/// A gateway with this Redis starts, says what is wrong, keeps its limits itself, and refuses keys.
async fn serves_without(setup: impl FnOnce(&Api) -> Setup, wrong: &str) {
    let api = Api::start();
    let gateway = setup(&api).limit(SCARCE).start();
    gateway.says(wrong);
    let log = gateway.log();
    let degraded = |line: &&str| line.contains("the store is degraded");
    for part in ["on_store_error", "idempotency keys"] {
        let mut lines = log.lines().filter(degraded);
        assert!(
            lines.any(|line| line.contains(part) && line.contains(wrong)),
            "{log}"
        );
    }
    let ready = gateway.readiness().await;
    for part in ["limits", "records"] {
        let said = format!("ready, degraded: {part}: ");
        let mut lines = ready.lines();
        assert!(lines.any(|line| line.starts_with(&said)), "{ready}");
    }
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(gateway.get().await.status);
        let refused = gateway.pay("key").await;
        assert!(is_unavailable(&refused), "{refused:?}");
    }
    let limited = statuses.pop();
    assert_eq!(limited, Some(429));
    assert!(
        statuses.iter().all(|it| (200..300).contains(it)),
        "{statuses:?}"
    );
    assert_eq!(api.times("key"), 0, "no key is carried out");
}

#[tokio::test]
async fn no_password_is_given_where_one_is_wanted() {
    let redis = RedisServer::options().password("s3cret").start();
    let setup = |api: &Api| Setup::before(api, &redis.url());
    serves_without(setup, "store.password_file").await;
}

#[tokio::test]
async fn the_password_is_wrong() {
    let redis = RedisServer::options().password("s3cret").start();
    let setup = |api: &Api| Setup::before(api, &redis.url()).store("password = \"guess\"");
    serves_without(setup, "check `store.user` and `store.password_file`").await;
}

#[tokio::test]
async fn the_user_may_not_do_what_is_asked() {
    let redis = RedisServer::options().user("app", "on >s3cret ~other:* &* +@all");
    let redis = redis.start();
    let setup = |api: &Api| {
        let setup = Setup::before(api, &redis.url());
        setup.store("user = \"app\"\npassword = \"s3cret\"")
    };
    serves_without(setup, "the user of `store.user` may not do this").await;
}

/// Nothing is wrong with this user, but the scripts ask for the time.
#[tokio::test]
async fn the_user_may_not_do_what_scripts_do() {
    let rules = "on >s3cret ~* &* +@all -time";
    let redis = RedisServer::options().user("app", rules).start();
    let api = Api::start();
    let setup = Setup::before(&api, &redis.url());
    let setup = setup.store("user = \"app\"\npassword = \"s3cret\"");
    let gateway = setup.start();
    let refused = gateway.pay("key").await;
    assert!(is_unavailable(&refused), "{refused:?}");
    assert_eq!(api.times("key"), 0);
    gateway.says("the user of `store.user` may not do this");
    let answer = gateway.get().await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
}

#[tokio::test]
async fn nobody_listens() {
    let redis = RedisServer::start();
    redis.kill();
    let setup = |api: &Api| Setup::before(api, &redis.url());
    serves_without(setup, "Connection refused").await;
}

#[tokio::test]
async fn the_name_is_nobodys() {
    let setup = |api: &Api| Setup::before(api, "redis://redis.invalid:6379");
    serves_without(setup, "redis.invalid").await;
}

#[tokio::test]
async fn it_speaks_something_else() {
    let garbage = Garbage::start();
    let setup = |api: &Api| Setup::before(api, &garbage.url());
    serves_without(setup, "whatever `store.url` names is not Redis").await;
}

#[tokio::test]
async fn it_says_nothing() {
    let silent = Silent::start();
    let setup = |api: &Api| Setup::before(api, &silent.url());
    serves_without(setup, "did not answer in time").await;
}

#[tokio::test]
async fn it_is_a_replica() {
    let primary = RedisServer::start();
    let replica = RedisServer::options().replica_of(&primary).start();
    let setup = |api: &Api| Setup::before(api, &replica.url());
    serves_without(setup, "`store.url` must name the primary").await;
}

fn forgetful() -> RedisServer {
    let options = RedisServer::options().arg("--maxmemory", "100mb");
    options.arg("--maxmemory-policy", "allkeys-lru").start()
}

#[tokio::test]
async fn one_that_forgets_keys_is_not_started_with() {
    let (api, redis) = (Api::start(), forgetful());
    let (mut process, _dir) = Setup::before(&api, &redis.url()).launch(&[]);
    assert!(!process.end().success());
    process.line_with("`maxmemory-policy` is `allkeys-lru`");
    process.line_with("CONFIG SET maxmemory-policy noeviction");
}

#[tokio::test]
async fn one_that_forgets_buckets_is_put_up_with() {
    let (api, redis) = (Api::start(), forgetful());
    let gateway = Setup::before(&api, &redis.url()).keyless().start();
    gateway.says("set its `maxmemory-policy` to `noeviction`");
    assert!(!gateway.log().contains("degraded"), "{}", gateway.log());
    let answer = gateway.get().await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
}

#[tokio::test]
async fn one_that_may_lose_keys_when_it_is_killed_is_warned_of() {
    const WARNING: &str = "Redis may lose idempotency keys when it is killed";
    let api = Api::start();
    let (careless, careful) = (
        RedisServer::start(),
        RedisServer::options().append_only().start(),
    );
    let gateway = Setup::before(&api, &careless.url()).start();
    gateway.says(WARNING);
    gateway.says("`appendfsync` to `always`");
    for setup in [
        Setup::before(&api, &careful.url()),
        Setup::before(&api, &careless.url()).keyless(),
    ] {
        let gateway = setup.start();
        gateway.says("the store is Redis");
        assert!(!gateway.log().contains(WARNING), "{}", gateway.log());
    }
}

/// The rights that `docs/fleet.md` lists for a user, and the additional one for a cluster.
#[tokio::test]
async fn a_user_of_a_cluster_needs_to_ask_where_its_slots_are() {
    let rules = "on >s3cret ~tidegate:* &tidegate:* +@read +@write +@scripting +@pubsub +@connection -@dangerous \
                 +time +wait +info +cluster|slots";
    let cluster = RedisCluster::with(Options::default().user("gate", rules));
    let api = Api::start();
    let setup = Setup::on_cluster(&api, &cluster.urls());
    let gateway = setup
        .store("user = \"gate\"\npassword = \"s3cret\"")
        .start();
    gateway.execute("key").await;
    gateway.replay("key").await;
    assert_eq!(gateway.readiness().await, "ready\n");
}
