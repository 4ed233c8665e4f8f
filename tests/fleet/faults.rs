//! What happens to a Redis while two gateways are at work with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::gateways::{Gateway, Setup};
use crate::harness::eventually;
use crate::load::{Load, Tally, p99};
use crate::redis::RedisServer;
use crate::slow::SlowWay;

/// How long all is well at first, for comparison.
const BASELINE: Duration = Duration::from_secs(1);

/// How long the trouble lasts after it has shown.
const TROUBLE: Duration = Duration::from_millis(1_500);

/// How long all is well again before the end.
const AFTER: Duration = Duration::from_millis(500);

/// How soon gateways are well again when Redis is.
const RECOVERY: Duration = Duration::from_secs(2);

/// What a decision on limits may take longer than usual: its timeout of 50 ms, and what a busy machine adds.
const DELAY: Duration = Duration::from_millis(150);

/// No answer takes longer.
const LONGEST: Duration = Duration::from_millis(500);

/// Nor does one with a key: a claim that cannot be concluded is held for its lease of two seconds, and a
/// duplicate waits no longer than that.
const LONGEST_KEYED: Duration = Duration::from_secs(5);

struct Scene {
    api: Api,
    redis: RedisServer,
    gateways: Arc<[Gateway; 2]>,
}

/// What was seen of it.
struct Seen {
    tally: Tally,
    /// When the trouble began.
    fault: Instant,
    /// When Redis was well again.
    healed: Instant,
}

impl Scene {
    fn with(redis: RedisServer) -> Self {
        let url = redis.url();
        Self::by_way_of(&url, redis)
    }

    fn by_way_of(url: &str, redis: RedisServer) -> Self {
        let api = Api::start();
        let setup = Setup::before(&api, url)
            .store("lease = \"2s\"")
            .upstream("timeout = \"1s\"")
            .keyed("wait_timeout = \"2s\"");
        let gateways = Arc::new([setup.start(), setup.start()]);
        Self {
            api,
            redis,
            gateways,
        }
    }

    /// Runs under load while `fault` happens, for as long as it lasts, and until some time after `heal`. What all
    /// faults have in common is made sure of here.
    async fn endure(
        &self,
        fault: impl FnOnce(&RedisServer),
        lasts: Duration,
        heal: impl FnOnce(&RedisServer),
    ) -> Seen {
        let load = Load::on(&self.gateways);
        let began = Instant::now();
        tokio::time::sleep(BASELINE).await;
        let fault_at = Instant::now();
        tokio::task::block_in_place(|| fault(&self.redis));
        if lasts > Duration::ZERO {
            tokio::time::sleep(lasts).await;
            self.is_degraded().await;
        }
        tokio::task::block_in_place(|| heal(&self.redis));
        let healed = Instant::now();
        let recovery = self.recovers().await;
        let recovered = Instant::now();
        tokio::time::sleep(AFTER).await;
        let ended = Instant::now();
        let tally = load.end().await;

        let (usual, _) = p99(&tally.plain, began, fault_at);
        let (troubled, longest) = p99(&tally.plain, fault_at, ended);
        let (_, longest_keyed) = p99(&tally.keyed, began, ended);
        eprintln!(
            "{} requests without a key: p99 {usual:?} before and {troubled:?} in trouble, {longest:?} at most; \
             {} with one: {longest_keyed:?} at most; well again after {recovery:?}",
            tally.plain.len(),
            tally.keyed.len(),
        );
        assert!(troubled <= usual + DELAY, "{usual:?}, {troubled:?}");
        assert!(longest <= usual + LONGEST, "{longest:?}");
        assert!(longest_keyed <= usual + LONGEST_KEYED, "{longest_keyed:?}");
        let failed = tally.plain.iter().find(|it| !it.is_done());
        assert!(failed.is_none(), "{failed:?}");
        assert!(recovery < RECOVERY, "{recovery:?}");
        // What began before may be refused yet: keys whose claims have to lapse.
        let mut keyed = tally.keyed.iter().filter(|it| it.began > recovered);
        assert!(keyed.all(|it| it.status != 503), "refused when all is well");
        Seen {
            tally,
            fault: fault_at,
            healed,
        }
    }

    /// Both gateways say so.
    async fn is_degraded(&self) {
        for gateway in &*self.gateways {
            let ready = gateway.readiness().await;
            assert!(ready.starts_with("ready, degraded: limits: "), "{ready}");
            let sample = "store_degraded{part=\"limits\"}";
            assert_eq!(gateway.metric(sample).await, 1);
        }
    }

    /// Waits until both gateways are well and keys can be had at both.
    async fn recovers(&self) -> Duration {
        let mut attempt = 0;
        eventually("all is well again", async || {
            attempt += 1;
            for (number, gateway) in self.gateways.iter().enumerate() {
                let key = format!("probe-{number}-{attempt}");
                let answer = gateway.pay(&key).await;
                let ready = gateway.readiness().await;
                if answer.status >= 300 || ready != "ready\n" {
                    return false;
                }
                assert_eq!(gateway.metric("store_degraded").await, 0);
            }
            true
        })
        .await
    }

    /// No key was carried out twice, and what was told of each is still told everywhere.
    async fn kept_all(&self, seen: &Seen) {
        assert_eq!(self.api.repeated(), Vec::<String>::new());
        let mut replayed = 0;
        for (key, answers) in &seen.tally.answers {
            let (_, first) = &answers[0];
            for (_, print) in answers {
                assert_eq!(print, first, "{key}");
            }
            // Those from around the trouble are looked at again.
            let near = Duration::from_millis(300);
            if answers
                .iter()
                .any(|(at, _)| *at + near > seen.fault && *at < seen.healed + near)
            {
                replayed += 1;
                assert_eq!(self.gateways[replayed % 2].replay(key).await, *first);
            }
        }
        assert!(replayed > 0, "there were some");
    }

    /// Both gateways have said this.
    fn both_say(&self, part: &str) {
        for gateway in &*self.gateways {
            gateway.says(part);
        }
    }

    /// Both gateways noticed, and said what they do about it.
    fn both_noticed(&self) {
        self.both_say("Redis does not decide on limits");
        self.both_say("Redis decides on limits again");
    }
}

fn durable() -> RedisServer {
    RedisServer::options().append_only().start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back() {
    let scene = Scene::with(durable());
    let endured = scene.endure(RedisServer::kill, TROUBLE, RedisServer::restart);
    let seen = endured.await;
    scene.both_noticed();
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
