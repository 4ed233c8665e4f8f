//! CPU time per request of Tidegate, compared with nginx and HAProxy.
//!
//! `make peers` runs this comparison. `make peers-clients` compares a thousand with a million tracked clients.
//! `make peers-keyed` measures idempotency keys. `make peers-fleet` measures rate limits in Redis.
//! `make peers-upstream` measures retries, circuit breakers and health checks. `make peers-reload` compares which
//! gateways keep their rate limits when their configuration changes. `make instructions` counts instructions instead of
//! CPU time.
//!
//! wrk, gateways and upstream run on one machine over loopback, so throughput and latency depend on the machine as much
//! as on the gateway. CPU time per request is comparable, so only CPU time has a required maximum.
//!
//! Each round starts every gateway, one at a time, in front of the same upstream. Each gateway is loaded twice: once
//! with requests that are all proxied, and once with requests that are all rejected. The gateways alternate, so a
//! machine that slows down affects all of them. The results are medians over the rounds.
//!
//! The environment variables `PEERS_ROUNDS` (default: 5), `PEERS_SECONDS` (5) and `PEERS_CONNECTIONS` (32) set the
//! load. `PEERS_TIDEGATE` sets the Tidegate binary.

mod clients;
mod fleet;
mod gateways;
mod idempotency;
mod instructions;
mod load;
mod process;
#[path = "../../tests/support/redis.rs"]
#[allow(dead_code, unused_imports, reason = "the tests use the other items")]
mod redis;
mod reload;
mod setup;
mod table;
mod upstream;
#[path = "../../tests/support/wait.rs"]
#[allow(dead_code, reason = "the tests use the other items")]
mod wait;

use std::error::Error;

use gateways::Gateway;
use load::{Load, Sample};
use setup::Setup;

type BenchResult<T> = Result<T, Box<dyn Error>>;

/// What the gateway does with all requests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    Proxied,
    Rejected,
}

impl Workload {
    const ALL: [Self; 2] = [Self::Proxied, Self::Rejected];

    fn path(self) -> &'static str {
        match self {
            Self::Proxied => "/api/items",
            Self::Rejected => "/rejected/items",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Proxied => 200,
            Self::Rejected => 429,
        }
    }

    /// Maximum CPU time per request of Tidegate, as a multiple of that of nginx.
    fn bound(self) -> f64 {
        match self {
            Self::Proxied => 1.0,
            Self::Rejected => 0.75,
        }
    }
}

fn main() -> BenchResult<()> {
    let load = Load::from_env()?;
    let setup = Setup::start()?;
    let has_argument = |comparison| std::env::args().any(|argument| argument == comparison);
    if has_argument("clients") {
        clients::compare(&setup, &load)
    } else if has_argument("keyed") {
        idempotency::compare(&setup, &load)
    } else if has_argument("fleet") {
        fleet::compare(&setup, &load)
    } else if has_argument("upstream") {
        upstream::compare(&setup, &load)
    } else if has_argument("reload") {
        reload::compare(&setup)
    } else if has_argument("instructions") {
        instructions::measure(&setup)
    } else {
        compare(&setup, &load)
    }
}

fn compare(setup: &Setup, load: &Load) -> BenchResult<()> {
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    let gateways = Gateway::installed();
    let mut samples = Vec::new();
    for round in 1..=load.rounds {
        for &gateway in &gateways {
            let running = gateway.start(setup)?;
            for workload in Workload::ALL {
                let sample = load::measure(setup, &running, workload, load)?;
                println!(
                    "round {round}: {:<9} {:<8} {}",
                    gateway.name(),
                    format!("{workload:?}").to_lowercase(),
                    sample.summary()
                );
                samples.push((gateway, workload, sample));
            }
        }
    }

    for workload in Workload::ALL {
        let rows: Vec<(Gateway, Vec<&Sample>)> = gateways
            .iter()
            .map(|&gateway| (gateway, of(&samples, gateway, workload)))
            .collect();
        table::print(workload, &rows);
    }
    Ok(())
}

fn of(
    samples: &[(Gateway, Workload, Sample)],
    gateway: Gateway,
    workload: Workload,
) -> Vec<&Sample> {
    samples
        .iter()
        .filter(|(of, with, _)| *of == gateway && *with == workload)
        .map(|(_, _, sample)| sample)
        .collect()
}
