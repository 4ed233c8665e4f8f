//! Loads a gateway with wrk and measures the CPU time and memory of the gateway.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::gateways::Running;
use crate::setup::{Setup, get};
use crate::{BenchResult, Workload};

/// wrk script that counts the statuses of all responses. Only the warm-up uses it, because it slows wrk down.
const COUNT_STATUSES: &str = "
local threads = {}
counts = {}
function setup(thread) table.insert(threads, thread) end
function response(status) counts[status] = (counts[status] or 0) + 1 end
function done()
    for _, thread in ipairs(threads) do
        for status, count in pairs(thread:get('counts')) do print('status', status, count) end
    end
end
";

/// How long wrk can continue after the configured duration. After this time, the benchmark fails.
const GRACE: Duration = Duration::from_secs(15);

/// Parameters of the load: number of rounds, seconds per run, and number of connections.
pub(crate) struct Load {
    pub(crate) rounds: usize,
    pub(crate) seconds: u64,
    pub(crate) connections: usize,
}

impl Load {
    /// Reads the parameters from `PEERS_ROUNDS`, `PEERS_SECONDS` and `PEERS_CONNECTIONS`. Fails if a value is not a
    /// positive integer.
    pub(crate) fn from_env() -> BenchResult<Self> {
        fn number(name: &str, default: u64) -> BenchResult<u64> {
            match env::var(name) {
                Ok(text) => match text.parse() {
                    Ok(number) if number > 0 => Ok(number),
                    _ => Err(format!(
                        "environment variable {name} must be an integer above 0, not {text:?}"
                    )
                    .into()),
                },
                Err(_) => Ok(default),
            }
        }
        Ok(Self {
            rounds: usize::try_from(number("PEERS_ROUNDS", 5)?)?,
            seconds: number("PEERS_SECONDS", 5)?,
            connections: usize::try_from(number("PEERS_CONNECTIONS", 32)?)?,
        })
    }
}

/// Measurements of one run of wrk against a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// CPU time of the gateway per request, in µs.
    pub(crate) cpu: f64,
    /// Number of responses per second.
    pub(crate) throughput: f64,
    /// 99th percentile of the request latency, in ms.
    pub(crate) p99: f64,
    /// Memory of the gateway at the end of the run, in MiB.
    pub(crate) memory: f64,
    /// Descriptions of unexpected responses and connection errors.
    pub(crate) faults: Vec<String>,
}

impl Sample {
    pub(crate) fn summary(&self) -> String {
        let mut line = format!(
            "{:6.2} µs/request {:8.0} requests/s  p99 {:6.2} ms {:6.1} MiB",
            self.cpu, self.throughput, self.p99, self.memory
        );
        for fault in &self.faults {
            write!(line, "  WRONG: {fault}").expect("writing to a string does not fail");
        }
        line
    }
}

/// Measures a gateway after a warm-up. Responses whose status differs from the status of `workload` are reported in
/// `faults` of the sample.
pub(crate) fn measure(
    setup: &Setup,
    running: &Running,
    workload: Workload,
    load: &Load,
) -> BenchResult<Sample> {
    // If the workload is `Rejected`, this request uses up the rate limit, so that the gateway rejects all later
    // requests.
    get(running.address, workload.path())?;
    let mut faults = Vec::new();
    let counts = setup.file("counts.lua", COUNT_STATUSES)?;
    let warm_up = wrk(
        running.address,
        workload.path(),
        load,
        1,
        Some(counts.as_os_str()),
    )?;
    for (status, count) in statuses(&warm_up) {
        if status != workload.status() {
            faults.push(format!(
                "{count} responses with status {status} in the warm-up"
            ));
        }
    }

    let mut sample = loaded(running, workload.path(), load, None)?;
    let expected_bad = workload.status() >= 400;
    if sample.requests == 0 || sample.bad != if expected_bad { sample.requests } else { 0 } {
        faults.push(format!(
            "{} of {} responses have a status other than 2xx or 3xx",
            sample.bad, sample.requests
        ));
    }
    let (status, _) = get(running.address, workload.path())?;
    if status != workload.status() {
        faults.push(format!("response with status {status} after the run"));
    }
    faults.append(&mut sample.sample.faults);
    Ok(Sample {
        faults,
        ..sample.sample
    })
}

