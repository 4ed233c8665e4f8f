//! Compares the CPU time per request of a gateway that tracks a thousand clients and of one that tracks a million.
//!
//! Both gateways have the same configuration. First, each gateway gets one request per client, with the client's
//! address in `X-Forwarded-For`, so that it tracks a bucket for each client. Then both are loaded in turns with
//! requests of random clients. The gateway evicts full buckets. A bucket gets one token in ten minutes, so no bucket
//! becomes full before all clients are tracked.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::BenchResult;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, Sample, loaded, wrk};
use crate::setup::{Setup, free_address, get, until_listening};
use crate::table::{median, print_result, range};

const FEW: u32 = 1_000;
const MANY: u32 = 1_000_000;

/// Number of addresses in 10.0.0.0/8. The clients are spread over this network, so that the text lengths of the client
/// addresses are similar with a thousand and with a million clients.
const ADDRESSES: u32 = 1 << 24;

/// Number of connections that send the first request of each client.
const CONNECTIONS: u32 = 8;

/// Number of requests that are sent on a connection before the responses are read.
const PIPELINED: u32 = 50;

/// Maximum ratio of the CPU time per request with a million clients to that with a thousand.
const BOUND: f64 = 1.1;

/// A running gateway and the number of clients that it tracks.
struct MeasuredGateway {
    clients: u32,
    running: Running,
    script: PathBuf,
    samples: Vec<Sample>,
}

/// Measures the CPU time per request of a gateway with few clients and of one with many, and prints the ratio.
pub(crate) fn compare(setup: &Setup, load: &Load) -> BenchResult<()> {
    let mut gateways = [
        MeasuredGateway::start(setup, FEW)?,
        MeasuredGateway::start(setup, MANY)?,
    ];
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    for round in 1..=load.rounds {
        for gateway in &mut gateways {
            let sample = gateway.measure(load)?;
            println!(
                "round {round}: {:>9} clients {}",
                gateway.clients,
                sample.summary()
            );
            gateway.samples.push(sample);
        }
    }

    println!(
        "\n{:>10}{:>12}{:>16}{:>13}{:>10}{:>9}",
        "clients", "CPU µs/req", "min–max", "requests/s", "p99 ms", "MiB"
    );
    let mut costs = Vec::new();
    for gateway in &gateways {
        let samples: Vec<&Sample> = gateway.samples.iter().collect();
        let cpu = median(&samples, |sample| sample.cpu);
        println!(
            "{:>10}{cpu:>12.2}{:>16}{:>13.0}{:>10.2}{:>9.1}",
            gateway.clients,
            range(&samples),
            median(&samples, |sample| sample.throughput),
            median(&samples, |sample| sample.p99),
            median(&samples, |sample| sample.memory),
        );
        for fault in samples.iter().flat_map(|sample| &sample.faults) {
            println!("WRONG RESPONSES: {fault}");
        }
        costs.push(cpu);
    }
    print_result(costs[1] / costs[0], BOUND);
    Ok(())
}

impl MeasuredGateway {
    /// Starts a gateway and makes it track `clients` clients.
    fn start(setup: &Setup, clients: u32) -> BenchResult<Self> {
        let address = free_address()?;
        let admin = free_address()?;
        let name = format!("clients-{clients}");
        let config = config(address, admin, setup.upstream);
        let mut process = tidegate(setup, &name, &config)?;
        until_listening(&mut process, address)?;
        send_from_all(address, clients)?;
        let (_, metrics) = get(admin, "/metrics")?;
        let tracked = metrics
            .lines()
            .find_map(|line| line.strip_prefix("tidegate_buckets "))
            .unwrap_or("an unknown number of");
        println!("{clients} clients sent a request, the gateway tracks {tracked} buckets");
        if tracked.trim() != clients.to_string() {
            return Err(
                format!("the gateway tracks {tracked} buckets instead of {clients}").into(),
            );
        }
        Ok(Self {
            clients,
            running: Running {
                gateway: Gateway::Tidegate,
                process,
                address,
            },
            script: setup.file(&format!("{name}.lua"), &script(clients))?,
            samples: Vec::new(),
        })
    }

    fn measure(&self, load: &Load) -> BenchResult<Sample> {
        let script = Some(self.script.as_os_str());
        wrk(self.running.address, "/", load, 1, script)?;
        let mut run = loaded(&self.running, "/", load, script)?;
        if run.bad > 0 || run.requests == 0 {
            run.sample.faults.push(format!(
                "{} of {} responses have a status other than 2xx or 3xx",
                run.bad, run.requests
            ));
        }
        Ok(run.sample)
    }
}

fn config(listen: SocketAddr, admin: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r#"
        server = {{ listen = "{listen}", workers = 2 }}
        admin = {{ listen = "{admin}" }}
        client = {{ trusted_proxies = ["127.0.0.0/8"] }}
        store = {{ max_clients = 1250000 }}
        log = {{ access = false }}
        upstream.api.servers = ["http://{upstream}"]
        limit.client = {{ rate = "1/600s", burst = 50000 }}
        [[route]]
        name = "api"
        path = "/"
        limits = ["client"]
        "#
    )
}

/// Sends one request of each client over [`CONNECTIONS`] concurrent connections.
fn send_from_all(gateway: SocketAddr, clients: u32) -> BenchResult<()> {
    thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|index| {
                let share = clients * index / CONNECTIONS..clients * (index + 1) / CONNECTIONS;
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(gateway)?;
                    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                    for first in share.clone().step_by(PIPELINED as usize) {
                        let batch = first..share.end.min(first + PIPELINED);
                        send_batch(&mut stream, batch, clients)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let results: std::io::Result<Vec<()>> = senders
            .into_iter()
            .map(|sender| sender.join().expect("a sender does not panic"))
            .collect();
        results.map(drop).map_err(Into::into)
    })
}

fn send_batch(
    stream: &mut TcpStream,
    batch: std::ops::Range<u32>,
    clients: u32,
) -> std::io::Result<()> {
    let mut requests = Vec::new();
    for client in batch.clone() {
        let first = Ipv4Addr::new(10, 0, 0, 0).to_bits();
        let address = Ipv4Addr::from_bits(first + client * (ADDRESSES / clients));
        write!(
            requests,
            "GET / HTTP/1.1\r\nHost: gateway\r\nX-Forwarded-For: {address}\r\n\r\n"
        )?;
    }
    stream.write_all(&requests)?;
    // Responses are counted by their opening braces, because each response contains exactly one, in its body.
    let mut responses = 0;
    let mut buffer = [0; 16 * 1024];
    while responses < batch.len() {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        responses += buffer[..read].split(|&byte| byte == b'{').count() - 1;
    }
    Ok(())
}

/// Returns a wrk script that sends requests of random clients.
fn script(clients: u32) -> String {
    let stride = ADDRESSES / clients;
    format!(
        r#"
        local random, floor = math.random, math.floor
        math.randomseed(os.time())
        function request()
            local n = random(0, {clients} - 1) * {stride}
            return "GET / HTTP/1.1\r\nHost: gateway\r\nX-Forwarded-For: 10." .. floor(n / 65536) .. "."
                .. floor(n / 256) % 256 .. "." .. n % 256 .. "\r\n\r\n"
        end
        "#
    )
}
