//! Two gateways under load while their Redis has a fault, and the assertions that apply to every fault.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fleet::gateways::Setup;
use crate::fleet::load::{Load, LoadResults, p99};
use crate::fleet::upstream_api::Api;
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::{Process, eventually};

/// How long the load runs before the fault, for comparison.
const BASELINE: Duration = Duration::from_secs(1);

/// How long the load runs after the recovery.
const AFTER: Duration = Duration::from_millis(500);

/// Maximum time between the recovery of Redis and the recovery of the gateways.
const RECOVERY: Duration = Duration::from_secs(2);

/// Maximum increase of the 99th percentile of the durations of requests without an idempotency key. The value allows
/// for the timeout of Redis commands for rate limits (50 ms), and for the delays of a busy machine.
const P99_INCREASE: Duration = Duration::from_millis(150);

/// Maximum duration of a request without an idempotency key, in addition to the 99th percentile before the fault.
const LONGEST: Duration = Duration::from_millis(500);

/// Maximum duration of a request with an idempotency key, in addition to the 99th percentile before the fault. A
/// duplicate request waits for at most 2 s, which is also the lease of a claim that cannot be ended. The other 3 s
/// allow for the upstream timeout of 1 s and for a busy machine.
const LONGEST_KEYED: Duration = Duration::from_secs(5);

/// Two gateways that share a Redis, and the API that is their upstream.
pub(super) struct FaultTest<R> {
    pub(super) api: Api,
    pub(super) redis: R,
    pub(super) gateways: Arc<[Process; 2]>,
}

/// Results of the load, and the times at which the fault began and ended.
pub(super) struct FaultResults {
    pub(super) results: LoadResults,
    /// When the fault began.
    fault: Instant,
    /// When the fault ended.
    pub(super) recovered: Instant,
}

impl FaultTest<RedisServer> {
    pub(super) fn with(redis: RedisServer) -> Self {
        let url = redis.url();
        Self::through(&url, redis)
    }

    pub(super) fn through(url: &str, redis: RedisServer) -> Self {
        Self::of(redis, |api| Setup::new(api, url))
    }
}

impl FaultTest<RedisCluster> {
    pub(super) fn on(cluster: RedisCluster) -> Self {
        let nodes = cluster.urls();
        Self::of(cluster, |api| Setup::on_cluster(api, &nodes))
    }
}

impl<R> FaultTest<R> {
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

    /// Puts the gateways under load and causes `fault`. Ends the fault with `recover` after `lasts`, but not before
    /// both gateways have detected it. If `lasts` is zero, ends the fault immediately. Asserts that durations, statuses
    /// and recovery are as expected.
    pub(super) async fn run_with_fault(
        &self,
        fault: impl FnOnce(&R),
        lasts: Duration,
        recover: impl FnOnce(&R),
    ) -> FaultResults {
        let load = Load::start(&self.gateways);
        let began = Instant::now();
        tokio::time::sleep(BASELINE).await;
        let fault_at = Instant::now();
        tokio::task::block_in_place(|| fault(&self.redis));
        if lasts > Duration::ZERO {
            tokio::time::sleep(lasts).await;
            self.wait_until_degraded().await;
        }
        tokio::task::block_in_place(|| recover(&self.redis));
        let recovered = Instant::now();
        let recovery = self.wait_for_recovery().await;
        let ready = Instant::now();
        tokio::time::sleep(AFTER).await;
        let ended = Instant::now();
        let results = load.stop().await;

        let (usual, _) = p99(&results.plain, began, fault_at);
        let (in_fault, longest) = p99(&results.plain, fault_at, ended);
        let (_, longest_keyed) = p99(&results.keyed, began, ended);
        eprintln!(
            "{} requests without a key: p99 {usual:?} before and {in_fault:?} during the fault, maximum {longest:?}; \
             {} with a key: maximum {longest_keyed:?}; recovered after {recovery:?}",
            results.plain.len(),
            results.keyed.len(),
        );
        assert!(in_fault <= usual + P99_INCREASE, "{usual:?}, {in_fault:?}");
        assert!(longest <= usual + LONGEST, "{longest:?}");
        assert!(longest_keyed <= usual + LONGEST_KEYED, "{longest_keyed:?}");
        let failed = results.plain.iter().find(|it| !it.is_success());
        assert!(failed.is_none(), "{failed:?}");
        assert!(recovery < RECOVERY, "{recovery:?}");
        // Requests that began before both gateways had recovered can get a 503, so they are not checked. Later requests
        // can get a 409, because a claim from before the recovery can be in flight or have an unknown outcome.
        let mut keyed = results.keyed.iter().filter(|it| it.began > ready);
        assert!(
            keyed.all(|it| it.status != 503),
            "rejected after the recovery"
        );
        FaultResults {
            results,
            fault: fault_at,
            recovered,
        }
    }

