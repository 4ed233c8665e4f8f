//! Metrics of the process, with the names that Prometheus client libraries use. A value that `/proc` does not show is
//! left out.

use std::fmt;
use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::admin::stage_metrics::encoder::FamilyEncoder;

/// Unit of times in `/proc/PID/stat`, on all architectures of Linux that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Unix time of the start. Computed once, because the clocks do not run equally fast.
static STARTED: LazyLock<Option<f64>> = LazyLock::new(|| {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process can contain spaces. `starttime` is the 20th field after it.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: f64 = fields.split(' ').nth(19)?.parse().ok()?;
    let age = clock(ClockId::Boottime).as_secs_f64() - ticks / TICKS_PER_SECOND;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.as_secs_f64() - age)
});

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = FamilyEncoder(encoder);
        let cpu = clock(ClockId::ProcessCPUTime).as_secs_f64();
        let help = "CPU time of the process in user and system mode, in seconds";
        encoder.counter("process_cpu_seconds", help, cpu)?;
        if let Some(started) = *STARTED {
            let help = "Unix time at which the process started, in seconds";
            encoder.gauge("process_start_time_seconds", help, started)?;
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |field| {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib * 1_024)
        };
        let open = fs::read_dir("/proc/self/fd").map(|entries| entries.count() as u64);
        // The directory itself is open meanwhile.
        let open = open.ok().and_then(|open| open.checked_sub(1));
        let max = getrlimit(Resource::Nofile).current;
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory in bytes",
                bytes("VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory in bytes",
                bytes("VmSize:"),
            ),
            ("process_open_fds", "Open file descriptors", open),
            ("process_max_fds", "Limit of open file descriptors", max),
        ] {
            if let Some(value) = value {
                encoder.gauge(name, help, value)?;
            }
        }
        Ok(())
    }
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    time.try_into().unwrap_or_default()
}
