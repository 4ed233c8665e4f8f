//! The gateways and their configurations: the same work, as each of them is told to do it.
//!
//! All have two workers, keep connections to the upstream open, pass on the client's address and host,
//! count clients by address, and write no access log. Under `/api/` the limit is far above the load;
//! under `/refused/` the first request uses it up.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::process::Process;
use crate::scene::{Scene, free_address, nginx, until_listening};

/// One of the programs compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gateway {
    Nginx,
    Tidegate,
    Haproxy,
}

/// A gateway that listens.
pub(crate) struct Running {
    pub(crate) gateway: Gateway,
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Gateway {
    /// Those that can be started here. nginx, the measure of the others, is always among them.
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

    /// What it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Tidegate => "tidegate",
            Self::Haproxy => "HAProxy",
        }
    }

    /// Starts it in front of the scene's upstream.
    pub(crate) fn start(self, scene: &Scene) -> Outcome<Running> {
        let address = free_address()?;
        let mut process = match self {
            Self::Nginx => nginx(
                scene.path(),
                "nginx",
                2,
                &nginx_site(address, scene.upstream),
            ),
            Self::Tidegate => tidegate(
                scene,
                "tidegate",
                &tidegate_config(address, free_address()?, scene.upstream),
            ),
            Self::Haproxy => haproxy(scene, address),
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
        limit_req_zone $binary_remote_addr zone=refused:10m rate=1r/m;
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
            location /refused/ {{
                limit_req zone=refused;
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
        limit.refused = {{ rate = "1/h", burst = 0 }}
        [[route]]
        name = "api"
        path = "/api/"
        limits = ["api"]
        [[route]]
        name = "refused"
        path = "/refused/"
        limits = ["refused"]
        "#
    )
}

/// Starts the gateway under test on a configuration.
pub(crate) fn tidegate(scene: &Scene, name: &str, config: &str) -> Outcome<Process> {
    let config = scene.file(&format!("{name}.toml"), config)?;
    let mut command = Command::new(&scene.tidegate);
    command.arg("serve").arg("--config").arg(config);
    Process::start(&mut command, &scene.path().join(format!("{name}.log")))
}

fn haproxy(scene: &Scene, listen: SocketAddr) -> Outcome<Process> {
    let upstream = scene.upstream;
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
    http-request track-sc1 src table refused if {{ path_beg /refused/ }}
    http-request deny deny_status 429 if {{ path_beg /api/ }} {{ sc_http_req_rate(0,api) gt 1000000000 }}
    http-request deny deny_status 429 if {{ path_beg /refused/ }} {{ sc_http_req_rate(1,refused) gt 1 }}
    default_backend upstream
backend api
    stick-table type ip size 1m expire 10s store http_req_rate(10s)
backend refused
    stick-table type ip size 1m expire 2h store http_req_rate(1h)
backend upstream
    server one {upstream}
"
    );
    let config = scene.file("haproxy.cfg", &config)?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(config);
    Process::start(&mut command, &scene.path().join("haproxy.log"))
}
