//! A process that opens a store, asks it for records, and tells how long that took.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate::idempotency::{Claim, Records as _};
use tidegate::internals::DiskRecords;

use crate::{Outcome, median, store};

/// Records that are asked for, at most.
const LOOKUPS: u32 = 20_000;

/// What it tells.
pub(crate) struct Probe {
    pub(crate) opening: Duration,
    /// Bytes of memory more than before the store was opened and asked.
    pub(crate) resident: u64,
    /// A lookup that is not answered from memory, and one that is.
    pub(crate) cold: Duration,
    pub(crate) hot: Duration,
}

impl Probe {
    /// Has a process of its own look at the store in a directory.
    pub(crate) fn of(path: &Path, records: u32) -> Outcome<Self> {
        let output = Command::new(std::env::current_exe()?)
            .arg("probe")
            .arg(path)
            .arg(records.to_string())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let figures: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        let [opening, resident, cold, hot] = figures[..] else {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the probe failed: {text}{said}").into());
        };
        Ok(Self {
            opening: Duration::from_nanos(opening),
            resident,
            cold: Duration::from_nanos(cold),
            hot: Duration::from_nanos(hot),
        })
    }
}

/// What the process does.
pub(crate) fn run(path: &Path, records: u32) -> Outcome<()> {
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

/// How long it takes to be told one of these records.
async fn look_up(store: &DiskRecords, numbers: &[u32]) -> Outcome<Duration> {
    let mut times = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let claim_request = store::claim_request(number);
        let started = Instant::now();
        let claim = store.claim(&claim_request).await?;
        times.push(started.elapsed());
        if !matches!(claim, Claim::Replay(_)) {
            return Err(format!("the key {number} is {claim:?}").into());
        }
    }
    Ok(median(&mut times))
}

/// This process's resident bytes.
fn resident() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kibibytes: u64 = kibibytes.ok_or("no VmRSS")?.trim().parse()?;
    Ok(kibibytes << 10)
}
