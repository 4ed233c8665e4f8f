//! Which gateways keep their rate limits over a change of the configuration, and with which setting.
//!
//! Each gateway has a limit of one request per second with a capacity of 60 requests. Its bucket is drained, then its
//! configuration changes, then a burst shows how many tokens the bucket has. The exact number is what the bucket has
//! gained since the drain. The last case is silence instead of a change, because a gateway can also forget a bucket
//! before it is full. Each case starts a new process.
//!
//! Limits are per client address, except that all clients share Envoy's bucket. HAProxy has no bucket: it counts the
//! requests in a window, with those that it rejects.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::BenchResult;
use crate::process::Process;
use crate::redis::RedisServer;
use crate::setup::{Setup, free_address, get, until_listening};

/// Number of requests that a full bucket admits at once.
const CAPACITY: u32 = 60;

/// Number of requests in the burst.
const BURST: u32 = 80;

const SILENCE: Duration = Duration::from_secs(5);

/// Maximum time until a configuration is in force.
const IN_FORCE: Duration = Duration::from_secs(10);

/// A gateway program. In its arguments and files, [`Site::fill`] replaces the names in angle brackets.
struct Program {
    name: &'static str,
    /// Argument with which the program prints its version.
    version: &'static str,
    arguments: &'static str,
    /// Signal that makes the program read its files again. Without one, the program watches them.
    reload: Option<Signal>,
    files: &'static [(&'static str, &'static str)],
}

/// A program with a setting that decides whether it keeps its limits.
struct Row {
    program: &'static Program,
    setting: &'static str,
    edit: Edit,
    /// Age of the process at the drain.
    age: Duration,
}

/// Text in the files, and the text that replaces it under a setting.
type Edit = (&'static str, &'static str);

const NONE: Edit = ("", "");
const ZONE_SIZE: Edit = ("10m", "<zone size>");
const PEER: Edit = ("type ip", "type ip peers gates");
const REDIS: Edit = ("burst = 60", "burst = 60\nredis.endpoints = ['<redis>']");
const ROUTE: Edit = ("{}", "{ limit: <limit> }");

/// HAProxy can miss a signal while it starts. Its process waits 5 s for the counters of a peer, and only then sends its
/// own to the next process.
static ROWS: [Row; 10] = [
    row(&NGINX, "", NONE, 0),
    row(&NGINX, ", zone size changes too", ZONE_SIZE, 0),
    row(&HAPROXY, "", NONE, 1),
    row(&HAPROXY, ", local peer", PEER, 6),
    row(&HAPROXY, ", local peer, process 1 s old", PEER, 1),
    row(&TRAEFIK, "", NONE, 0),
    row(&TRAEFIK, ", limit in Redis", REDIS, 0),
    row(&ENVOY, ", limit of the route", ROUTE, 0),
    row(&ENVOY, ", limit of the listener", NONE, 0),
    row(&TIDEGATE, "", NONE, 0),
];

const fn row(program: &'static Program, setting: &'static str, edit: Edit, age: u64) -> Row {
    Row {
        program,
        setting,
        edit,
        age: Duration::from_secs(age),
    }
}

/// What a change of the configuration changes: the requests per second, and the path of a route without a limit, which
/// shows the configuration in force.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Config(u32, &'static str);

const INITIAL: Config = Config(1, "/before");

/// What follows the drain: a change of the configuration, or silence.
const CASES: [(&str, Option<Config>); 3] = [
    ("unrelated change", Some(Config(1, "/after"))),
    ("changed limit", Some(Config(2, "/after"))),
    ("5 s of silence", None),
];

/// A running gateway. Fields are dropped in the order of declaration, so the process ends before its directory is
/// deleted.
struct Gateway {
    process: Process,
    site: Site,
}

/// Where a gateway runs.
struct Site {
    row: &'static Row,
    directory: TempDir,
    listen: SocketAddr,
    /// Address on which HAProxy receives the counters of its previous process.
    peer: SocketAddr,
    upstream: SocketAddr,
    redis: Option<RedisServer>,
}

/// Measures all cases of each installed gateway and prints them as a table.
pub(crate) fn compare(setup: &Setup) -> BenchResult<()> {
    println!("Admitted requests of {BURST} after the drain, with the exact number in parentheses");
    let [first, second, third] = CASES.map(|(name, _)| name);
    println!("{:<44}{first:>18}{second:>18}{third:>18}", "");
    for row in &ROWS {
        let Row {
            program, setting, ..
        } = row;
        let Some(version) = program.version(setup) else {
            println!("{}{setting}: cannot be started", program.name);
            continue;
        };
        let name = format!("{} {version}{setting}", program.name);
        print!("{name:<44}");
        for (case, change) in CASES {
            let answer = measure(setup, row, change);
            let answer = answer.map_err(|error| format!("{name}, {case}: {error}"))?;
            print!("{answer:>18}");
        }
        println!();
    }
    Ok(())
}

