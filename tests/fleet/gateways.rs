//! Gateways of one fleet, each a process of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::api::{Api, Print};
use crate::harness::{Answer, Asking, Client, Process, eventually};

/// The longest a gateway may take to start, with its Redis or without.
const START: Duration = Duration::from_secs(3);

/// How gateways are set up: `/pay` takes keys, and everything else is limited.
#[derive(Clone)]
pub(crate) struct Setup {
    store: String,
    server: String,
    upstream: String,
    limit: String,
    idempotency: Option<String>,
}

/// A gateway that runs until dropped.
pub(crate) struct Gateway {
    process: Process,
    client: Client,
    admin: Client,
    _dir: TempDir,
}

impl Setup {
    /// Gateways before `api` that share the Redis at this URL.
    pub(crate) fn before(api: &Api, redis: &str) -> Self {
        Self::on(api, &format!("{redis:?}"))
    }

    /// Gateways before `api` that share the cluster of these nodes.
    pub(crate) fn on_cluster(api: &Api, nodes: &[String]) -> Self {
        Self::on(api, &format!("{nodes:?}"))
    }

    fn on(api: &Api, url: &str) -> Self {
        Self {
            store: format!("url = {url}"),
            server: String::new(),
            upstream: format!("servers = [{:?}]", api.url()),
            limit: "rate = \"1000000/s\"".into(),
            idempotency: Some(String::new()),
        }
    }

    /// One more line of `[store]`.
    pub(crate) fn store(mut self, line: &str) -> Self {
        self.store = format!("{}\n{line}", self.store);
        self
    }

    /// One more line of `[server]`.
    pub(crate) fn server(mut self, line: &str) -> Self {
        self.server = format!("{}\n{line}", self.server);
        self
    }

    /// One more line of the upstream's section.
    pub(crate) fn upstream(mut self, line: &str) -> Self {
        self.upstream = format!("{}\n{line}", self.upstream);
        self
    }

    /// What the limit is, instead of one that nobody reaches.
    pub(crate) fn limit(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.limit);
        self
    }

    /// What is said about keys, such as `on_unknown = "release"`.
    pub(crate) fn keyed(mut self, settings: &str) -> Self {
        self.idempotency = Some(settings.to_owned());
        self
    }

    /// Nothing takes keys.
    pub(crate) fn keyless(mut self) -> Self {
        self.idempotency = None;
        self
    }

    fn text(&self) -> String {
        let Self {
            store,
            server,
            upstream,
            limit,
            idempotency,
        } = self;
        let keyed = idempotency.as_ref().map_or(String::new(), |settings| {
            format!(
                "[[route]]\nname = \"keyed\"\npath = \"/pay\"\nidempotency = {{ {settings} }}\n"
            )
        });
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [log]\naccess = false\n[store]\nbackend = \"redis\"\n{store}\n[upstream.api]\n{upstream}\n\
             [limit.each]\n{limit}\n{keyed}[[route]]\nname = \"limited\"\npath = \"/\"\nlimits = [\"each\"]\n"
        )
    }

    /// Runs `tidegate serve` without waiting for anything.
    pub(crate) fn launch(&self, variables: &[(&str, &str)]) -> (Process, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("tidegate.toml");
        std::fs::write(&config, self.text()).unwrap();
        let config = config.display().to_string();
        let process = Process::start_in(variables, &["serve", "--config", &config]);
        (process, dir)
    }

    /// Starts a gateway and waits until it can be asked, which must not take long.
    pub(crate) fn start(&self) -> Gateway {
        self.start_in(&[])
    }

    /// The same with these variables.
    pub(crate) fn start_in(&self, variables: &[(&str, &str)]) -> Gateway {
        let began = Instant::now();
        let (process, dir) = self.launch(variables);
        let (client, admin) = (process.client(), process.admin());
        let took = began.elapsed();
        assert!(took < START, "it took {took:?}: {:#?}", process.lines());
        Gateway {
            process,
            client,
            admin,
            _dir: dir,
        }
    }
}

