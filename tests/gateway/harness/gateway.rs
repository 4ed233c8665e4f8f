//! Gateway inside the test process, on free ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::clock::Clock;
use tidegate::config::{self, Environment, Overrides};
use tidegate::gateway::Gateway as Running;
use tidegate::idempotency::{RecordCounts, Records as _};
use tidegate::internals::{Admin, records, start_admin};
use tidegate::pipeline::Shared;

use super::{Certificates, Client, TEST_TIMEOUT, Upstream};

/// Gateway that runs until it is dropped.
pub(crate) struct Gateway {
    running: Option<Running>,
    admin: Option<Admin>,
}

/// Gateway that is not started yet.
pub(crate) struct GatewayBuilder {
    config: String,
    listen: Vec<SocketAddr>,
}

impl Gateway {
    /// Prepares a gateway with this configuration. The calls of `upstream` fill in the `{upstream}` placeholders in
    /// order.
    pub(crate) fn with(config: &str) -> GatewayBuilder {
        GatewayBuilder {
            config: config.to_owned(),
            listen: Vec::new(),
        }
    }

    /// Prepares a gateway that forwards all requests, without limits. `extra` is put before the upstream section.
    pub(crate) fn proxying(extra: &str) -> GatewayBuilder {
        Self::with(&format!(
            "{extra}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        ))
    }

    /// Prepares a gateway that forwards all requests to an upstream with this many servers. `api` is added to
    /// `[upstream.api]`.
    pub(crate) fn with_servers(servers: usize, api: &str) -> GatewayBuilder {
        let servers = vec!["\"{upstream}\""; servers].join(", ");
        Self::with(&format!(
            "[upstream.api]\nservers = [{servers}]\n{api}\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        ))
    }

    /// Prepares a gateway whose only route has the limit `device`. `limit` contains the lines of the limit's section.
    pub(crate) fn limited(limit: &str) -> GatewayBuilder {
        Self::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[limit.device]\n{limit}\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n"
        ))
    }

    /// Prepares a gateway whose only route, `all`, accepts idempotency keys. `rule` has further keys of the route's
    /// `idempotency`, such as `in_flight = "conflict"`.
    pub(crate) fn keyed(rule: &str) -> GatewayBuilder {
        let comma = if rule.is_empty() { "" } else { ", " };
        Self::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
             idempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
        ))
    }

    /// Address of the first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        self.running.as_ref().expect("running").addresses()
    }

    /// State that the workers share, including the records.
    pub(crate) fn shared(&self) -> &Shared {
        self.running.as_ref().expect("running").shared()
    }

    /// Starts a drain: requests in flight finish, and new ones are not accepted.
    pub(crate) fn drain(&self) {
        self.running.as_ref().expect("running").stopper().drain();
    }

    /// Waits until at least `wanted` requests to the route `all` of [`keyed`](Self::keyed) had this outcome.
    pub(crate) async fn wait_for_outcome(&self, outcome: &str, wanted: u32) {
        let series = format!("idempotency_requests_total{{route=\"all\",outcome=\"{outcome}\"}}");
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let found = self.metric(&series).await;
            if found >= f64::from(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{outcome}: {found} of {wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Numbers of records in the store, by state.
    pub(crate) fn counts(&self) -> RecordCounts {
        records(self.shared()).counts()
    }

    /// Waits until the gateway exits after a drain, and returns the numbers of records in its store.
    pub(crate) fn wait_for_exit(mut self) -> RecordCounts {
        let running = self.running.take().expect("running");
        let records = records(running.shared()).clone();
        running.join().expect("no worker crashes");
        records.counts()
    }

    /// Returns an HTTP/1.1 client that opens a connection for each request.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// Returns a TLS client that trusts only `certificates`.
    pub(crate) fn tls_client(&self, certificates: &Certificates, alpn: &[&str]) -> Client {
        self.client().tls(certificates.connector(alpn))
    }

    /// Returns a client of the admin listener.
    pub(crate) fn admin(&self) -> Client {
        Client::of(self.admin.as_ref().expect("an admin listener").address())
    }

    /// Returns the value of one series of `/metrics`: `metric("refused_total{limit=\"device\"}")`.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.admin().get("/metrics").send().await.text();
        let prefix = format!("tidegate_{series} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {series} in:\n{text}"))
            .parse()
            .expect("a number")
    }

    /// Waits until a series of `/metrics` has the value `wanted`.
    pub(crate) async fn wait_for_metric(&self, series: &str, wanted: u32) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let found = self.metric(series).await;
            if (found - f64::from(wanted)).abs() < f64::EPSILON {
                return;
            }
            assert!(Instant::now() < deadline, "{series}: {found}, not {wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the servers of the upstream `api` as the admin API reports them.
    pub(crate) async fn servers(&self) -> Vec<Value> {
        let response = self.admin().get("/upstreams/api").send().await;
        assert_eq!(response.status, 200, "{}", response.text());
        match response.json()["servers"].take() {
            Value::Array(servers) => servers,
            other => panic!("no servers: {other}"),
        }
    }

    /// Returns the circuit breaker of the first server of the upstream `api` as the admin API reports it.
    pub(crate) async fn circuit(&self) -> Value {
        self.servers().await[0]["circuit"].take()
    }
}

impl GatewayBuilder {
    /// Fills in the next `{upstream}` of the configuration.
    pub(crate) fn upstream(self, upstream: &Upstream) -> Self {
        self.upstream_url(&upstream.url())
    }

    /// Fills in the next `{upstream}` of the configuration with a URL where no server needs to listen.
    pub(crate) fn upstream_url(mut self, url: &str) -> Self {
        assert!(
            self.config.contains("{upstream}"),
            "no {{upstream}} left for {url}"
        );
        self.config = self.config.replacen("{upstream}", url, 1);
        self
    }

    /// Listens on `address` instead of a free port of 127.0.0.1.
    pub(crate) fn listen(mut self, address: &str) -> Self {
        self.listen.push(address.parse().expect("an address"));
        self
    }

    /// Adds an admin listener.
    pub(crate) fn admin(self) -> Self {
        self.with_section("[admin]\nlisten = \"127.0.0.1:0\"")
    }

    /// Adds `lines`, which begin with a section header, to the start of the configuration.
    pub(crate) fn with_section(mut self, lines: &str) -> Self {
        self.config.insert_str(0, &format!("{lines}\n"));
        self
    }

    /// Stores records in this directory.
    pub(crate) fn on_disk(self, directory: &Path) -> Self {
        let path = directory.to_str().expect("a plain name");
        self.with_section(&format!("[store]\nbackend = \"disk\"\npath = \"{path}\""))
    }

    /// Starts the gateway. An invalid configuration or an unusable address fails the test.
    pub(crate) fn start(mut self) -> Gateway {
        if self.listen.is_empty() {
            self.listen.push((Ipv4Addr::LOCALHOST, 0).into());
        }
        let overrides = Overrides {
            listen: self.listen,
            upstream: None,
        };
        let loaded = config::parse(
            "test.toml",
            &self.config,
            &Environment::default(),
            &overrides,
        );
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let shared =
            Shared::open(Arc::new(policy), Clock::real()).unwrap_or_else(|error| panic!("{error}"));
        let running = Running::start(shared.clone()).unwrap_or_else(|error| panic!("{error}"));
        let admin = start_admin(&shared, running.stopper()).expect("an admin listener");
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
                "a worker crashed"
            );
        }
    }
}
