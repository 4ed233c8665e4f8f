//! Starts the gateways that are compared, with equivalent configurations.
//!
//! Each gateway has two workers and a rate limit per client address. It keeps upstream connections open, forwards the
//! client address and the host, and writes no access log. Under `/api/` the rate limit is far above the load. Under
//! `/rejected/` the first request uses up the rate limit.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::BenchResult;
use crate::process::Process;
use crate::setup::{Setup, free_address, nginx, until_listening};

/// A gateway program that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gateway {
    Nginx,
    Tidegate,
    Haproxy,
}

/// A running gateway process and the address on which it listens.
pub(crate) struct Running {
    pub(crate) gateway: Gateway,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Gateway {
    /// Returns the gateways to compare. HAProxy is included if it is installed. nginx is required, because the results
    /// are ratios to those of nginx.
    pub(crate) fn installed() -> Vec<Self> {
        let haproxy = Command::new("haproxy")
            .arg("-v")
            .stdout(Stdio::null())
            .status()
            .is_ok();
        let mut all = vec![Self::Nginx, Self::Tidegate];
        if haproxy {
            all.push(Self::Haproxy);
        }
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Tidegate => "tidegate",
            Self::Haproxy => "HAProxy",
        }
    }

    /// Starts the gateway with the upstream of `setup`, and waits until it listens.
    pub(crate) fn start(self, setup: &Setup) -> BenchResult<Running> {
        let address = free_address()?;
        let mut process = match self {
            Self::Nginx => nginx(
                setup.path(),
                "nginx",
                2,
                &nginx_site(address, setup.upstream),
            ),
            Self::Tidegate => tidegate(
                setup,
                "tidegate",
                &tidegate_config(address, free_address()?, setup.upstream),
            ),
            Self::Haproxy => haproxy(setup, address),
        }?;
        until_listening(&mut process, address)?;
        Ok(Running {
            gateway: self,
            process,
            address,
        })
    }
}

fn nginx_site(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "limit_req_zone $binary_remote_addr zone=api:10m rate=1000000r/s;
        limit_req_zone $binary_remote_addr zone=rejected:10m rate=1r/m;
        limit_req_status 429;
        upstream api {{
            server {upstream};
            keepalive 64;
            keepalive_requests 1000000000;
        }}
        proxy_http_version 1.1;
        proxy_set_header Connection \"\";
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        server {{
            listen {listen};
            location /api/ {{
                limit_req zone=api burst=1000000 nodelay;
                proxy_pass http://api;
            }}
            location /rejected/ {{
                limit_req zone=rejected;
                proxy_pass http://api;
            }}
        }}"
    )
}

fn tidegate_config(listen: SocketAddr, admin: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r#"
        server = {{ listen = "{listen}", workers = 2 }}
        admin = {{ listen = "{admin}" }}
        log = {{ access = false }}
        upstream.api.servers = ["http://{upstream}"]
        limit.api = {{ rate = "1000000/s", burst = 1000000 }}
        limit.rejected = {{ rate = "1/h", burst = 0 }}
        [[route]]
        name = "api"
        path = "/api/"
        limits = ["api"]
        [[route]]
        name = "rejected"
        path = "/rejected/"
        limits = ["rejected"]
        "#
    )
}

/// Starts Tidegate with this configuration. `name` is the name of its configuration and log file.
pub(crate) fn tidegate(setup: &Setup, name: &str, config: &str) -> BenchResult<Process> {
    let config = setup.file(&format!("{name}.toml"), config)?;
    let mut command = Command::new(&setup.tidegate);
    command.arg("serve").arg("--config").arg(config);
    Process::start(&mut command, &setup.path().join(format!("{name}.log")))
}

fn haproxy(setup: &Setup, listen: SocketAddr) -> BenchResult<Process> {
    let upstream = setup.upstream;
    let config = format!(
        "global
    nbthread 2
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend gate
    bind {listen}
    option forwardfor
    http-request track-sc0 src table api if {{ path_beg /api/ }}
    http-request track-sc1 src table rejected if {{ path_beg /rejected/ }}
    http-request deny deny_status 429 if {{ path_beg /api/ }} {{ sc_http_req_rate(0,api) gt 1000000000 }}
    http-request deny deny_status 429 if {{ path_beg /rejected/ }} {{ sc_http_req_rate(1,rejected) gt 1 }}
    default_backend upstream
backend api
    stick-table type ip size 1m expire 10s store http_req_rate(10s)
backend rejected
    stick-table type ip size 1m expire 2h store http_req_rate(1h)
backend upstream
    server one {upstream}
"
    );
    let config = setup.file("haproxy.cfg", &config)?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(config);
    Process::start(&mut command, &setup.path().join("haproxy.log"))
}
