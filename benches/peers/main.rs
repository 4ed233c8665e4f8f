//! What a request costs in CPU time: the gateway beside nginx and HAProxy doing the same work.
//!
//! Run with `make peers`; `make peers-clients` compares the gateway with itself, tracking a thousand
//! clients and a million, `make peers-keyed` shows what an idempotency key costs, `make peers-fleet` what
//! limits in Redis do, `make peers-upstream` what the care for upstream costs, and `make instructions` counts
//! instructions instead of CPU time. Everything runs on loopback and on one machine, load included, so throughput
//! and latency say as much about the machine as about the gateway. CPU time per request is what stays
//! comparable, and what the project holds itself to.
//!
//! Each round starts every gateway afresh, one at a time, in front of the same upstream, and loads it
//! twice: with requests that are all proxied and with requests that are all refused. Rounds alternate
//! between the gateways, so a machine that slows down slows all of them; medians are reported.
//!
//! `PEERS_ROUNDS` (5), `PEERS_SECONDS` (5) and `PEERS_CONNECTIONS` (32) change the load, and
//! `PEERS_TIDEGATE` names the gateway's binary.

mod clients;
mod fleet;
mod gateways;
mod instructions;
mod keyed;
mod load;
mod process;
#[path = "../../tests/support/redis.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "what is shared is not all used here"
)]
mod redis;
mod scene;
mod table;
mod upstream;

use std::error::Error;

use gateways::Gateway;
use load::{Load, Sample};
use scene::Scene;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a gateway is asked to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Proxied,
    Refused,
}

impl Work {
    const ALL: [Self; 2] = [Self::Proxied, Self::Refused];

    fn path(self) -> &'static str {
        match self {
            Self::Proxied => "/api/items",
            Self::Refused => "/refused/items",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Proxied => 200,
            Self::Refused => 429,
        }
    }

    /// The most CPU time a request may cost, as a multiple of nginx's.
    fn bound(self) -> f64 {
        match self {
            Self::Proxied => 1.0,
            Self::Refused => 0.75,
        }
    }
}

fn main() -> Outcome<()> {
    let load = Load::from_env()?;
    let scene = Scene::set()?;
    let asked = |comparison| std::env::args().any(|argument| argument == comparison);
    if asked("clients") {
        clients::compare(&scene, &load)
    } else if asked("keyed") {
        keyed::compare(&scene, &load)
    } else if asked("fleet") {
        fleet::compare(&scene, &load)
    } else if asked("upstream") {
        upstream::compare(&scene, &load)
    } else if asked("instructions") {
        instructions::measure(&scene)
    } else {
        compare(&scene, &load)
    }
}

fn compare(scene: &Scene, load: &Load) -> Outcome<()> {
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    let gateways = Gateway::installed();
    let mut samples = Vec::new();
    for round in 1..=load.rounds {
        for &gateway in &gateways {
            let running = gateway.start(scene)?;
            for work in Work::ALL {
                let sample = load::measure(scene, &running, work, load)?;
                println!(
                    "round {round}: {:<9} {:<8} {}",
                    gateway.name(),
                    format!("{work:?}").to_lowercase(),
                    sample.summary()
                );
                samples.push((gateway, work, sample));
            }
        }
    }

    for work in Work::ALL {
        let rows: Vec<(Gateway, Vec<&Sample>)> = gateways
            .iter()
            .map(|&gateway| (gateway, of(&samples, gateway, work)))
            .collect();
        table::print(work, &rows);
    }
    Ok(())
}

fn of(samples: &[(Gateway, Work, Sample)], gateway: Gateway, work: Work) -> Vec<&Sample> {
    samples
        .iter()
        .filter(|(of, doing, _)| *of == gateway && *doing == work)
        .map(|(_, _, sample)| sample)
        .collect()
}
