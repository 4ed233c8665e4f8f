//! CPU time of requests with an idempotency key: a replay compared with the nginx cache, and a first request with and
//! without a key.
//!
//! nginx has no idempotency keys. Its closest feature is a cache of POST responses by the value of a header. A replay
//! is compared with this cache: same response, same thousand keys, same rate limit. The first request with an
//! idempotency key is compared with a request that has the key in a header that the gateway ignores. All stores are in
//! memory.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::BenchResult;
use crate::gateways::{Gateway, Running, tidegate};
use crate::load::{Load, Sample, loaded, wrk};
use crate::setup::{Setup, free_address, nginx, until_listening};
use crate::table::{median, print_result, range};

/// Number of idempotency keys whose responses are replayed in turn.
const KEYS: u32 = 1_000;

const BODY: &str = r#"{"amount":100}"#;

/// A measured kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Cached,
    Replayed,
    Unkeyed,
    First,
}

impl Case {
    const ALL: [Self; 4] = [Self::Cached, Self::Replayed, Self::Unkeyed, Self::First];

    fn name(self) -> &'static str {
        match self {
            Self::Cached => "nginx proxy_cache",
            Self::Replayed => "tidegate replay",
            Self::Unkeyed => "tidegate, no key",
            Self::First => "tidegate, new key",
        }
    }

    fn gateway(self) -> Gateway {
        match self {
            Self::Cached => Gateway::Nginx,
            Self::Replayed | Self::Unkeyed | Self::First => Gateway::Tidegate,
        }
    }

    /// Returns the wrk script of the case. In the cases `Cached` and `Replayed`, the script sends the same [`KEYS`]
    /// keys in turn. In the other cases, it sends a new key with each request.
    fn script(self) -> String {
        let header = match self {
            Self::Unkeyed => "X-Ignored",
            Self::Cached | Self::Replayed | Self::First => "Idempotency-Key",
        };
        let request = format!(
            "wrk.format('POST', '/api/items', {{['Content-Type'] = 'application/json', \
             ['{header}'] = 'key-' .. key}}, '{BODY}')"
        );
        match self {
            Self::Cached | Self::Replayed => format!(
                "local requests, at = {{}}, 0
                function init() for key = 1, {KEYS} do requests[key] = {request} end end
                function request() at = at % {KEYS} + 1; return requests[at] end"
            ),
            Self::Unkeyed | Self::First => format!(
                "local run, key = tostring({{}}):sub(8), 0
                local number = 0
                function request() number = number + 1; key = run .. number; return {request} end"
            ),
        }
    }

    fn start(self, setup: &Setup) -> BenchResult<Running> {
        let address = free_address()?;
        let mut process = match self.gateway() {
            Gateway::Nginx => nginx(setup.path(), "cache", 2, &site(address, setup.upstream))?,
            _ => tidegate(
                setup,
                "keyed",
                &config(address, free_address()?, setup.upstream),
            )?,
        };
        until_listening(&mut process, address)?;
        Ok(Running {
            gateway: self.gateway(),
            process,
            address,
        })
    }

    fn measure(self, setup: &Setup, load: &Load) -> BenchResult<Sample> {
        let running = self.start(setup)?;
        let script = setup.file("keyed.lua", &self.script())?;
        let script = Some(script.as_os_str());
        // The warm-up sends all keys, so that every later request of the case `Replayed` is a replay.
        wrk(running.address, "/api/items", load, 1, script)?;
        let mut run = loaded(&running, "/api/items", load, script)?;
        if run.bad > 0 || run.requests == 0 {
            let fault = format!(
                "{} of {} responses have a status other than 2xx or 3xx",
                run.bad, run.requests
            );
            run.sample.faults.push(fault);
        }
        let response = post(running.address, "key-1")?;
        let is_expected = match self {
            Self::Cached => response.contains("X-Cache: HIT"),
            Self::Replayed => response.contains("idempotent-replayed: true"),
            Self::Unkeyed | Self::First => !response.contains("idempotent-replayed"),
        };
        if !is_expected {
            run.sample
                .faults
                .push(format!("unexpected response: {response}"));
        }
        Ok(run.sample)
    }
}

/// Measures all cases and prints both comparisons.
pub(crate) fn compare(setup: &Setup, load: &Load) -> BenchResult<()> {
    println!(
        "{} rounds of {} s, {} connections, after 1 s of warm-up each",
        load.rounds, load.seconds, load.connections
    );
    let mut samples: Vec<(Case, Sample)> = Vec::new();
    for round in 1..=load.rounds {
        for case in Case::ALL {
            let sample = case.measure(setup, load)?;
            println!("round {round}: {:<27} {}", case.name(), sample.summary());
            samples.push((case, sample));
        }
    }
    println!(
        "\n{:<28}{:>12}{:>16}{:>13}{:>10}{:>9}",
        "", "CPU µs/req", "min–max", "requests/s", "p99 ms", "MiB"
    );
    let cost = |case: Case| {
        let of_case = samples.iter().filter(|(of, _)| *of == case);
        let of_case: Vec<&Sample> = of_case.map(|(_, sample)| sample).collect();
        let cpu = median(&of_case, |sample| sample.cpu);
        println!(
            "{:<28}{cpu:>12.2}{:>16}{:>13.0}{:>10.2}{:>9.1}",
            case.name(),
            range(&of_case),
            median(&of_case, |sample| sample.throughput),
            median(&of_case, |sample| sample.p99),
            median(&of_case, |sample| sample.memory),
        );
        for fault in of_case.iter().flat_map(|sample| &sample.faults) {
            println!("WRONG RESPONSES: {fault}");
        }
        cpu
    };
    let [cached, replayed, unkeyed, first] = Case::ALL.map(cost);
    print!("Replay compared with the nginx cache: ");
    print_result(replayed / cached, 0.75);
    print!("New key compared with no key: ");
    print_result(first / unkeyed, 1.3);
    Ok(())
}

/// Sends a POST request with an idempotency key on a new connection. Returns the complete response as text.
fn post(address: SocketAddr, key: &str) -> BenchResult<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = BODY.len();
    write!(
        stream,
        "POST /api/items HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n{BODY}"
    )?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

fn site(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "limit_req_zone $binary_remote_addr zone=api:10m rate=1000000r/s;
        limit_req_status 429;
        proxy_cache_path cache keys_zone=keys:10m inactive=1d;
        upstream api {{
            server {upstream};
            keepalive 64;
            keepalive_requests 1000000000;
        }}
        proxy_http_version 1.1;
        proxy_set_header Connection \"\";
        proxy_set_header Host $http_host;
        server {{
            listen {listen};
            location /api/ {{
                limit_req zone=api burst=1000000 nodelay;
                proxy_cache keys;
                proxy_cache_methods POST;
                proxy_cache_key $http_idempotency_key;
                proxy_cache_valid any 1d;
                proxy_cache_lock on;
                add_header X-Cache $upstream_cache_status;
                proxy_pass http://api;
            }}
        }}"
    )
}

fn config(listen: SocketAddr, admin: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r#"
        server = {{ listen = "{listen}", workers = 2 }}
        admin = {{ listen = "{admin}" }}
        log = {{ access = false }}
        store = {{ max_keys = 10000000, max_bytes = "4GiB" }}
        upstream.api.servers = ["http://{upstream}"]
        limit.api = {{ rate = "1000000/s", burst = 1000000 }}
        [[route]]
        name = "api"
        path = "/api/"
        limits = ["api"]
        idempotency = {{ mode = "optional", max_keys_per_scope = 10000000 }}
        "#
    )
}
