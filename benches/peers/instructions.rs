//! Number of user-space CPU instructions per request, for proxied, rejected and replayed requests.
//!
//! A gateway with one worker runs under callgrind and serves requests one after another on one connection. The
//! instructions of a run with only the warm-up are subtracted, so that start and shutdown do not count. The result
//! hardly depends on the load of the machine. It is therefore suitable for comparing two versions of the gateway. If
//! `INSTRUCTIONS_BASE` is the path of another gateway binary, the difference is printed.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::BenchResult;
use crate::process::Process;
use crate::setup::{Setup, free_address, until_listening};

/// Number of requests per run whose instructions are counted.
const REQUESTS: u64 = 2_000;

/// Number of requests before the counted ones. They fill caches and connection pools.
const WARM_UP: u64 = 200;

/// Number of runs per case. The printed result is the median of the runs.
const RUNS: usize = 5;

/// Timeout of a request. It is long, because callgrind slows the gateway down.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the gateway does with the requests.
#[derive(Clone, Copy, Debug)]
enum Case {
    Proxied,
    Rejected,
    Replayed,
}

impl Case {
    const ALL: [Self; 3] = [Self::Proxied, Self::Rejected, Self::Replayed];

    fn request(self, host: SocketAddr) -> String {
        match self {
            Self::Proxied => format!("GET /api/items HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            Self::Rejected => format!("GET /rejected/items HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            Self::Replayed => format!(
                "POST /api/items HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
                 Idempotency-Key: one\r\nContent-Length: 14\r\n\r\n{{\"amount\":100}}"
            ),
        }
    }

    fn status(self) -> &'static str {
        match self {
            Self::Proxied | Self::Replayed => "200",
            Self::Rejected => "429",
        }
    }

    /// Maximum growth of the instructions per request compared with `INSTRUCTIONS_BASE`, in percent.
    fn bound(self) -> f64 {
        match self {
            Self::Proxied | Self::Replayed => 3.0,
            Self::Rejected => 8.0,
        }
    }
}

/// Measures Tidegate and prints the instructions per request. If `INSTRUCTIONS_BASE` contains the path of another
/// gateway binary, also measures this binary and prints the difference.
pub(crate) fn measure(setup: &Setup) -> BenchResult<()> {
    let base = std::env::var_os("INSTRUCTIONS_BASE")
        .map(copy_of(setup))
        .transpose()?;
    println!("median of {RUNS} runs of {REQUESTS} requests, one worker, access log off");
    for case in Case::ALL {
        let now = median(setup, &setup.tidegate, case)?;
        print!(
            "{:<10}{now:>10} instructions per request",
            format!("{case:?}").to_lowercase()
        );
        if let Some(base) = &base {
            let before = median(setup, base, case)?;
            let growth = (f64::from(now) / f64::from(before) - 1.0) * 100.0;
            let result = if growth <= case.bound() {
                "ok"
            } else {
                "EXCEEDED"
            };
            print!(
                ", base {before}: {growth:+.1} % (bound {:+.0} %: {result})",
                case.bound()
            );
        }
        println!();
    }
    Ok(())
}

/// Returns a function that copies a gateway binary and returns the path of the copy. A build can replace the original
/// between two runs, but not the copy.
fn copy_of(setup: &Setup) -> impl Fn(OsString) -> BenchResult<std::path::PathBuf> {
    let copy = setup.path().join("base");
    move |binary| {
        fs::copy(binary, &copy)?;
        Ok(copy.clone())
    }
}

fn median(setup: &Setup, binary: &Path, case: Case) -> BenchResult<u32> {
    let mut results = Vec::new();
    for _ in 0..RUNS {
        let warm_up = run(setup, binary, case, WARM_UP)?;
        let all = run(setup, binary, case, WARM_UP + REQUESTS)?;
        results.push(u32::try_from(all.saturating_sub(warm_up) / REQUESTS)?);
    }
    results.sort_unstable();
    Ok(results[RUNS / 2])
}

/// Runs a gateway that serves this many requests. Returns the number of its instructions, including start and shutdown.
fn run(setup: &Setup, binary: &Path, case: Case, requests: u64) -> BenchResult<u64> {
    let address = free_address()?;
    let config = setup.file(
        "instructions.toml",
        &config(address, free_address()?, setup.upstream),
    )?;
    let profile = setup.path().join("callgrind.out");
    let _ = fs::remove_file(&profile);
    let mut out = OsString::from("--callgrind-out-file=");
    out.push(&profile);
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(out);
    command.arg(binary).arg("serve").arg("--config").arg(config);
    let mut process = Process::start(&mut command, &setup.path().join("callgrind.log"))?;
    until_listening(&mut process, address)?;
    first_exchange(address, case)?;
    let statuses = exchange(address, case, requests)?;
    drop(process);
    if let Some(other) = statuses.iter().find(|status| *status != case.status()) {
        return Err(format!("a response has status {other} instead of {}", case.status()).into());
    }
    let profile = fs::read_to_string(&profile)?;
    let total = profile
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    Ok(total
        .ok_or("the output file of callgrind has no totals")?
        .trim()
        .parse()?)
}

/// Sends the first request. It uses up the rate limit in the case `Rejected`, and stores the response in the case
/// `Replayed`.
///
/// The request is retried until the gateway listens.
fn first_exchange(address: SocketAddr, case: Case) -> BenchResult<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match exchange(address, case, 1) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(Duration::from_millis(10)),
        }
    }
}

/// Sends this many requests of the case one after another on one connection. Returns the statuses of the responses.
fn exchange(address: SocketAddr, case: Case, requests: u64) -> BenchResult<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let request = case.request(address);
    let mut statuses = Vec::new();
    for _ in 0..requests {
        stream.write_all(request.as_bytes())?;
        statuses.push(response(&mut reader)?);
    }
    Ok(statuses)
}

/// Reads a complete response and returns its status code as text.
fn response(reader: &mut BufReader<TcpStream>) -> BenchResult<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1);
    let status = status
        .ok_or("the first line of the response has no status")?
        .to_owned();
    let mut length = 0;
    while !line.trim_end().is_empty() {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    Ok(status)
}

fn config(listen: SocketAddr, admin: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r#"
        server = {{ listen = "{listen}", workers = 1 }}
        admin = {{ listen = "{admin}" }}
        log = {{ access = false }}
        upstream.api.servers = ["http://{upstream}"]
        limit.api = {{ rate = "1000000/s", burst = 1000000 }}
        limit.rejected = {{ rate = "1/h", burst = 0 }}
        [[route]]
        name = "api"
        path = "/api/"
        limits = ["api"]
        idempotency = {{ mode = "optional" }}
        [[route]]
        name = "rejected"
        path = "/rejected/"
        limits = ["rejected"]
        "#
    )
}
