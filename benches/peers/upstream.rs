//! Cost of retries, circuit breakers, health checks and the concurrency limit while no server fails.
//!
//! Two gateways have the same two upstream servers. One gateway has failure handling: retries with a retry budget,
//! circuit breakers, health checks and an adaptive concurrency limit. The other has none of these. Both balance the
//! load over the servers.

use std::net::SocketAddr;

use crate::BenchResult;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, Sample, loaded, wrk};
use crate::setup::{Setup, free_address, until_listening};
use crate::table::{median, print_result, range};

/// Maximum ratio of the CPU time per request with failure handling to the CPU time without it.
const BOUND: f64 = 1.05;

/// Path of all requests that wrk sends.
const PATH: &str = "/api/items";

const WITHOUT: &str = "breaker = { enabled = false }";

const WITH: &str = r#"
    health = { path = "/healthz", interval = "1s", timeout = "500ms" }
    breaker = { enabled = true }
    retry = { preset = "standard" }
    concurrency = { }
"#;

/// A running gateway with or without failure handling, and its measurements.
struct Variant {
    name: &'static str,
    running: Running,
    samples: Vec<Sample>,
}

/// Measures both gateways and prints the comparison.
pub(crate) fn compare(setup: &Setup, load: &Load) -> BenchResult<()> {
    let mut variants = [
        Variant::start(setup, "without", WITHOUT)?,
        Variant::start(setup, "with", WITH)?,
    ];
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    for round in 1..=load.rounds {
        for variant in &mut variants {
            let sample = variant.measure(load)?;
            println!("round {round}: {:<8} {}", variant.name, sample.summary());
            variant.samples.push(sample);
        }
    }

    println!(
        "\n{:<18}{:>12}{:>16}{:>13}{:>10}",
        "failure handling", "CPU µs/req", "min–max", "requests/s", "p99 ms"
    );
    let mut costs = Vec::new();
    for variant in &variants {
        let samples: Vec<&Sample> = variant.samples.iter().collect();
        let cpu = median(&samples, |sample| sample.cpu);
        println!(
            "{:<18}{cpu:>12.2}{:>16}{:>13.0}{:>10.2}",
            variant.name,
            range(&samples),
            median(&samples, |sample| sample.throughput),
            median(&samples, |sample| sample.p99),
        );
        for fault in samples.iter().flat_map(|sample| &sample.faults) {
            println!("WRONG RESPONSES: {fault}");
        }
        costs.push(cpu);
    }
    print_result(costs[1] / costs[0], BOUND);
    Ok(())
}

impl Variant {
    fn start(setup: &Setup, name: &'static str, settings: &str) -> BenchResult<Self> {
        let address = free_address()?;
        let config = config(address, setup.upstream, settings);
        let mut process = tidegate(setup, &format!("upstream-{name}"), &config)?;
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

    fn measure(&self, load: &Load) -> BenchResult<Sample> {
        wrk(self.running.address, PATH, load, 1, None)?;
        let mut run = loaded(&self.running, PATH, load, None)?;
        if run.bad > 0 || run.requests == 0 {
            run.sample.faults.push(format!(
                "{} of {} responses have a status other than 2xx or 3xx",
                run.bad, run.requests
            ));
        }
        Ok(run.sample)
    }
}

/// Returns the configuration of a gateway. The gateway has two upstream servers, which are the same server under two
/// names.
fn config(listen: SocketAddr, upstream: SocketAddr, settings: &str) -> String {
    format!(
        r#"
        server = {{ listen = "{listen}", workers = 2 }}
        log = {{ access = false }}
        [[route]]
        name = "api"
        path = "/"
        [upstream.api]
        servers = ["http://{upstream}", "http://localhost:{port}"]
        {settings}
        "#,
        port = upstream.port(),
    )
}
