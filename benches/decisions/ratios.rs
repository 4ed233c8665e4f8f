//! How costs grow, from the estimates criterion wrote.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

/// What may cost how much more than what: a title, two benchmarks and the bound.
const BOUNDS: [(&str, &str, &str, f64); 5] = [
    (
        "charge, 1 M against 1 k clients",
        "charge/1 of 1M/1 threads",
        "charge/1 of 1k/1 threads",
        4.0,
    ),
    (
        "charge, the same, skewed",
        "charge/1 of 1M skewed/1 threads",
        "charge/1 of 1k skewed/1 threads",
        4.0,
    ),
    (
        "charge, the same, 3 limits",
        "charge/3 of 1M/1 threads",
        "charge/3 of 1k/1 threads",
        4.0,
    ),
    (
        "route, 1,000 against 10, literal",
        "route/literal/1000",
        "route/literal/10",
        5.0,
    ),
    (
        "route, 1,000 against 10, wildcard",
        "route/wildcard/1000",
        "route/wildcard/10",
        5.0,
    ),
];

/// Prints each ratio, from what was measured after `since`.
pub(crate) fn print(since: SystemTime) {
    println!("\nHow costs grow");
    for (title, dear, cheap, bound) in BOUNDS {
        let (Some(dear), Some(cheap)) = (estimate(dear, since), estimate(cheap, since)) else {
            println!("  {title:<34} not measured");
            continue;
        };
        let ratio = dear / cheap;
        let verdict = if ratio < bound { "holds" } else { "BROKEN" };
        println!(
            "  {title:<34}{cheap:>9.1} ns →{dear:>9.1} ns{ratio:>7.2}×   below {bound}×: {verdict}"
        );
    }
}

/// The median in nanoseconds of a benchmark, if it was measured after `since`.
fn estimate(benchmark: &str, since: SystemTime) -> Option<f64> {
    let file = directory().join(benchmark).join("new/estimates.json");
    let written = file.metadata().and_then(|file| file.modified()).ok()?;
    if written < since {
        return None;
    }
    let estimates: Value = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

/// Where criterion writes.
fn directory() -> PathBuf {
    match std::env::var_os("CRITERION_HOME") {
        Some(home) => home.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("criterion"),
    }
}
