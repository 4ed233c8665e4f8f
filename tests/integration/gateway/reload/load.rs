//! Reloads under load on each store: no request fails, no client gets more than the policies allow, no key is executed
//! twice, and memory does not grow. The environment variable `RELOAD_ROUNDS` sets the number of reloads.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::traffic::{Executions, Limited, ROUTES, Traffic};
use super::{Reloaded, config};
use crate::support::redis::RedisServer;
use crate::support::{Upstream, env_number, eventually};

const DEFAULT_ROUNDS: u64 = 30;

const PAUSE: Duration = Duration::from_millis(60);

/// Rates per second and capacities of the limit. Every third reload selects the next.
const QUOTAS: [(f64, f64); 4] = [(20.0, 21.0), (40.0, 11.0), (10.0, 40.0), (10.0, 5.0)];

/// When a quota was in force for certain.
struct InForce {
    quota: (f64, f64),
    from: Instant,
    to: Instant,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_with_the_memory_store() {
    assert_undisturbed("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_with_the_disk_store() {
    assert_undisturbed("[store]\nbackend = \"disk\"\npath = \"data\"\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_with_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    assert_undisturbed(&format!("[store]\nbackend = \"redis\"\nurl = \"{url}\"\n")).await;
}

async fn assert_undisturbed(store: &str) {
    let rounds = env_number("RELOAD_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    let executions = Executions::default();
    let upstream = executions.upstream();
    let gateway = Reloaded::start(&configured(&upstream, store, 0));
    let traffic = Traffic::start(&gateway.client(), false, true);
    let mut in_force: Vec<InForce> = Vec::new();
    let (mut from, mut memory) = (Instant::now(), 0);
    for round in 1..=rounds {
        sleep(PAUSE).await;
        let to = Instant::now();
        gateway.reload(&configured(&upstream, store, round)).await;
        let quota = quota(round - 1);
        in_force.push(InForce { quota, from, to });
        from = Instant::now();
        if round == rounds / 2 {
            memory = gateway.process.memory("VmRSS");
        }
    }
    sleep(PAUSE).await;
    let memory_after = gateway.process.memory("VmRSS");
    in_force.push(InForce {
        quota: quota(rounds),
        from,
        to: Instant::now(),
    });
    let tally = traffic.stop().await;
    let (used, allowed) = (used(&tally.limited), allowed(&in_force, &tally.limited));
    println!(
        "reload: {rounds} reloads, {} requests, {} keys, {used:.1} buckets used of {allowed:.1} allowed, {memory} KiB, \
         then {memory_after} KiB",
        tally.requests, tally.keys
    );
    assert!(used <= allowed, "{used} of {allowed}");
    // Otherwise the policies are not exhausted, and the test would not notice an extra admission.
    assert!(used > 0.7 * allowed, "{used} of {allowed}");
    assert_eq!(executions.repeated(), Vec::<String>::new());
    assert!(
        memory_after * 100 < memory * 105,
        "{memory} KiB, then {memory_after} KiB"
    );
}

fn quota(round: u64) -> (f64, f64) {
    let index = usize::try_from(round / 3).unwrap();
    QUOTAS[index % QUOTAS.len()]
}

fn configured(upstream: &Upstream, store: &str, round: u64) -> String {
    let (rate, capacity) = quota(round);
    let burst = capacity - 1.0;
    let unrelated = format!("[[route]]\nname = \"other-{round}\"\npath = \"/other\"\n");
    let limit = format!("[limit.device]\nrate = \"{rate}/s\"\nburst = {burst}\n");
    let log = "[log]\naccess = false\n";
    config(upstream, &format!("{log}{store}{limit}{unrelated}{ROUTES}"))
}

/// Returns the used part of buckets: an admitted request uses one of the tokens that the bucket has under its quota.
fn used(limited: &[Limited]) -> f64 {
    let admitted = limited.iter().filter_map(|it| it.admitted_of);
    admitted.map(|capacity| 1.0 / capacity).sum()
}

/// Returns how many buckets the policies allow: a full one, and what is refilled. While a reload runs, and until the next
/// request after it, the faster refill of both quotas counts.
fn allowed(in_force: &[InForce], limited: &[Limited]) -> f64 {
    let refill = |(rate, capacity): (f64, f64)| rate / capacity;
    let (first, last) = (limited[0].sent, limited.iter().map(|it| it.received).max());
    let last = last.expect("there are requests");
    let mut allowed = 1.0;
    let mut at = first;
    for (index, period) in in_force.iter().enumerate() {
        let end = period.to.min(last);
        allowed += end.saturating_duration_since(at).as_secs_f64() * refill(period.quota);
        at = at.max(end);
        let Some(next) = in_force.get(index + 1) else {
            break;
        };
        let charged = limited.iter().find(|it| it.sent > next.from);
        let settled = charged
            .map_or(last, |it| it.received)
            .max(next.from)
            .min(last);
        let faster = refill(period.quota).max(refill(next.quota));
        allowed += settled.saturating_duration_since(at).as_secs_f64() * faster;
        at = at.max(settled);
    }
    allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_invalid_files_do_not_disturb_the_service() {
    let upstream = Upstream::echo();
    let limit = "[limit.device]\nrate = \"10/s\"\n";
    let valid = config(&upstream, &format!("{limit}{ROUTES}"));
    let gateway = Reloaded::start(&valid);
    let hash = gateway.status().await["hash"].take();
    let client = gateway.client();
    let (mut rejected, mut files) = (0, 0);
    while rejected < 1_000 {
        files += 1;
        let changed = changed(&valid);
        gateway.files.write_config(&changed);
        let response = gateway.post().await;
        match response.status {
            422 => rejected += 1,
            // The change is still a valid configuration.
            200 => drop(gateway.reload(&valid).await),
            status => panic!("{status} {}\n{changed}", response.text()),
        }
        assert_eq!(client.get("/free").send().await.status, 200, "{changed}");
    }
    println!("reload: {rejected} of {files} changed files rejected");
    gateway.reload(&valid).await;
    assert_eq!(gateway.status().await["hash"], hash);
    eventually("no reload is left", async || {
        gateway
            .process
            .metric("config_reloads_total{result=\"rejected\"}")
            .await
            == rejected
    })
    .await;
}

/// Cuts a configuration at a random position, or changes one of its characters.
fn changed(valid: &str) -> String {
    let at = fastrand::usize(..valid.len());
    if fastrand::bool() {
        return valid[..at].to_owned();
    }
    let other = char::from(fastrand::u8(b' '..=b'~'));
    format!("{}{other}{}", &valid[..at], &valid[at + 1..])
}
