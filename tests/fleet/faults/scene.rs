//! Two gateways under load, and what is true of them whatever happens to their Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::gateways::{Gateway, Setup};
use crate::harness::eventually;
use crate::load::{Load, Tally, p99};
use crate::redis::{RedisCluster, RedisServer};

/// How long all is well at first, for comparison.
const BASELINE: Duration = Duration::from_secs(1);

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

/// Two gateways that share a Redis, and what is behind them.
pub(super) struct Scene<R> {
    pub(super) api: Api,
    pub(super) redis: R,
    pub(super) gateways: Arc<[Gateway; 2]>,
}

/// What was seen of it.
pub(super) struct Seen {
    pub(super) tally: Tally,
    /// When the trouble began.
    fault: Instant,
    /// When Redis was well again.
    pub(super) healed: Instant,
}

impl Scene<RedisServer> {
    pub(super) fn with(redis: RedisServer) -> Self {
        let url = redis.url();
        Self::by_way_of(&url, redis)
    }

    pub(super) fn by_way_of(url: &str, redis: RedisServer) -> Self {
        Self::of(redis, |api| Setup::before(api, url))
    }
}

impl Scene<RedisCluster> {
    pub(super) fn on(cluster: RedisCluster) -> Self {
        let nodes = cluster.urls();
        Self::of(cluster, |api| Setup::on_cluster(api, &nodes))
    }
}

impl<R> Scene<R> {
    fn of(redis: R, setup: impl FnOnce(&Api) -> Setup) -> Self {
        let api = Api::start();
        let setup = setup(&api)
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

    /// Runs under load while `fault` happens, for as long as it lasts and until it is noticed, and then until some
    /// time after `heal`. What all faults have in common is made sure of here.
    pub(super) async fn endure(
        &self,
        fault: impl FnOnce(&R),
        lasts: Duration,
        heal: impl FnOnce(&R),
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

    /// Waits until both gateways say so.
    async fn is_degraded(&self) {
        eventually("both gateways notice", async || {
            for gateway in &*self.gateways {
                let ready = gateway.readiness().await;
                let sample = "store_degraded{part=\"limits\"}";
                if !ready.starts_with("ready, degraded: limits: ")
                    || gateway.metric(sample).await != 1
                {
                    return false;
                }
            }
            true
        })
        .await;
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
    pub(super) async fn kept_all(&self, seen: &Seen) {
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
    pub(super) fn both_say(&self, part: &str) {
        for gateway in &*self.gateways {
            gateway.says(part);
        }
    }

    /// Neither gateway changed its mind all the time.
    pub(super) fn both_said_little(&self) {
        for gateway in &*self.gateways {
            let log = gateway.log();
            let said = |part: &str| log.lines().filter(|it| it.contains(part)).count();
            // Once for limits and once for keys; a moment of doubt when it comes back is forgiven.
            let (degraded, client) = (said("the store is degraded"), said(" redis::"));
            assert!(degraded <= 6 && client == 0, "{degraded}, {client}: {log}");
        }
    }

    /// Both gateways noticed, and said what they do about it.
    pub(super) fn both_noticed(&self) {
        self.both_say("Redis does not decide on limits");
        self.both_say("Redis decides on limits again");
    }
}
