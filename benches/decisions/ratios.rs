//! Prints by which factor costs grow, from the estimates in the output files of criterion.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

/// The compared benchmarks. Each row: title, benchmark with more clients or routes, benchmark with fewer, maximum ratio
/// of their times.
const BOUNDS: [(&str, &str, &str, f64); 5] = [
    (
        "charge, 1 M / 1 k clients",
        "charge/1 of 1M/1 threads",
        "charge/1 of 1k/1 threads",
        4.0,
    ),
    (
        "charge, 1 M / 1 k, skewed",
        "charge/1 of 1M skewed/1 threads",
        "charge/1 of 1k skewed/1 threads",
        4.0,
    ),
    (
        "charge, 1 M / 1 k, 3 limits",
        "charge/3 of 1M/1 threads",
        "charge/3 of 1k/1 threads",
        4.0,
    ),
    (
        "route, 1,000 / 10, literal",
        "route/literal/1000",
        "route/literal/10",
        5.0,
    ),
    (
        "route, 1,000 / 10, wildcard",
        "route/wildcard/1000",
        "route/wildcard/10",
        5.0,
    ),
];

/// Prints the ratio of each pair of benchmarks. Results from before `since` are ignored, because they belong to an
/// earlier run.
pub(crate) fn print(since: SystemTime) {
    println!("\nGrowth of costs");
    for (title, large, small, bound) in BOUNDS {
        let (Some(large), Some(small)) = (estimate(large, since), estimate(small, since)) else {
            println!("  {title:<34} not measured");
            continue;
        };
        let ratio = large / small;
        let result = if ratio < bound { "ok" } else { "EXCEEDED" };
        println!(
            "  {title:<34}{small:>9.1} ns →{large:>9.1} ns{ratio:>7.2}×   bound {bound}×: {result}"
        );
    }
}

/// Returns the median time of a benchmark in nanoseconds. Returns `None` if the benchmark was not measured after
/// `since`.
fn estimate(benchmark: &str, since: SystemTime) -> Option<f64> {
    let file = directory().join(benchmark).join("new/estimates.json");
    let written = file.metadata().and_then(|file| file.modified()).ok()?;
    if written < since {
        return None;
    }
    let estimates: Value = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

/// Returns the output directory of criterion: `CRITERION_HOME`, or `criterion` in the build directory.
fn directory() -> PathBuf {
    match std::env::var_os("CRITERION_HOME") {
        Some(home) => home.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("criterion"),
    }
}
