//! Medians, side by side.

use crate::Work;
use crate::gateways::Gateway;
use crate::load::Sample;

/// Prints one row for each gateway, nginx first, and whether the gateway keeps to its bound.
pub(crate) fn print(work: Work, rows: &[(Gateway, Vec<&Sample>)]) {
    let Some((_, nginx)) = rows.iter().find(|(gateway, _)| *gateway == Gateway::Nginx) else {
        return;
    };
    let base = median(nginx, |sample| sample.cpu);
    let base_throughput = median(nginx, |sample| sample.throughput);
    println!("\n{work:?}: every answer should be {}", work.status());
    println!(
        "{:<10}{:>12}{:>16}{:>9}{:>13}{:>9}{:>10}{:>9}",
        "", "CPU µs/req", "least–most", "× nginx", "requests/s", "× nginx", "p99 ms", "MiB"
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
            println!("WRONG ANSWERS from {}: {fault}", gateway.name());
        }
    }
    if let Some((_, own)) = rows
        .iter()
        .find(|(gateway, _)| *gateway == Gateway::Tidegate)
    {
        verdict(median(own, |sample| sample.cpu) / base, work.bound());
    }
}

/// Says whether a ratio keeps to its bound.
pub(crate) fn verdict(ratio: f64, bound: f64) {
    let verdict = if ratio <= bound { "holds" } else { "BROKEN" };
    println!("CPU per request {ratio:.2}×, at most {bound}×: {verdict}");
}

/// The least and the most CPU time for a request.
pub(crate) fn range(samples: &[&Sample]) -> String {
    let least = samples.iter().map(|s| s.cpu).fold(f64::INFINITY, f64::min);
    let most = samples.iter().map(|s| s.cpu).fold(0.0, f64::max);
    format!("{least:.2}–{most:.2}")
}

/// The median of what `of` takes from each sample.
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