/// Result of a run whose statuses are not checked yet.
pub(crate) struct Loaded {
    pub(crate) sample: Sample,
    pub(crate) requests: u64,
    /// Number of responses whose status is neither 2xx nor 3xx.
    pub(crate) bad: u64,
}

/// Runs wrk against a gateway and measures the CPU time and memory of the gateway.
pub(crate) fn loaded(
    running: &Running,
    path: &str,
    load: &Load,
    script: Option<&OsStr>,
) -> BenchResult<Loaded> {
    let before = running.process.cpu();
    let report = wrk(running.address, path, load, load.seconds, script)?;
    let used = running.process.cpu().saturating_sub(before);
    let memory = running.process.memory();

    let name = running.gateway.name();
    let missing = |what: &str| format!("the report of wrk for {name} has no {what}:\n{report}");
    let requests = number_before(&report, " requests in").ok_or_else(|| missing("requests"))?;
    let throughput = value_of(&report, "Requests/sec:").ok_or_else(|| missing("throughput"))?;
    let p99 = value_of(&report, "99%").ok_or_else(|| missing("percentile"))?;
    let bad = value_of(&report, "Non-2xx or 3xx responses:").unwrap_or("0");
    let faults = report
        .lines()
        .find(|line| line.contains("Socket errors"))
        .map(|line| line.trim().to_owned());
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let sample = Sample {
        cpu: used.as_secs_f64() * 1e6 / (requests.max(1) as f64),
        throughput: throughput.parse()?,
        p99: milliseconds(p99).ok_or_else(|| missing("percentile"))?,
        memory: memory as f64 / 1024.0,
        faults: faults.into_iter().collect(),
    };
    Ok(Loaded {
        sample,
        requests,
        bad: bad.parse()?,
    })
}

/// Runs wrk for `seconds` and returns its report. Fails if wrk cannot be started or does not exit within [`GRACE`]
/// afterwards.
pub(crate) fn wrk(
    address: SocketAddr,
    path: &str,
    load: &Load,
    seconds: u64,
    script: Option<&OsStr>,
) -> BenchResult<String> {
    let mut command = Command::new("wrk");
    command
        .args(["--latency", "-t1"])
        .arg(format!("-c{}", load.connections))
        .arg(format!("-d{seconds}s"));
    if let Some(script) = script {
        command.arg("-s").arg(script);
    }
    command.arg(format!("http://{address}{path}"));
    let mut child = Generator(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start wrk: {error}"))?,
    );
    let deadline = Instant::now() + Duration::from_secs(seconds) + GRACE;
    while child.0.try_wait()?.is_none() {
        if Instant::now() > deadline {
            return Err(
                format!("wrk did not exit within {GRACE:?} after the end of the load").into(),
            );
        }
        sleep(Duration::from_millis(5));
    }
    let mut report = String::new();
    if let Some(stdout) = &mut child.0.stdout {
        stdout.read_to_string(&mut report)?;
    }
    Ok(report)
}

/// A running wrk process. Dropping this value kills the process.
struct Generator(Child);

impl Drop for Generator {
    fn drop(&mut self) {
        // Errors are ignored, because they mean that the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn statuses(report: &str) -> impl Iterator<Item = (u16, u64)> {
    report.lines().filter_map(|line| {
        let mut words = line.strip_prefix("status")?.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    })
}

fn number_before(report: &str, label: &str) -> Option<u64> {
    let (before, _) = report.split_once(label)?;
    before.split_whitespace().next_back()?.parse().ok()
}

fn value_of<'a>(report: &'a str, label: &str) -> Option<&'a str> {
    report
        .lines()
        .find_map(|line| line.trim().strip_prefix(label))
        .map(str::trim)
}

fn milliseconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let number: f64 = number.parse().ok()?;
    match unit {
        "us" => Some(number / 1e3),
        "ms" => Some(number),
        "s" => Some(number * 1e3),
        _ => None,
    }
}
