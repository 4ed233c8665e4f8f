//! What it costs to keep limits in Redis: beside what Redis itself does with the same script, and beside
//! limits in memory.
//!
//! `redis-benchmark` runs the script that charges a bucket as fast as 32 connections can, one call at a time
//! on each; then the gateway bears the same number of connections, every request charged in that Redis and
//! forwarded. How much longer a request takes than with limits in memory is measured on one connection, where
//! nothing waits for anything else, and compared with a bare round trip to Redis.

use std::path::Path;
use std::process::Command;

use crate::Outcome;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, wrk};
use crate::redis::RedisServer;
use crate::scene::{Scene, free_address, until_listening};

/// The script that charges the buckets of a request.
const CHARGE: &str = include_str!("../../src/store/redis/lua/charge.lua");

/// What it is told of the limit that the gateway here has: none must be refused.
const QUOTA: [&str; 5] = ["1", "1", "1000", "0", "1000"];

/// Calls of `redis-benchmark`, on all connections and on one.
const CALLS: [&str; 2] = ["200000", "20000"];

/// The least of what Redis can do that the gateway is to reach.
const LEAST_SHARE: f64 = 0.4;

/// The most a request may take longer, in bare round trips.
const MOST_TRIPS: f64 = 2.0;

/// What one round showed.
#[derive(Debug)]
struct Round {
    /// Calls of the script a second.
    calls: f64,
    /// Requests a second through the gateway.
    requests: f64,
    /// A bare round trip, in µs, median.
    trip: f64,
    /// A request with its limit in memory, in µs, median.
    in_memory: f64,
    /// A request with its limit in Redis, in µs, median.
    in_redis: f64,
}

/// Measures and prints both comparisons.
pub(crate) fn compare(scene: &Scene, load: &Load) -> Outcome<()> {
    println!(
        "{} rounds of {} s, {} connections and 1, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    let server = RedisServer::start();
    let hash = server.command(&["SCRIPT", "LOAD", CHARGE]).text();
    let mut rounds = Vec::new();
    for number in 1..=load.rounds {
        let round = measure(scene, load, &server, &hash)?;
        println!(
            "round {number}: script {:7.0}/s  gateway {:7.0}/s   round trip {:5.1} µs  in memory {:5.1} µs  \
             in Redis {:5.1} µs",
            round.calls, round.requests, round.trip, round.in_memory, round.in_redis
        );
        rounds.push(round);
    }
    let share = median(&rounds, |round| round.requests / round.calls);
    let trips = median(&rounds, |round| {
        (round.in_redis - round.in_memory) / round.trip
    });
    verdict(
        "Requests through the gateway, of what Redis itself does",
        share,
        share >= LEAST_SHARE,
        &format!("at least {LEAST_SHARE}"),
    );
    verdict(
        "What a request takes longer, in bare round trips",
        trips,
        trips <= MOST_TRIPS,
        &format!("at most {MOST_TRIPS}"),
    );
    Ok(())
}

fn measure(scene: &Scene, load: &Load, server: &RedisServer, hash: &str) -> Outcome<Round> {
    let one = Load {
        connections: 1,
        ..*load
    };
    let (calls, _) = benchmark(server, load.connections, CALLS[0], hash)?;
    let redis = start(scene, Some(server))?;
    let requests = throughput(&loaded(&redis, load)?)?;
    let (_, trip) = benchmark(server, 1, CALLS[1], hash)?;
    let in_redis = middle(&loaded(&redis, &one)?)?;
    let memory = start(scene, None)?;
    let in_memory = middle(&loaded(&memory, &one)?)?;
    Ok(Round {
        calls,
        requests,
        trip,
        in_memory,
        in_redis,
    })
}

/// The gateway with its limits in `server`, or in memory.
fn start(scene: &Scene, server: Option<&RedisServer>) -> Outcome<Running> {
    let (address, admin) = (free_address()?, free_address()?);
    let store = server.map_or_else(String::new, |server| {
        let url = server.url();
        format!("store = {{ backend = \"redis\", url = \"{url}\" }}")
    });
    let upstream = scene.upstream;
    let config = format!(
        r#"
        server = {{ listen = "{address}", workers = 2 }}
        admin = {{ listen = "{admin}" }}
        log = {{ access = false }}
        {store}
        upstream.api.servers = ["http://{upstream}"]
        limit.api = {{ rate = "1000000/s", burst = 1000000 }}
        [[route]]
        name = "api"
        path = "/api/"
        limits = ["api"]
        "#
    );
    let mut process = tidegate(scene, "fleet", &config)?;
    until_listening(&mut process, address)?;
    Ok(Running {
        gateway: Gateway::Tidegate,
        process,
        address,
    })
}

/// What wrk says of a gateway, after a warm-up; no answer may be anything but a success.
fn loaded(running: &Running, load: &Load) -> Outcome<String> {
    wrk(running.address, "/api/items", load, 1, None)?;
    let report = wrk(running.address, "/api/items", load, load.seconds, None)?;
    if report.contains("Non-2xx") || report.contains("Socket errors") {
        return Err(format!("some answers were no success:\n{report}").into());
    }
    Ok(report)
}

fn throughput(report: &str) -> Outcome<f64> {
    let figure = after(report, "Requests/sec:").ok_or("no throughput")?;
    Ok(figure.parse()?)
}

/// The median latency, in µs.
fn middle(report: &str) -> Outcome<f64> {
    let figure = after(report, "50%").ok_or("no median")?;
    let (number, unit) = figure.split_at(figure.len() - 2);
    match unit {
        "us" => Ok(number.parse()?),
        "ms" => Ok(number.parse::<f64>()? * 1e3),
        _ => Err(format!("an odd latency: {figure}").into()),
    }
}

fn after<'a>(report: &'a str, label: &str) -> Option<&'a str> {
    let mut lines = report.lines();
    lines.find_map(|line| Some(line.trim().strip_prefix(label)?.trim()))
}

/// Calls of the script a second, and how long one takes in µs, median.
fn benchmark(
    server: &RedisServer,
    connections: usize,
    calls: &str,
    hash: &str,
) -> Outcome<(f64, f64)> {
    let mut command = Command::new(Path::new("redis-benchmark"));
    command
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
        .args(["-c", &connections.to_string(), "-P", "1", "-n", calls])
        .args(["-r", "100000", "--csv"])
        .args(["EVALSHA", hash, "1", "bench:b:__rand_int__"])
        .args(QUOTA);
    let output = command
        .output()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let report = String::from_utf8(output.stdout)?;
    let row = report
        .lines()
        .last()
        .ok_or("redis-benchmark says nothing")?;
    let figures: Vec<&str> = row.rsplit("\",\"").collect();
    // From the end: most, p99, p95, p50, least, mean, calls a second.
    let [_, _, _, middle, _, _, rate, ..] = &figures[..] else {
        return Err(format!("an odd report of redis-benchmark:\n{report}").into());
    };
    Ok((rate.parse()?, middle.parse::<f64>()? * 1e3))
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn verdict(what: &str, figure: f64, holds: bool, bar: &str) {
    let verdict = if holds { "holds" } else { "BROKEN" };
    println!("{what}: {figure:.2}, {bar}: {verdict}");
}
