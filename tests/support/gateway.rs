//! Gateway that runs inside the test process and listens on free ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tidegate::clock::Clock;
use tidegate::config::{self, Environment, Overrides};
use tidegate::idempotency::{RecordCounts, Records as _};
use tidegate::internals::{Admin, records, start_admin};
use tidegate::pipeline::GatewayState;
use tidegate::server::Gateway as Running;

use super::{Certificates, Client, Upstream, eventually};

/// Running gateway, which stops when it is dropped.
pub(crate) struct Gateway {
    running: Option<Running>,
    admin: Option<Admin>,
}

/// Configuration of a gateway that [`start`](Self::start) starts.
pub(crate) struct GatewayBuilder {
    config: String,
    listen: Vec<SocketAddr>,
}

impl Gateway {
    /// Prepares a gateway with this TOML configuration. Each call of [`upstream`](GatewayBuilder::upstream) replaces
    /// the next placeholder `{upstream}` by the URL of a server.
    pub(crate) fn with(config: &str) -> GatewayBuilder {
        GatewayBuilder {
            config: config.to_owned(),
            listen: Vec::new(),
        }
    }

    /// Prepares a gateway that forwards all requests, without rate limits. `extra` contains TOML sections that are put
    /// before `[upstream.api]`.
    pub(crate) fn proxying(extra: &str) -> GatewayBuilder {
        Self::with(&format!(
            "{extra}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        ))
    }

    /// Prepares a gateway that forwards all requests to an upstream with this many servers. `api` contains further
    /// lines of `[upstream.api]`.
    pub(crate) fn with_servers(servers: usize, api: &str) -> GatewayBuilder {
        let servers = vec!["\"{upstream}\""; servers].join(", ");
        Self::with(&format!(
            "[upstream.api]\nservers = [{servers}]\n{api}\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        ))
    }

    /// Prepares a gateway whose only route has the rate limit `device`. `limit` contains the lines of `[limit.device]`.
    pub(crate) fn limited(limit: &str) -> GatewayBuilder {
        Self::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[limit.device]\n{limit}\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n"
        ))
    }

    /// Prepares a gateway whose only route, `all`, accepts idempotency keys. `rule` contains further settings of the
    /// route's `idempotency` table, for example `in_flight = "conflict"`.
    pub(crate) fn keyed(rule: &str) -> GatewayBuilder {
        let comma = if rule.is_empty() { "" } else { ", " };
        Self::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
             idempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
        ))
    }

    /// Returns the address of the first listener for client requests.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        self.running
            .as_ref()
            .expect("the gateway is running")
            .addresses()
    }

    /// Returns the state that the worker threads share, including the store of idempotency records.
    pub(crate) fn shared(&self) -> Arc<GatewayState> {
        self.running
            .as_ref()
            .expect("the gateway is running")
            .shared()
    }

    /// Starts to drain the gateway: requests in flight finish, and new requests are not accepted.
    pub(crate) fn drain(&self) {
        self.running
            .as_ref()
            .expect("the gateway is running")
            .stopper()
            .drain();
    }

    /// Waits until the idempotency metrics of the route `all` show at least `wanted` requests with this outcome.
    pub(crate) async fn wait_for_outcome(&self, outcome: &str, wanted: u32) {
        let series = format!("idempotency_requests_total{{route=\"all\",outcome=\"{outcome}\"}}");
        self.wait_for(&series, &format!("at least {wanted}"), |found| {
            found >= f64::from(wanted)
        })
        .await;
    }

    /// Returns the number of idempotency records in the store, by state.
    pub(crate) fn counts(&self) -> RecordCounts {
        records(&self.shared()).counts()
    }

    /// Waits until the gateway has exited after a drain. Returns the number of idempotency records in its store, by
    /// state.
    pub(crate) fn wait_for_exit(mut self) -> RecordCounts {
        let running = self.running.take().expect("the gateway is running");
        let records = records(&running.shared()).clone();
        running.join().expect("no worker thread panics");
        records.counts()
    }

    /// Returns an HTTP/1.1 client that opens a new connection for each request.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// Returns a TLS client that trusts only `certificates` and offers the ALPN protocols `alpn`.
    pub(crate) fn tls_client(&self, certificates: &Certificates, alpn: &[&str]) -> Client {
        self.client().tls(certificates.connector(alpn))
    }

    /// Returns a client that sends requests to the admin listener. Panics if the gateway has no admin listener.
    pub(crate) fn admin(&self) -> Client {
        Client::of(
            self.admin
                .as_ref()
                .expect("the gateway has an admin listener")
                .address(),
        )
    }

    /// Returns the value of one series of `/metrics`, like [`Client::metric`].
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        self.admin().metric(series).await
    }

    /// Waits until a series of `/metrics` has exactly the value `wanted`.
    pub(crate) async fn wait_for_metric(&self, series: &str, wanted: u32) {
        self.wait_for(series, &wanted.to_string(), |found| {
            (found - f64::from(wanted)).abs() < f64::EPSILON
        })
        .await;
    }

    async fn wait_for(&self, series: &str, wanted: &str, is_wanted: impl Fn(f64) -> bool) {
        eventually(&format!("tidegate_{series} is {wanted}"), async || {
            is_wanted(self.metric(series).await)
        })
        .await;
    }

    /// Returns the servers of the upstream `api` as the admin API shows them, in the order of the configuration.
    pub(crate) async fn servers(&self) -> Vec<Value> {
        let response = self.admin().get("/admin/v1/upstreams/api").send().await;
        assert_eq!(response.status, 200, "{}", response.text());
        match response.json()["servers"].take() {
            Value::Array(servers) => servers,
            other => panic!("/admin/v1/upstreams/api has no list `servers`: {other}"),
        }
    }

    /// Returns the circuit breaker of the first server of the upstream `api` as the admin API shows it.
    pub(crate) async fn circuit(&self) -> Value {
        self.servers().await[0]["circuit"].take()
    }
}