/// Returns how many requests of the burst are admitted, and the bounds of the exact number.
fn measure(setup: &Setup, row: &'static Row, change: Option<Config>) -> BenchResult<String> {
    let gateway = Gateway::start(setup, row)?;
    sleep(row.age);
    let mut capacity = 0;
    while capacity < BURST && gateway.admits()? {
        capacity += 1;
    }
    let drained = Instant::now();
    if !(CAPACITY..CAPACITY + 5).contains(&capacity) {
        return Err(format!("the full bucket admits {capacity} requests").into());
    }
    match change {
        Some(config) => gateway.change(config)?,
        None => sleep(SILENCE),
    }
    let least = drained.elapsed();
    let mut admitted = 0;
    for _ in 0..BURST {
        admitted += u32::from(gateway.admits()?);
    }
    // The drained bucket can have had a part of a token, and the new rate can be in force at once.
    let Config(rate, _) = change.unwrap_or(INITIAL);
    let most = drained.elapsed() * rate;
    Ok(format!(
        "{admitted} ({:.0}–{:.0})",
        least.as_secs_f64().floor(),
        most.as_secs_f64().ceil()
    ))
}

impl Gateway {
    fn start(setup: &Setup, row: &'static Row) -> BenchResult<Self> {
        let site = Site {
            row,
            directory: TempDir::new_in(setup.path())?,
            listen: free_address()?,
            peer: free_address()?,
            upstream: setup.upstream,
            redis: (row.edit == REDIS).then(RedisServer::start),
        };
        site.write(INITIAL)?;
        let arguments = site.fill(row.program.arguments, INITIAL);
        let mut command = Command::new(row.program.path(setup));
        command.args(arguments.split_whitespace());
        let log = site.directory.path().join("log");
        let mut process = Process::start(&mut command, &log)?;
        until_listening(&mut process, site.listen)?;
        let gateway = Self { process, site };
        gateway.until_in_force(INITIAL)?;
        Ok(gateway)
    }

    /// Sends a request with the limit, and returns whether it is admitted.
    fn admits(&self) -> BenchResult<bool> {
        match get(self.site.listen, "/api/items")? {
            (200, _) => Ok(true),
            (429, _) => Ok(false),
            (status, _) => Err(format!("unexpected status {status}").into()),
        }
    }

    fn change(&self, config: Config) -> BenchResult<()> {
        self.site.write(config)?;
        if let Some(signal) = self.site.row.program.reload {
            self.process.signal(signal);
        }
        self.until_in_force(config)
    }

