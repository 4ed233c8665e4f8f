//! What the store on disk costs: opening it, asking it, and writing through it.
//!
//! Run with `make disk`. A store of a thousand records and one of a million are filled; then for each a
//! process of its own opens it and asks for records, first such as are not in its memory (cold; the
//! system's page cache is left as it is) and then the same again (hot). At last 64 clients send requests,
//! every one with a new key, through the release build of the gateway to an upstream on this machine.
//! How long the disk takes to sync is measured in the same run on the same file system.
//!
//! `DISK_TIDEGATE` is the gateway; `TMPDIR` decides on which file system all of this is.

#![expect(
    clippy::cast_precision_loss,
    reason = "figures for people, none near 2⁵²"
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

/// As the gateway has it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const FEW: u32 = 1_000;
const MANY: u32 = 1_000_000;

/// The longest a store of a million records may take to open.
const MOST_OPENING: Duration = Duration::from_secs(2);

/// The most a lookup among many may take, as a multiple of one among few.
const MOST_RATIO: f64 = 2.0;

/// Requests a second that are enough, however fast the disk is.
const ENOUGH: f64 = 5_000.0;

/// Requests that share a sync, of 64 clients that each write twice.
const SHARING: f64 = 32.0;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, path, records] = &arguments[..]
        && word == "probe"
    {
        return probe::run(Path::new(path), records.parse()?);
    }

    let dir = TempDir::new()?;
    println!("on the file system of {}", dir.path().display());
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
    verdict(
        "seconds to open",
        opening,
        opening <= MOST_OPENING.as_secs_f64(),
        "at most 2",
    );
    for (what, ratio) in [
        (
            "cold lookup among many",
            micros(many.cold) / micros(few.cold),
        ),
        ("hot lookup among many", micros(many.hot) / micros(few.hot)),
    ] {
        verdict(
            what,
            ratio,
            ratio <= MOST_RATIO,
            "at most 2 times one among few",
        );
    }

    let rate = gateway::rate(dir.path())?;
    let again = median_sync(dir.path())?;
    println!(
        "fdatasync after 4 KiB: {} µs, median of 500",
        again.as_micros()
    );
    let bar = ENOUGH.min(0.5 * SHARING / syncing.min(again).as_secs_f64());
    verdict(
        "durable keyed requests a second",
        rate,
        rate >= bar,
        &format!("at least {bar:.0}"),
    );
    Ok(())
}

/// Fills a store, and has a process of its own look at it.
fn measure(path: &Path, records: u32) -> Outcome<Probe> {
    let started = Instant::now();
    store::fill(path, records)?;
    let took = started.elapsed().as_secs_f64();
    println!(
        "{records} records written in {took:.1} s, {:.0} a second",
        f64::from(records) / took
    );
    Probe::of(path, records)
}

/// How long the disk takes to make four kibibytes durable.
fn median_sync(dir: &Path) -> Outcome<Duration> {
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

fn verdict(what: &str, figure: f64, holds: bool, bound: &str) {
    let verdict = if holds { "holds" } else { "BROKEN" };
    println!("{what}: {figure:.2}, {bound}: {verdict}");
}
