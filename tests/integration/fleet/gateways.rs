//! Gateway processes of one fleet.

use std::time::Duration;

use crate::fleet::upstream_api::{Api, ApiResponse};
use crate::support::{
    ClientRequest, ClientResponse, Process, ProcessBuilder, eventually, is_problem,
};

/// How long the startup of a gateway can take, with or without its Redis.
pub(crate) const STARTUP: Duration = Duration::from_secs(3);

/// Configuration of a gateway. Requests to `/pay` can have an idempotency key. All other requests have a rate
/// limit.
#[derive(Clone)]
pub(crate) struct Setup {
    store: String,
    server: String,
    upstream: String,
    limit: String,
    idempotency: Option<String>,
}

impl Setup {
    /// Creates the configuration of a gateway in front of `api`, with the Redis at the URL `redis`.
    pub(crate) fn new(api: &Api, redis: &str) -> Self {
        Self::with_url(api, &format!("{redis:?}"))
    }

    /// Creates the configuration of a gateway in front of `api`, with the Redis cluster of `nodes`.
    pub(crate) fn on_cluster(api: &Api, nodes: &[String]) -> Self {
        Self::with_url(api, &format!("{nodes:?}"))
    }

    fn with_url(api: &Api, url: &str) -> Self {
        Self {
            store: format!("url = {url}"),
            server: String::new(),
            upstream: format!("servers = [{:?}]", api.url()),
            limit: "rate = \"1000000/s\"".into(),
            idempotency: Some(String::new()),
        }
    }

    /// Adds a line to the section `[store]` of the configuration.
    pub(crate) fn store(mut self, line: &str) -> Self {
        self.store = format!("{}\n{line}", self.store);
        self
    }

    /// Adds a line to the section `[server]` of the configuration.
    pub(crate) fn server(mut self, line: &str) -> Self {
        self.server = format!("{}\n{line}", self.server);
        self
    }

    /// Adds a line to the section `[upstream.api]` of the configuration.
    pub(crate) fn upstream(mut self, line: &str) -> Self {
        self.upstream = format!("{}\n{line}", self.upstream);
        self
    }

    /// Sets the rate limit. The default limit is so high that no test reaches it.
    pub(crate) fn limit(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.limit);
        self
    }

    /// Sets the `idempotency` table of the route `/pay`, such as `on_unknown = "release"`.
    pub(crate) fn keyed(mut self, settings: &str) -> Self {
        self.idempotency = Some(settings.to_owned());
        self
    }

    /// Disables idempotency keys on all routes.
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

    /// Prepares a gateway process with this configuration.
    pub(crate) fn process(&self) -> ProcessBuilder {
        Process::serving(&self.text())
    }

    /// Starts a gateway and waits until it listens.
    pub(crate) fn start(&self) -> Process {
        self.process().start_within(STARTUP)
    }
}

/// Requests and metrics of a gateway with the configuration of [`Setup`].
impl Process {
    /// Creates a request to `/pay` with an idempotency key.
    pub(crate) fn pay_request(&self, key: &str) -> ClientRequest {
        self.client().post("/pay").key(key).body("amount=1")
    }

    /// Sends a request to `/pay` with an idempotency key.
    pub(crate) async fn pay(&self, key: &str) -> ClientResponse {
        self.pay_request(key).send().await
    }

    /// Sends a request that has a rate limit and no idempotency key.
    pub(crate) async fn get(&self) -> ClientResponse {
        self.client().get("/any").send().await
    }

    /// Sends a request with a new idempotency key, and returns the response of the API. Panics if the response is a
    /// replay.
    pub(crate) async fn execute(&self, key: &str) -> ApiResponse {
        let response = self.pay(key).await;
        assert!(!response.is_replay(), "{response:?}");
        ApiResponse::of(&response).unwrap_or_else(|| panic!("{response:?}\n{}", self.log()))
    }

    /// Sends a request with a completed idempotency key, and returns the replayed response. Panics if it is not a
    /// replay.
    pub(crate) async fn replay(&self, key: &str) -> ApiResponse {
        let response = self.pay(key).await;
        assert!(response.is_replay(), "{response:?}\n{}", self.log());
        ApiResponse::of(&response).unwrap_or_else(|| panic!("{response:?}\n{}", self.log()))
    }

    /// Returns the sum of all metric samples whose line begins with `tidegate_` and `sample`.
    pub(crate) async fn metric_sum(&self, sample: &str) -> u64 {
        let text = self.admin().get("/metrics").send().await.text();
        let sample = format!("tidegate_{sample}");
        let lines = text.lines().filter(|line| line.starts_with(&sample));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        values.sum()
    }

    /// Returns how many requests with an idempotency key had the outcome `outcome`, according to the metrics.
    pub(crate) async fn outcomes(&self, outcome: &str) -> u64 {
        let sample = format!("idempotency_requests_total{{route=\"keyed\",outcome=\"{outcome}\"}}");
        self.metric_sum(&sample).await
    }

    /// Waits until the gateway has received the heads of `heads` upstream responses.
    pub(crate) async fn wait_for_heads(&self, heads: u64) {
        eventually("the gateway receives the head of a response", async || {
            self.metric_sum("upstream_latency_seconds_count").await == heads
        })
        .await;
    }
}

/// Returns whether a request was rejected because the idempotency store is unavailable.
pub(crate) fn is_unavailable(response: &ClientResponse) -> bool {
    response.status == 503
        && is_problem(response, "store-unavailable")
        && response.retry_after() >= 1
}

/// Returns whether a request was rejected because a request with the same idempotency key is in flight.
pub(crate) fn is_in_flight(response: &ClientResponse) -> bool {
    response.status == 409
        && is_problem(response, "idempotency-in-flight")
        && response.retry_after() >= 1
}