    /// Waits for 20 responses in succession from the configuration, because the previous processes of nginx accept
    /// connections for a moment.
    fn until_in_force(&self, Config(_, unlimited): Config) -> BenchResult<()> {
        let deadline = Instant::now() + IN_FORCE;
        let mut responses = 0;
        while responses < 20 {
            match get(self.site.listen, unlimited) {
                Ok((200, _)) => responses += 1,
                _ => responses = 0,
            }
            if Instant::now() > deadline {
                return Err(format!("no response to {unlimited} after {IN_FORCE:?}").into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Site {
    /// Writes the configuration files. Each gets its name when it is complete, because the gateway can watch it.
    fn write(&self, config: Config) -> BenchResult<()> {
        let (text, replacement) = self.row.edit;
        for (name, template) in self.row.program.files {
            let content = self.fill(&template.replace(text, replacement), config);
            let new = self.directory.path().join("new");
            fs::write(&new, content)?;
            fs::rename(&new, self.directory.path().join(name))?;
        }
        Ok(())
    }

    /// Replaces the names in angle brackets. HAProxy admits 60 requests in a window of 60 s (1/s) or of 30 s (2/s).
    fn fill(&self, template: &str, config: Config) -> String {
        let Config(rate, unlimited) = config;
        let zone_size = if config == INITIAL { "10m" } else { "20m" };
        let redis_port = self.redis.as_ref().map_or(0, RedisServer::port);
        template
            .replace("<limit>", ENVOY_LIMIT)
            .replace("<directory>", &self.directory.path().to_string_lossy())
            .replace("<listen>", &self.listen.to_string())
            .replace("<listen port>", &self.listen.port().to_string())
            .replace("<peer>", &self.peer.to_string())
            .replace("<upstream>", &self.upstream.to_string())
            .replace("<upstream port>", &self.upstream.port().to_string())
            .replace("<redis>", &format!("127.0.0.1:{redis_port}"))
            .replace("<rate>", &rate.to_string())
            .replace("<window>", &(CAPACITY / rate).to_string())
            .replace("<zone size>", zone_size)
            .replace("<unlimited>", unlimited)
    }
}

impl Program {
    fn path(&self, setup: &Setup) -> PathBuf {
        if self.name == TIDEGATE.name {
            setup.tidegate.clone()
        } else {
            self.name.to_lowercase().into()
        }
    }

    /// Returns the version, or `None` if the program cannot be started.
    fn version(&self, setup: &Setup) -> Option<String> {
        let mut command = Command::new(self.path(setup));
        let output = command.arg(self.version).output().ok()?;
        let text = String::from_utf8([output.stdout, output.stderr].concat()).ok()?;
        let mut words = text.split(|c: char| c.is_whitespace() || "/-".contains(c));
        let version = words.find(|word| word.starts_with(char::is_numeric) && word.contains('.'));
        version.map(str::to_owned)
    }
}

static NGINX: Program = Program {
    name: "nginx",
    version: "-v",
    arguments: "-p <directory> -c <directory>/nginx.conf",
    // As `nginx -s reload` sends it.
    reload: Some(Signal::HUP),
    files: &[(
        "nginx.conf",
        "daemon off;
        worker_processes 2;
        pid nginx.pid;
        error_log stderr;
        events {}
        http {
            access_log off;
            client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
            uwsgi_temp_path uwsgi; scgi_temp_path scgi;
            limit_req_zone $binary_remote_addr zone=clients:10m rate=<rate>r/s;
            limit_req_status 429;
            server {
                listen <listen>;
                location /api/ {
                    limit_req zone=clients burst=59 nodelay;
                    proxy_pass http://<upstream>;
                }
                location <unlimited> { proxy_pass http://<upstream>; }
            }
        }",
    )],
};

static HAPROXY: Program = Program {
    name: "HAProxy",
    version: "-v",
    arguments: "-W -f <directory>/haproxy.cfg",
    reload: Some(Signal::USR2),
    files: &[(
        "haproxy.cfg",
        "
global
    localpeer gate
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
peers gates
    peer gate <peer>
frontend gate
    bind <listen>
    http-request track-sc0 src table clients if { path_beg /api/ }
    http-request deny deny_status 429 if { path_beg /api/ } { sc_http_req_rate(0,clients) gt 60 }
    use_backend upstream if { path_beg /api/ <unlimited> }
backend clients
    stick-table type ip size 1m expire <window>s store http_req_rate(<window>s)
backend upstream
    server one <upstream>
",
    )],
};

/// Without the third argument, Traefik waits for up to 2 s before a change.
static TRAEFIK: Program = Program {
    name: "Traefik",
    version: "version",
    arguments:
        "--entrypoints.gate.address=<listen> --providers.file.filename=<directory>/routes.toml
        --providers.providersthrottleduration=100ms
        --global.checknewversion=false --global.sendanonymoususage=false",
    reload: None,
    files: &[(
        "routes.toml",
        "
        [http.routers]
        api = { rule = 'PathPrefix(`/api/`)', service = 'upstream', middlewares = ['client'] }
        unlimited = { rule = 'Path(`<unlimited>`)', service = 'upstream' }
        [http.middlewares.client.rateLimit]
        average = <rate>
        burst = 60
        [[http.services.upstream.loadBalancer.servers]]
        url = 'http://<upstream>'
        ",
    )],
};

/// The listener has a limit, which that of a route replaces.
static ENVOY: Program = Program {
    name: "Envoy",
    version: "--version",
    arguments: "--disable-hot-restart --concurrency 2 -c <directory>/envoy.yaml",
    reload: None,
    files: &[
        (
            "envoy.yaml",
            "
node: { id: gate, cluster: gate }
dynamic_resources:
  lds_config: { path_config_source: { path: <directory>/listeners.yaml } }
static_resources:
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: <upstream port> } } }
",
        ),
        (
            "listeners.yaml",
            "
resources:
- '@type': type.googleapis.com/envoy.config.listener.v3.Listener
  name: gate
  address: { socket_address: { address: 127.0.0.1, port_value: <listen port> } }
  filter_chains:
  - filters:
    - name: http
      typed_config:
        '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: gate
        delayed_close_timeout: 0s
        rds:
          route_config_name: routes
          config_source: { path_config_source: { path: <directory>/routes.yaml } }
        http_filters:
        - name: limit
          typed_config: <limit>
        - name: router
          typed_config: { '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
",
        ),
        (
            "routes.yaml",
            "
resources:
- '@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: routes
  virtual_hosts:
  - name: all
    domains: ['*']
    routes:
    - match: { path: <unlimited> }
      route: { cluster: upstream }
      typed_per_filter_config: &unlimited
        limit: { '@type': type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true }
    - match: { prefix: /api/ }
      route: { cluster: upstream }
      typed_per_filter_config: {}
    - match: { prefix: / }
      direct_response: { status: 404 }
      typed_per_filter_config: *unlimited
",
        ),
    ],
};

const ENVOY_LIMIT: &str = "{ \
    '@type': type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, \
    stat_prefix: limit, \
    token_bucket: { max_tokens: 60, tokens_per_fill: <rate>, fill_interval: 1s }, \
    filter_enabled: { default_value: { numerator: 100 } }, \
    filter_enforced: { default_value: { numerator: 100 } } }";

static TIDEGATE: Program = Program {
    name: "Tidegate",
    version: "--version",
    arguments: "serve --config <directory>/tidegate.toml",
    reload: Some(Signal::HUP),
    files: &[(
        "tidegate.toml",
        "
        server = { listen = '<listen>', workers = 2 }
        log = { access = false }
        upstream.api.servers = ['http://<upstream>']
        limit.client = { rate = '<rate>/s', burst = 59 }
        [[route]]
        name = 'api'
        path = '/api/'
        limits = ['client']
        [[route]]
        name = 'unlimited'
        path = '<unlimited>'
        ",
    )],
};
