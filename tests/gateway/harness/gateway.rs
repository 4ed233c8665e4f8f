//! A gateway in this process, on free ports.

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

use super::{Certificates, Client, PATIENCE, Upstream};

/// A gateway that listens until dropped.
pub(crate) struct Gateway {
    running: Option<Running>,
    admin: Option<Admin>,
}

/// A gateway that is still to be started.
pub(crate) struct Plan {
    config: String,
    listen: Vec<SocketAddr>,
}

impl Gateway {
    /// A gateway with this configuration. Each `{upstream}` in it stands for the URL of one upstream, in the
    /// order in which they are given.
    pub(crate) fn with(config: &str) -> Plan {
        Plan {
            config: config.to_owned(),
            listen: Vec::new(),
        }
    }

    /// A gateway that passes everything on, with `extra` at the end of its configuration.
    pub(crate) fn open(extra: &str) -> Plan {
        Self::with(&format!(
            "{extra}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        ))
    }

    /// A gateway that passes everything on to an upstream of this many servers, with these lines under
    /// `[upstream.api]`.
    pub(crate) fn before(servers: usize, api: &str) -> Plan {
        let servers = vec!["\"{upstream}\""; servers].join(", ");
        Self::with(&format!(
            "[upstream.api]\nservers = [{servers}]\n{api}\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        ))
    }

    /// A gateway whose only route is held to a limit called `device`, which these lines describe.
    pub(crate) fn limited(limit: &str) -> Plan {
        Self::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[limit.device]\n{limit}\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n"
        ))
    }

    /// A gateway whose only route, `all`, takes idempotency keys, with `rule` beside the mode:
    /// `in_flight = "conflict"`.
    pub(crate) fn keyed(rule: &str) -> Plan {
        let comma = if rule.is_empty() { "" } else { ", " };
        Self::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
             idempotency = {{ mode = \"optional\"{comma}{rule} }}\n"
        ))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        self.running.as_ref().expect("running").addresses()
    }

    /// What its workers share, records among it.
    pub(crate) fn shared(&self) -> &Shared {
        self.running.as_ref().expect("running").shared()
    }

    /// Tells it to finish what is in flight and take nothing new.
    pub(crate) fn drain(&self) {
        self.running.as_ref().expect("running").stopper().drain();
    }

    /// Waits until this many requests to the route `all` of [`keyed`](Self::keyed) have had this outcome.
    pub(crate) async fn has_counted(&self, outcome: &str, wanted: u32) {
        let series = format!("idempotency_requests_total{{route=\"all\",outcome=\"{outcome}\"}}");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.metric(&series).await;
            if found >= f64::from(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{outcome}: {found} of {wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What its store holds.
    pub(crate) fn counts(&self) -> RecordCounts {
        records(self.shared()).counts()
    }

    /// Waits until it has ended by itself, and says what its store held then.
    pub(crate) fn ended(mut self) -> RecordCounts {
        let running = self.running.take().expect("running");
        let records = records(running.shared()).clone();
        running.join().expect("no worker crashes");
        records.counts()
    }

    /// A client that speaks HTTP/1.1, each request on a connection of its own.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// A client that speaks through TLS and trusts `certificates` only.
    pub(crate) fn tls_client(&self, certificates: &Certificates, alpn: &[&str]) -> Client {
        self.client().tls(certificates.connector(alpn))
    }

    /// A client of the admin listener.
    pub(crate) fn admin(&self) -> Client {
        Client::of(self.admin.as_ref().expect("an admin listener").address())
    }

    /// What `/metrics` says of one series: `metric("refused_total{limit=\"device\"}")`.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.admin().get("/metrics").send().await.text();
        let prefix = format!("tidegate_{series} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {series} in:\n{text}"))
            .parse()
            .expect("a number")
    }

    /// Waits until `/metrics` has this value for a series.
    pub(crate) async fn comes_to(&self, series: &str, wanted: u32) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.metric(series).await;
            if (found - f64::from(wanted)).abs() < f64::EPSILON {
                return;
            }
            assert!(Instant::now() < deadline, "{series}: {found}, not {wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// How the servers of the upstream `api` stand, as operators are told.
    pub(crate) async fn servers(&self) -> Vec<Value> {
        let answer = self.admin().get("/upstreams/api").send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        match answer.json()["servers"].take() {
            Value::Array(servers) => servers,
            other => panic!("no servers: {other}"),
        }
    }

    /// The circuit of the first server of the upstream `api`, as operators are told.
    pub(crate) async fn circuit(&self) -> Value {
        self.servers().await[0]["circuit"].take()
    }
}

impl Plan {
    /// The next `{upstream}` of the configuration.
    pub(crate) fn upstream(self, upstream: &Upstream) -> Self {
        self.upstream_url(&upstream.url())
    }

    /// The next `{upstream}` of the configuration, which need not exist.
    pub(crate) fn upstream_url(mut self, url: &str) -> Self {
        assert!(self.config.contains("{upstream}"), "no place for {url}");
        self.config = self.config.replacen("{upstream}", url, 1);
        self
    }

    /// Listens here instead of on a free port of 127.0.0.1.
    pub(crate) fn listen(mut self, address: &str) -> Self {
        self.listen.push(address.parse().expect("an address"));
        self
    }

    /// Adds an admin listener.
    pub(crate) fn admin(self) -> Self {
        self.and("[admin]\nlisten = \"127.0.0.1:0\"")
    }

    /// Adds these lines, which begin with a section of their own.
    pub(crate) fn and(mut self, lines: &str) -> Self {
        self.config.insert_str(0, &format!("{lines}\n"));
        self
    }

    /// Keeps its records in this directory.
    pub(crate) fn on_disk(self, directory: &Path) -> Self {
        let path = directory.to_str().expect("a plain name");
        self.and(&format!("[store]\nbackend = \"disk\"\npath = \"{path}\""))
    }

    /// Starts it; a configuration or an address that cannot be used fails the test.
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
