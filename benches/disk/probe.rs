//! Opens a disk store, looks up records and measures the times, in a separate process.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate::idempotency::{Claim, Records as _};
use tidegate::internals::DiskRecords;

use crate::{BenchResult, median, store};

/// Maximum number of records that are looked up.
const LOOKUPS: u32 = 20_000;

/// Measurements of the separate process.
pub(crate) struct Probe {
    /// How long it took to open the store.
    pub(crate) opening: Duration,
    /// How much the resident memory grew while the store was opened and records were looked up, in bytes.
    pub(crate) resident: u64,
    /// Median time of the first lookup of a record, which reads from disk.
    pub(crate) cold: Duration,
    /// Median time of the second lookup of a record, which reads from memory.
    pub(crate) hot: Duration,
}

impl Probe {
    /// Starts the process that measures the store in the directory `path`, and returns its measurements.
    pub(crate) fn of(path: &Path, records: u32) -> BenchResult<Self> {
        let output = Command::new(std::env::current_exe()?)
            .arg("probe")
            .arg(path)
            .arg(records.to_string())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let figures: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        let [opening, resident, cold, hot] = figures[..] else {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the probe process failed: {text}{errors}").into());
        };
        Ok(Self {
            opening: Duration::from_nanos(opening),
            resident,
            cold: Duration::from_nanos(cold),
            hot: Duration::from_nanos(hot),
        })
    }
}

/// Measures the store in the directory `path` and prints the result. Runs in the separate process.
pub(crate) fn run(path: &Path, records: u32) -> BenchResult<()> {
    let before = resident()?;
    let started = Instant::now();
    let store = store::open(path)?;
    let opening = started.elapsed();
    let mut random = fastrand::Rng::with_seed(7);
    let mut numbers: Vec<u32> = (0..records).collect();
    random.shuffle(&mut numbers);
    numbers.truncate(LOOKUPS as usize);
    numbers.shrink_to_fit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let cold = runtime.block_on(look_up(&store, &numbers))?;
    let hot = runtime.block_on(look_up(&store, &numbers))?;
    println!(
        "{} {} {} {}",
        opening.as_nanos(),
        resident()?.saturating_sub(before),
        cold.as_nanos(),
        hot.as_nanos()
    );
    Ok(())
}

/// Looks up the records with these numbers and returns the median time of a lookup.
async fn look_up(store: &DiskRecords, numbers: &[u32]) -> BenchResult<Duration> {
    let mut times = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let claim_request = store::claim_request(number);
        let started = Instant::now();
        let claim = store.claim(&claim_request).await?;
        times.push(started.elapsed());
        if !matches!(claim, Claim::Replay(_)) {
            return Err(format!(
                "idempotency key {number} should have a stored response, but is {claim:?}"
            )
            .into());
        }
    }
    Ok(median(&mut times))
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> BenchResult<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kibibytes: u64 = kibibytes
        .ok_or("/proc/self/status has no VmRSS line")?
        .trim()
        .parse()?;
    Ok(kibibytes << 10)
}
