//! Prints the results of the comparison as tables of medians.

use crate::Workload;
use crate::gateways::Gateway;
use crate::load::Sample;

/// Prints one row per gateway, and whether the CPU time of Tidegate is within its maximum.
pub(crate) fn print(workload: Workload, rows: &[(Gateway, Vec<&Sample>)]) {
    let Some((_, nginx)) = rows.iter().find(|(gateway, _)| *gateway == Gateway::Nginx) else {
        return;
    };
    let base = median(nginx, |sample| sample.cpu);
    let base_throughput = median(nginx, |sample| sample.throughput);
    println!("\n{workload:?}: expected status {}", workload.status());
    println!(
        "{:<10}{:>12}{:>16}{:>9}{:>13}{:>9}{:>10}{:>9}",
        "", "CPU µs/req", "min–max", "× nginx", "requests/s", "× nginx", "p99 ms", "MiB"
    );
    for (gateway, samples) in rows {
        let cpu = median(samples, |sample| sample.cpu);
        let throughput = median(samples, |sample| sample.throughput);
        println!(
            "{:<10}{cpu:>12.2}{:>16}{:>9.2}{throughput:>13.0}{:>9.2}{:>10.2}{:>9.1}",
            gateway.name(),
            range(samples),
            cpu / base,
            throughput / base_throughput,
            median(samples, |sample| sample.p99),
            median(samples, |sample| sample.memory),
        );
    }
    for (gateway, samples) in rows {
        for fault in samples.iter().flat_map(|sample| &sample.faults) {
            println!("WRONG RESPONSES from {}: {fault}", gateway.name());
        }
    }
    if let Some((_, own)) = rows
        .iter()
        .find(|(gateway, _)| *gateway == Gateway::Tidegate)
    {
        print_result(median(own, |sample| sample.cpu) / base, workload.bound());
    }
}

/// Prints the ratio of two CPU times and whether it is at most `bound`.
pub(crate) fn print_result(ratio: f64, bound: f64) {
    let result = if ratio <= bound { "ok" } else { "EXCEEDED" };
    println!("CPU per request {ratio:.2}× (bound {bound}×: {result})");
}

/// Returns the minimum and the maximum CPU time per request as text.
pub(crate) fn range(samples: &[&Sample]) -> String {
    let min = samples.iter().map(|s| s.cpu).fold(f64::INFINITY, f64::min);
    let max = samples.iter().map(|s| s.cpu).fold(0.0, f64::max);
    format!("{min:.2}–{max:.2}")
}

/// Returns the median of one measurement over all samples. `of` selects the measurement.
pub(crate) fn median(samples: &[&Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(|sample| of(sample)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}
