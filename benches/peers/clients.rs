//! Whether a request costs more for the clients that are tracked beside its own.
//!
//! Two gateways with the same configuration, one told of a thousand clients and one of a million, by
//! the `X-Forwarded-For` of a trusted peer; then both are loaded in turns with requests of clients
//! picked at random among their own. A token takes ten minutes to come back, so no bucket is full, and
//! forgotten, before all clients are known.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::Outcome;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, Sample, loaded, wrk};
use crate::scene::{Scene, free_address, get, until_listening};
use crate::table::{median, range, verdict};

const FEW: u32 = 1_000;
const MANY: u32 = 1_000_000;

/// Clients are spread over 10.0.0.0/8, so that few and many are spelled at the same length.
const ADDRESSES: u32 = 1 << 24;

/// Connections that tell a gateway of its clients, and requests each sends before it reads the answers.
const TELLERS: u32 = 8;
const AT_ONCE: u32 = 50;

/// The most CPU time a request among many may cost, as a multiple of one among few.
const BOUND: f64 = 1.1;

/// A gateway and the clients it tracks.
struct Crowd {
    clients: u32,
    running: Running,
    script: PathBuf,
    samples: Vec<Sample>,
}

/// Measures and prints the comparison.
pub(crate) fn compare(scene: &Scene, load: &Load) -> Outcome<()> {
    let mut crowds = [Crowd::gather(scene, FEW)?, Crowd::gather(scene, MANY)?];
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    for round in 1..=load.rounds {
        for crowd in &mut crowds {
            let sample = crowd.measure(load)?;
            println!(
                "round {round}: {:>9} clients {}",
                crowd.clients,
                sample.summary()
            );
            crowd.samples.push(sample);
        }
    }

    println!(
        "\n{:>10}{:>12}{:>16}{:>13}{:>10}{:>9}",
        "clients", "CPU µs/req", "least–most", "requests/s", "p99 ms", "MiB"
    );
    let mut costs = Vec::new();
    for crowd in &crowds {
        let samples: Vec<&Sample> = crowd.samples.iter().collect();
        let cpu = median(&samples, |sample| sample.cpu);
        println!(
            "{:>10}{cpu:>12.2}{:>16}{:>13.0}{:>10.2}{:>9.1}",
            crowd.clients,
            range(&samples),
            median(&samples, |sample| sample.throughput),
            median(&samples, |sample| sample.p99),
            median(&samples, |sample| sample.memory),
        );
        for fault in samples.iter().flat_map(|sample| &sample.faults) {
            println!("WRONG ANSWERS: {fault}");
        }
        costs.push(cpu);
    }
    verdict(costs[1] / costs[0], BOUND);
    Ok(())
}

impl Crowd {
    /// Starts a gateway and has it track so many clients.
    fn gather(scene: &Scene, clients: u32) -> Outcome<Self> {
        let address = free_address()?;
        let admin = free_address()?;
        let name = format!("clients-{clients}");
        let config = config(address, admin, scene.upstream);
        let mut process = tidegate(scene, &name, &config)?;
        until_listening(&mut process, address)?;
        tell(address, clients)?;
        let (_, metrics) = get(admin, "/metrics")?;
        let tracked = metrics
            .lines()
            .find_map(|line| line.strip_prefix("tidegate_buckets "))
            .unwrap_or("no number of buckets");
        println!("told of {clients} clients, the gateway tracks {tracked}");
        if tracked.trim() != clients.to_string() {
            return Err(format!("{clients} clients expected, {tracked} tracked").into());
        }
        Ok(Self {
            clients,
            running: Running {
                gateway: Gateway::Tidegate,
                process,
                address,
            },
            script: scene.file(&format!("{name}.lua"), &script(clients))?,
            samples: Vec::new(),
        })
    }

    fn measure(&self, load: &Load) -> Outcome<Sample> {
        let script = Some(self.script.as_os_str());
        wrk(self.running.address, "/", load, 1, script)?;
        let mut run = loaded(&self.running, "/", load, script)?;
        if run.bad > 0 || run.requests == 0 {
            run.sample.faults.push(format!(
                "{} of {} answers were no success",
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

/// A request for each client, over a few connections at once.
fn tell(gateway: SocketAddr, clients: u32) -> Outcome<()> {
    thread::scope(|scope| {
        let tellers: Vec<_> = (0..TELLERS)
            .map(|teller| {
                let share = clients * teller / TELLERS..clients * (teller + 1) / TELLERS;
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(gateway)?;
                    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                    for first in share.clone().step_by(AT_ONCE as usize) {
                        let batch = first..share.end.min(first + AT_ONCE);
                        tell_batch(&mut stream, batch, clients)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let results: std::io::Result<Vec<()>> = tellers
            .into_iter()
            .map(|teller| teller.join().expect("a teller does not panic"))
            .collect();
        results.map(drop).map_err(Into::into)
    })
}

fn tell_batch(
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
    // An answer has one brace, in its body.
    let mut answers = 0;
    let mut buffer = [0; 16 * 1024];
    while answers < batch.len() {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answers += buffer[..read].split(|&byte| byte == b'{').count() - 1;
    }
    Ok(())
}

/// Requests of clients picked at random.
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