impl Gateway {
    /// A client of its own, for what is not said here.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// A request with a key.
    pub(crate) fn paying(&self, key: &str) -> Asking {
        self.client.post("/pay").key(key).body("amount=1")
    }

    /// The answer to a request with a key.
    pub(crate) async fn pay(&self, key: &str) -> Answer {
        self.paying(key).send().await
    }

    /// The answer to a request that is limited and has no key.
    pub(crate) async fn get(&self) -> Answer {
        self.client.get("/any").send().await
    }

    /// Asks for a key that was never carried out, and has it carried out.
    pub(crate) async fn execute(&self, key: &str) -> Print {
        let answer = self.pay(key).await;
        assert!(!answer.is_replay(), "{answer:?}");
        Print::of(&answer).unwrap_or_else(|| panic!("{answer:?}\n{}", self.log()))
    }

    /// Asks for a key that was carried out before, and is told so.
    pub(crate) async fn replay(&self, key: &str) -> Print {
        let answer = self.pay(key).await;
        assert!(answer.is_replay(), "{answer:?}\n{}", self.log());
        Print::of(&answer).unwrap_or_else(|| panic!("{answer:?}\n{}", self.log()))
    }

    /// The sum of all samples whose line begins with this, but for `tidegate_`.
    pub(crate) async fn metric(&self, sample: &str) -> u64 {
        let text = self.admin.get("/metrics").send().await.text();
        let sample = format!("tidegate_{sample}");
        let lines = text.lines().filter(|line| line.starts_with(&sample));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        values.sum()
    }

    /// How many requests with a key had this outcome.
    pub(crate) async fn outcomes(&self, outcome: &str) -> u64 {
        let sample = format!("idempotency_requests_total{{route=\"keyed\",outcome=\"{outcome}\"}}");
        self.metric(&sample).await
    }

    /// What it says of itself.
    pub(crate) async fn readiness(&self) -> String {
        self.admin.get("/readyz").send().await.text()
    }

    /// Waits until the heads of so many answers have come to it.
    pub(crate) async fn has_heads(&self, heads: u64) {
        eventually("the head of an answer", async || {
            self.metric("upstream_latency_seconds_count").await == heads
        })
        .await;
    }

    /// All it has written.
    pub(crate) fn log(&self) -> String {
        self.process.lines().join("\n")
    }

    /// Waits until it has written this.
    pub(crate) fn says(&self, part: &str) {
        self.process.line_with(part);
    }

    /// Stops it where it stands: connections stay open, and nothing is answered.
    pub(crate) fn freeze(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Has it come to its end, as it does when it is told to.
    pub(crate) fn stop(mut self) {
        self.process.signal(Signal::TERM);
        assert!(self.process.end().success(), "{}", self.log());
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.end();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let panicked = self.log().contains("panicked at");
        if !std::thread::panicking() {
            assert!(!panicked, "{}", self.log());
        }
    }
}

/// Whether an answer is the gateway's own refusal of this kind.
pub(crate) fn is_problem(answer: &Answer, status: u16, kind: &str) -> bool {
    answer.status == status
        && answer.header("content-type") == "application/problem+json"
        && answer.problem() == kind
}

/// That a request with a key was refused because the store is of no use.
pub(crate) fn is_unavailable(answer: &Answer) -> bool {
    is_problem(answer, 503, "store-unavailable") && answer.retry_after() >= 1
}

/// That nobody knows what became of a key.
pub(crate) fn is_unknown(answer: &Answer) -> bool {
    is_problem(answer, 409, "idempotency-outcome-unknown")
}

/// That a key is being carried out.
pub(crate) fn is_in_flight(answer: &Answer) -> bool {
    is_problem(answer, 409, "idempotency-in-flight") && answer.retry_after() >= 1
}