impl GatewayBuilder {
    /// Replaces the next placeholder `{upstream}` of the configuration by the URL of `upstream`.
    pub(crate) fn upstream(self, upstream: &Upstream) -> Self {
        self.upstream_url(&upstream.url())
    }

    /// Replaces the next placeholder `{upstream}` of the configuration by `url`. No server needs to listen there.
    pub(crate) fn upstream_url(mut self, url: &str) -> Self {
        assert!(
            self.config.contains("{upstream}"),
            "the configuration has no placeholder {{upstream}} left for {url}"
        );
        self.config = self.config.replacen("{upstream}", url, 1);
        self
    }

    /// Adds a listener on `address`. If no listener is added, the gateway listens on a free port of 127.0.0.1.
    pub(crate) fn listen(mut self, address: &str) -> Self {
        self.listen
            .push(address.parse().expect("the address is valid"));
        self
    }

    /// Adds an admin listener on a free port of 127.0.0.1.
    pub(crate) fn admin(self) -> Self {
        self.with_section("[admin]\nlisten = \"127.0.0.1:0\"")
    }

    /// Adds `lines` at the start of the configuration. The first line must be a TOML section header.
    pub(crate) fn with_section(mut self, lines: &str) -> Self {
        self.config.insert_str(0, &format!("{lines}\n"));
        self
    }

    /// Makes the gateway store its idempotency records in this directory.
    pub(crate) fn on_disk(self, directory: &Path) -> Self {
        let path = directory.to_str().expect("the path is UTF-8");
        self.with_section(&format!("[store]\nbackend = \"disk\"\npath = \"{path}\""))
    }

    /// Starts the gateway. Panics if the configuration is invalid or the gateway cannot listen on its addresses.
    pub(crate) fn start(mut self) -> Gateway {
        if self.listen.is_empty() {
            self.listen.push((Ipv4Addr::LOCALHOST, 0).into());
        }
        let overrides = Overrides {
            listen: self.listen,
            upstream: None,
            ..Overrides::default()
        };
        let loaded = config::parse(
            "test.toml",
            &self.config,
            &Environment::default(),
            &overrides,
        );
        let policy = loaded
            .unwrap_or_else(|errors| panic!("the configuration is invalid: {errors}"))
            .policy;
        let shared = GatewayState::open(Arc::new(policy), Clock::real())
            .unwrap_or_else(|error| panic!("cannot open the store: {error}"));
        let running = Running::start(shared)
            .unwrap_or_else(|error| panic!("cannot start the gateway: {error}"));
        let admin = start_admin(&running).expect("the gateway has an admin listener");
        Gateway {
            running: Some(running),
            admin,
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stopper().halt();
            let ended = running.join();
            assert!(
                std::thread::panicking() || ended.is_ok(),
                "a worker thread of the gateway panicked"
            );
        }
    }
}
