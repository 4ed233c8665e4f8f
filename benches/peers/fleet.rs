//! Cost of rate limits in Redis, compared with Redis alone and with rate limits in memory.
//!
//! The first comparison is throughput. `redis-benchmark` opens 32 connections and calls the script that charges rate
//! limits, one call at a time on each connection. Then the gateway gets requests on the same number of connections, and
//! calls the script for every request.
//!
//! The second comparison is latency on one connection, where no request waits for another. The added latency is the
//! latency of a request with rate limits in Redis minus that with rate limits in memory. It is compared with the
//! latency of one script call.

use std::path::Path;
use std::process::Command;

use crate::BenchResult;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, wrk};
use crate::redis::RedisServer;
use crate::setup::{Setup, free_address, until_listening};

/// The Lua script that charges the rate limits of a request in Redis.
const CHARGE: &str = include_str!("../../src/store/redis/lua/charge.lua");

/// Arguments of the script: the quota of the rate limit in [`start`], which is so high that no request is rejected.
const QUOTA: [&str; 5] = ["1", "1", "1000", "0", "1000"];

/// Number of script calls by `redis-benchmark`: on all connections, and on one connection.
const CALLS: [&str; 2] = ["200000", "20000"];

/// Minimum of the gateway's requests per second, as a fraction of the script calls per second of Redis alone.
const MIN_SHARE: f64 = 0.4;

/// Maximum latency that Redis adds to a request, as a multiple of the latency of a script call on one connection.
const MAX_ADDED_CALLS: f64 = 2.0;

/// Measurements of one round: Redis alone, and the gateway with and without Redis.
#[derive(Debug)]
struct Round {
    /// Calls of the charge script per second by `redis-benchmark`, without the gateway.
    calls: f64,
    /// Requests per second through the gateway with its rate limit in Redis.
    requests: f64,
    /// Median latency of a script call on one connection, in µs.
    call: f64,
    /// Median latency of a request with its rate limit in memory, in µs.
    in_memory: f64,
    /// Median latency of a request with its rate limit in Redis, in µs.
    in_redis: f64,
}

/// Measures throughput and latency, and prints both comparisons.
pub(crate) fn compare(setup: &Setup, load: &Load) -> BenchResult<()> {
    println!(
        "{} rounds of {} s, {} connections and 1, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    let server = RedisServer::start();
    let hash = server.command(&["SCRIPT", "LOAD", CHARGE]).text();
    let mut rounds = Vec::new();
    for number in 1..=load.rounds {
        let round = measure(setup, load, &server, &hash)?;
        println!(
            "round {number}: script {:7.0}/s  gateway {:7.0}/s   script call {:5.1} µs  in memory {:5.1} µs  \
             in Redis {:5.1} µs",
            round.calls, round.requests, round.call, round.in_memory, round.in_redis
        );
        rounds.push(round);
    }
    let share = median(&rounds, |round| round.requests / round.calls);
    let added_calls = median(&rounds, |round| {
        (round.in_redis - round.in_memory) / round.call
    });
    print_result(
        "Requests per second through the gateway, as a share of script calls per second",
        share,
        share >= MIN_SHARE,
        &format!("at least {MIN_SHARE}"),
    );
    print_result(
        "Additional latency of a request, in script calls on one connection",
        added_calls,
        added_calls <= MAX_ADDED_CALLS,
        &format!("at most {MAX_ADDED_CALLS}"),
    );
    Ok(())
}

fn measure(setup: &Setup, load: &Load, server: &RedisServer, hash: &str) -> BenchResult<Round> {
    let one = Load {
        connections: 1,
        ..*load
    };
    let (calls, _) = benchmark(server, load.connections, CALLS[0], hash)?;
    let redis = start(setup, Some(server))?;
    let requests = throughput(&loaded(&redis, load)?)?;
    let (_, call) = benchmark(server, 1, CALLS[1], hash)?;
    let in_redis = median_latency(&loaded(&redis, &one)?)?;
    let memory = start(setup, None)?;
    let in_memory = median_latency(&loaded(&memory, &one)?)?;
    Ok(Round {
        calls,
        requests,
        call,
        in_memory,
        in_redis,
    })
}

/// Starts a gateway with its rate limits in the Redis `server`, or in memory if `server` is `None`.
fn start(setup: &Setup, server: Option<&RedisServer>) -> BenchResult<Running> {
    let (address, admin) = (free_address()?, free_address()?);
    let store = server.map_or_else(String::new, |server| {
        let url = server.url();
        format!("store = {{ backend = \"redis\", url = \"{url}\" }}")
    });
    let upstream = setup.upstream;
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
    let mut process = tidegate(setup, "fleet", &config)?;
    until_listening(&mut process, address)?;
    Ok(Running {
        gateway: Gateway::Tidegate,
        process,
        address,
    })
}

/// Loads a gateway with wrk after a warm-up, and returns the report of wrk. Fails if a request fails.
fn loaded(running: &Running, load: &Load) -> BenchResult<String> {
    wrk(running.address, "/api/items", load, 1, None)?;
    let report = wrk(running.address, "/api/items", load, load.seconds, None)?;
    if report.contains("Non-2xx") || report.contains("Socket errors") {
        return Err(format!(
            "some requests to the gateway failed, see the report of wrk:\n{report}"
        )
        .into());
    }
    Ok(report)
}

fn throughput(report: &str) -> BenchResult<f64> {
    let figure =
        after(report, "Requests/sec:").ok_or("the report of wrk has no line Requests/sec")?;
    Ok(figure.parse()?)
}

/// Returns the median latency in the report of wrk, in µs.
fn median_latency(report: &str) -> BenchResult<f64> {
    let figure = after(report, "50%").ok_or("the report of wrk has no line 50%")?;
    let (number, unit) = figure.split_at(figure.len() - 2);
    match unit {
        "us" => Ok(number.parse()?),
        "ms" => Ok(number.parse::<f64>()? * 1e3),
        _ => Err(format!("cannot parse the latency {figure} in the report of wrk").into()),
    }
}

fn after<'a>(report: &'a str, label: &str) -> Option<&'a str> {
    let mut lines = report.lines();
    lines.find_map(|line| Some(line.trim().strip_prefix(label)?.trim()))
}

/// Runs `redis-benchmark`. Returns the script calls per second and the median latency of a call in µs.
fn benchmark(
    server: &RedisServer,
    connections: usize,
    calls: &str,
    hash: &str,
) -> BenchResult<(f64, f64)> {
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
        .ok_or("redis-benchmark printed nothing")?;
    let figures: Vec<&str> = row.rsplit("\",\"").collect();
    // The figures are in reverse order: maximum, p99, p95, p50, minimum, average, calls per second.
    let [_, _, _, median, _, _, rate, ..] = &figures[..] else {
        return Err(format!("cannot parse the report of redis-benchmark:\n{report}").into());
    };
    Ok((rate.parse()?, median.parse::<f64>()? * 1e3))
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn print_result(what: &str, figure: f64, holds: bool, bound: &str) {
    let result = if holds { "ok" } else { "MISSED" };
    println!("{what}: {figure:.2} ({bound}: {result})");
}