    /// Waits until both gateways report on `/readyz` that rate limits are degraded.
    async fn wait_until_degraded(&self) {
        eventually("both gateways are degraded", async || {
            for gateway in &*self.gateways {
                let ready = gateway.readyz().await;
                let sample = "store_degraded{part=\"limits\"}";
                if !ready.starts_with("ready, degraded: limits: ")
                    || gateway.metric_sum(sample).await != 1
                {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Waits until both gateways are ready and execute requests with an idempotency key. Returns how long this took.
    async fn wait_for_recovery(&self) -> Duration {
        let mut attempt = 0;
        eventually("both gateways recover", async || {
            attempt += 1;
            for (number, gateway) in self.gateways.iter().enumerate() {
                let key = format!("probe-{number}-{attempt}");
                let response = gateway.pay(&key).await;
                let ready = gateway.readyz().await;
                if response.status >= 300 || ready != "ready\n" {
                    return false;
                }
                assert_eq!(gateway.metric_sum("store_degraded").await, 0);
            }
            true
        })
        .await
    }

    /// Asserts that each idempotency key had at most one execution, and that both gateways replay the same response.
    pub(super) async fn assert_executed_once(&self, observed: &FaultResults) {
        assert_eq!(self.api.repeated(), Vec::<String>::new());
        let mut replayed = 0;
        for (key, responses) in &observed.results.responses {
            let (_, first) = &responses[0];
            for (_, content) in responses {
                assert_eq!(content, first, "{key}");
            }
            // Only idempotency keys that got a response during the fault, or at most 300 ms before or after it, are
            // sent again.
            let near = Duration::from_millis(300);
            if responses
                .iter()
                .any(|(at, _)| *at + near > observed.fault && *at < observed.recovered + near)
            {
                replayed += 1;
                assert_eq!(self.gateways[replayed % 2].replay(key).await, *first);
            }
        }
        assert!(replayed > 0, "no key was sent around the fault");
    }

    /// Waits until the logs of both gateways contain `part`.
    pub(super) fn wait_for_logs(&self, part: &str) {
        for gateway in &*self.gateways {
            gateway.wait_for_line(part);
        }
    }

    /// Asserts that the gateways logged few degradations, and no messages of the Redis library.
    pub(super) fn assert_few_messages(&self) {
        for gateway in &*self.gateways {
            let log = gateway.log();
            let count = |part: &str| log.lines().filter(|it| it.contains(part)).count();
            // A fault causes two messages: one for rate limits and one for records. The limit of 6 is higher, because a
            // circuit breaker can open again during the recovery.
            let (degraded, client) = (count("store degraded"), count(" redis::"));
            assert!(degraded <= 6 && client == 0, "{degraded}, {client}: {log}");
        }
    }

    /// Asserts that both gateways logged the degradation and the recovery of rate limits.
    pub(super) fn assert_noticed(&self) {
        self.wait_for_logs("Redis cannot be used for rate limits");
        self.wait_for_logs("limits use Redis again");
    }
}
