//! Cost of the disk store for idempotency records: opening it, looking up records, and requests through the gateway.
//!
//! Run with `make disk`. The benchmark fills one store with a thousand records and one with a million. For each store,
//! a separate process opens the store and looks up records twice: first from disk ("cold", but possibly from the page
//! cache of the system) and then from memory ("hot"). Finally, 64 clients send requests with new idempotency keys
//! through the production build of the gateway (profile `dist`) to an upstream on the same machine. The duration of
//! `fdatasync` is measured in the same run on the same file system.
//!
//! The environment variable `DISK_TIDEGATE` sets the binary of the gateway. `TMPDIR` sets the directory of the stores.

#![expect(
    clippy::cast_precision_loss,
    reason = "the printed numbers are far below 2⁵²"
)]

mod gateway;
mod probe;
mod store;

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use tempfile::TempDir;

use self::probe::Probe;

/// The benchmark uses the allocator of the gateway.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const FEW: u32 = 1_000;
const MANY: u32 = 1_000_000;

/// Maximum time to open a store with a million records.
const MAX_OPENING: Duration = Duration::from_secs(2);

/// Maximum ratio of the lookup time in the large store to that in the small store.
const MAX_RATIO: f64 = 2.0;

/// Required number of requests per second. On a slow disk, the requirement is lower: half of the rate that the duration
/// of `fdatasync` allows.
const TARGET_RATE: f64 = 5_000.0;

/// Number of requests per `fdatasync`. One `fdatasync` covers at most one write of each of the 64 clients. Each request
/// needs two writes, a claim and a response, so 64 writes correspond to 32 requests.
const REQUESTS_PER_SYNC: f64 = 32.0;

fn main() -> BenchResult<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, path, records] = &arguments[..]
        && command == "probe"
    {
        return probe::run(Path::new(path), records.parse()?);
    }

    let dir = TempDir::new()?;
    println!("directory: {}", dir.path().display());
    let syncing = median_sync(dir.path())?;
    println!(
        "fdatasync after 4 KiB: {} µs, median of 500",
        syncing.as_micros()
    );

    let few = measure(&dir.path().join("few"), FEW)?;
    let many = measure(&dir.path().join("many"), MANY)?;
    println!(
        "\n{:>9} {:>9} {:>11} {:>9} {:>8}",
        "records", "open ms", "RSS +MiB", "cold µs", "hot µs"
    );
    for (records, probe) in [(FEW, &few), (MANY, &many)] {
        println!(
            "{records:>9} {:>9.1} {:>11.1} {:>9.1} {:>8.2}",
            probe.opening.as_secs_f64() * 1e3,
            probe.resident as f64 / f64::from(1 << 20),
            micros(probe.cold),
            micros(probe.hot),
        );
    }
    let opening = many.opening.as_secs_f64();
    print_result(
        "time to open the large store, in s",
        opening,
        opening <= MAX_OPENING.as_secs_f64(),
        "at most 2 s",
    );
    for (what, ratio) in [
        (
            "cold lookup, large store / small store",
            micros(many.cold) / micros(few.cold),
        ),
        (
            "hot lookup, large store / small store",
            micros(many.hot) / micros(few.hot),
        ),
    ] {
        print_result(what, ratio, ratio <= MAX_RATIO, "at most 2");
    }

    let rate = gateway::rate(dir.path())?;
    let again = median_sync(dir.path())?;
    println!(
        "fdatasync after 4 KiB: {} µs, median of 500",
        again.as_micros()
    );
    let required = TARGET_RATE.min(0.5 * REQUESTS_PER_SYNC / syncing.min(again).as_secs_f64());
    print_result(
        "durable keyed requests per second",
        rate,
        rate >= required,
        &format!("at least {required:.0}"),
    );
    Ok(())
}

/// Creates a store with this many records in `path`, and measures it in a separate process.
fn measure(path: &Path, records: u32) -> BenchResult<Probe> {
    let started = Instant::now();
    store::fill(path, records)?;
    let took = started.elapsed().as_secs_f64();
    println!(
        "{records} records written in {took:.1} s, {:.0} per second",
        f64::from(records) / took
    );
    Probe::of(path, records)
}

/// Returns the median duration of 500 calls of `fdatasync`, each after a write of 4 KiB.
fn median_sync(dir: &Path) -> BenchResult<Duration> {
    let mut file = File::create(dir.join("sync"))?;
    let mut times = Vec::new();
    for _ in 0..500 {
        file.write_all(&[7; 4_096])?;
        let started = Instant::now();
        file.sync_data()?;
        times.push(started.elapsed());
    }
    Ok(median(&mut times))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn print_result(what: &str, figure: f64, holds: bool, bound: &str) {
    let result = if holds { "ok" } else { "MISSED" };
    println!("{what}: {figure:.2} ({bound}: {result})");
}
