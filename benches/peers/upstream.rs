//! What the care for upstream costs while nothing fails.
//!
//! The same gateway in front of the same servers, with and without it: with, there are retries, breakers,
//! health checks, a budget and an adaptive bound on requests at once; without, none of these. Both share the
//! load between two servers, as that is not a matter of failing.

use std::net::SocketAddr;

use crate::Outcome;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, Sample, loaded, wrk};
use crate::scene::{Scene, free_address, until_listening};
use crate::table::{median, range, verdict};

/// The most CPU time a request may cost with it, as a multiple of one without.
const BOUND: f64 = 1.05;

/// What is asked for.
const PATH: &str = "/api/items";

const WITHOUT: &str = "breaker = { enabled = false }";

const WITH: &str = r#"
    health = { path = "/healthz", interval = "1s", timeout = "500ms" }
    breaker = { enabled = true }
    retry = { preset = "standard" }
    concurrency = { }
"#;

/// A gateway with or without.
struct Side {
    name: &'static str,
    running: Running,
    samples: Vec<Sample>,
}

/// Measures and prints the comparison.
pub(crate) fn compare(scene: &Scene, load: &Load) -> Outcome<()> {
    let mut sides = [
        Side::start(scene, "without", WITHOUT)?,
        Side::start(scene, "with", WITH)?,
    ];
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    for round in 1..=load.rounds {
        for side in &mut sides {
            let sample = side.measure(load)?;
            println!("round {round}: {:<8} {}", side.name, sample.summary());
            side.samples.push(sample);
        }
    }

    println!(
        "\n{:<10}{:>12}{:>16}{:>13}{:>10}",
        "care", "CPU µs/req", "least–most", "requests/s", "p99 ms"
    );
    let mut costs = Vec::new();
    for side in &sides {
        let samples: Vec<&Sample> = side.samples.iter().collect();
        let cpu = median(&samples, |sample| sample.cpu);
        println!(
            "{:<10}{cpu:>12.2}{:>16}{:>13.0}{:>10.2}",
            side.name,
            range(&samples),
            median(&samples, |sample| sample.throughput),
            median(&samples, |sample| sample.p99),
        );
        for fault in samples.iter().flat_map(|sample| &sample.faults) {
            println!("WRONG ANSWERS: {fault}");
        }
        costs.push(cpu);
    }
    verdict(costs[1] / costs[0], BOUND);
    Ok(())
}

impl Side {
    fn start(scene: &Scene, name: &'static str, care: &str) -> Outcome<Self> {
        let address = free_address()?;
        let config = config(address, scene.upstream, care);
        let mut process = tidegate(scene, &format!("upstream-{name}"), &config)?;
        until_listening(&mut process, address)?;
        Ok(Self {
            name,
            running: Running {
                gateway: Gateway::Tidegate,
                process,
                address,
            },
            samples: Vec::new(),
        })
    }

    fn measure(&self, load: &Load) -> Outcome<Sample> {
        wrk(self.running.address, PATH, load, 1, None)?;
        let mut run = loaded(&self.running, PATH, load, None)?;
        if run.bad > 0 || run.requests == 0 {
            run.sample.faults.push(format!(
                "{} of {} answers were no success",
                run.bad, run.requests
            ));
        }
        Ok(run.sample)
    }
}

/// Two servers that are one: an address has two names.
fn config(listen: SocketAddr, upstream: SocketAddr, care: &str) -> String {
    format!(
        r#"
        server = {{ listen = "{listen}", workers = 2 }}
        log = {{ access = false }}
        [[route]]
        name = "api"
        path = "/"
        [upstream.api]
        servers = ["http://{upstream}", "http://localhost:{port}"]
        {care}
        "#,
        port = upstream.port(),
    )
}
