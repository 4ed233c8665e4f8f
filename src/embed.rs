//! Rate limits and idempotency keys as tower layers for an axum application, without the proxy.
//!
//! [`Embedded`] contains what all layers of an application share. [`Embedded::layer`] creates the layer of a rule,
//! which has a name, any number of rate limits, and optional settings for idempotency keys:
//!
//! ```
//! use axum::{Router, routing::post};
//! use tidegate::embed::{Embedded, KeyRule, Limit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let embedded = Embedded::new();
//! let device = Limit::per_client("device", "1/s".parse()?).burst(3)?;
//! let hourly = Limit::per_client("hourly", "1000/h".parse()?);
//! let payments = embedded.layer("payments", [device, hourly.clone()], Some(KeyRule::default()))?;
//! let reports = embedded.layer("reports", [hourly], None)?;
//!
//! let app: Router = Router::new()
//!     .route("/payments", post("paid\n").layer(payments))
//!     .route("/reports", post("reported\n").layer(reports));
//! # Ok(())
//! # }
//! ```
//!
//! A layer identifies the client, charges all limits of its rule or none, and executes a request with an idempotency
//! key once, with the stages of the gateway. A limit that two rules contain has one bucket per client for both. Layers
//! can be nested, for example limits outside and idempotency keys inside of an authentication layer.
//!
//! Serve the application with `into_make_service_with_connect_info::<SocketAddr>()`. Without the address of its peer, a
//! request has no client, so the layer responds with 500 and does not call the application.
//!
//! At shutdown, stop the server first and then call [`Embedded::finish`]. Executions of requests with an idempotency
//! key continue after their clients have disconnected:
//!
//! ```no_run
//! # use std::net::SocketAddr;
//! # use tidegate::embed::Embedded;
//! # async fn serve(embedded: Embedded, app: axum::Router) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
//!     .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
//!     .await?;
//! embedded.finish().await;
//! # Ok(())
//! # }
//! ```

mod layer;
mod rules;

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use self::layer::RuleState;
use self::rules::Rules;
use crate::admin::stage_metrics::{OPENMETRICS, StageMetrics};
use crate::clock::Clock;
use crate::idempotency::{Idempotency, RouteKeys};
use crate::metrics::Metrics;
use crate::request::buffers::Buffers;
use crate::store::{BucketStore, OpenStore, RecordStore, StoreCapacity};
use crate::throttle::Throttle;

// The types of all settings are exported here, so that an application imports from one module.
pub use self::layer::{EmbeddedLayer, EmbeddedService};
pub use self::rules::RuleError;
pub use crate::idempotency::{
    InFlightPolicy, KeyRule, OnServerError, OnUnknown, RecordSettings, Requirement, Scope,
    ScopePart,
};
pub use crate::request::buffers::BufferBounds;
pub use crate::request::client::Trust;
pub use crate::respond::{Cors, Dialect, Hint, Hints, RespondSettings};
pub use crate::store::OpenError;
pub use crate::throttle::{
    Exceed, KeyFunction, KeyPart, Limit, Mode, OnStoreError, ParseQuotaError, Quota, QuotaError,
    RetryAfterForm,
};

/// The default of `max_clients` in the configuration.
const MAX_CLIENTS: usize = 1_000_000;

/// The default of `max_bytes` in the configuration.
#[cfg(feature = "disk")]
const MAX_DISK_BYTES: u64 = 4 << 30;

/// Bounds the requests of one rule with an idempotency key that are in flight.
const MAX_EXECUTIONS: usize = 65_536;

/// State and settings that the layers of one application share. A layer keeps the settings it was created with.
#[derive(Debug)]
pub struct Embedded {
    trust: Arc<Trust>,
    respond: Arc<RespondSettings>,
    buffers: Arc<Buffers>,
    store: OpenStore,
    throttle: Arc<Throttle<BucketStore>>,
    rules: Arc<Mutex<Rules>>,
    tasks: TaskTracker,
    clock: Clock,
}

impl Embedded {
    /// Creates the state with a store in memory, which is lost when the process ends.
    pub fn new() -> Self {
        let clock = Clock::real();
        let store = OpenStore::in_memory(MAX_CLIENTS, StoreCapacity::default(), clock.clone());
        Self::with_store(store, clock)
    }

    /// Creates the state with a store in the directory `path`, which only one process at a time can open. The directory
    /// is created if it does not exist. Idempotency records survive a crash of the process. Without
    /// [`finish`](Self::finish), the charges to limits of the last 10 s are lost at its end.
    ///
    /// This function blocks while it reads the store. The store has four threads of its own, and a fifth while it
    /// compacts its files.
    #[cfg(feature = "disk")]
    pub fn on_disk(path: impl AsRef<std::path::Path>) -> Result<Self, OpenError> {
        let clock = Clock::real();
        let capacity = StoreCapacity {
            max_bytes: MAX_DISK_BYTES,
            ..StoreCapacity::default()
        };
        let store = OpenStore::on_disk(path.as_ref(), MAX_CLIENTS, capacity, clock.clone())?;
        Ok(Self::with_store(store, clock))
    }

    /// Creates the state with a store in the Redis server at `url`, such as `redis://127.0.0.1:6379/1`, where 1 is the
    /// database. All applications and gateways with the same server and database share limits and idempotency keys.
    /// With `rediss://`, the connection uses TLS.
    ///
    /// The server must not be a cluster, and needs the settings for idempotency records, such as `maxmemory-policy
    /// noeviction`, even if no rule has idempotency keys. The other settings are the defaults of `[store]` in the
    /// configuration, except the lease of a claim, which is 60 s. An execution renews its lease, so it can take longer.
    ///
    /// If the server cannot be reached, the application starts and connects later. Until then, limits count in memory,
    /// and requests with an idempotency key get 503.
    ///
    /// This function blocks for up to 2 s. The store has a thread of its own, and its connections belong to the tokio
    /// runtime of the first request. This runtime must have I/O and time enabled.
    #[cfg(feature = "redis")]
    pub fn in_redis(url: &str) -> Result<Self, OpenError> {
        let settings = crate::store::redis::settings::RedisSettings::try_from(url)?;
        let clock = Clock::real();
        let store = OpenStore::in_redis(settings, true, MAX_CLIENTS, clock.clone())?;
        Ok(Self::with_store(store, clock))
    }

    fn with_store(store: OpenStore, clock: Clock) -> Self {
        let throttle = Throttle::new(store.buckets.clone(), store.hash_keys.clone());
        Self {
            trust: Arc::default(),
            respond: Arc::default(),
            buffers: Arc::new(Buffers::new(BufferBounds::default())),
            store,
            throttle: Arc::new(throttle),
            rules: Arc::default(),
            tasks: TaskTracker::new(),
            clock,
        }
    }

    /// Sets which peers are trusted to report the client address in `X-Forwarded-For` (by default none), and which
    /// clients have no limits.
    #[must_use]
    pub fn trust(self, trust: Trust) -> Self {
        let trust = Arc::new(trust);
        Self { trust, ..self }
    }

    /// Sets the format of the responses that the layers generate.
    #[must_use]
    pub fn respond(self, settings: RespondSettings) -> Self {
        let respond = Arc::new(settings);
        Self { respond, ..self }
    }

    /// Sets the bounds on the memory for bodies. Neither should be below `max_request` of the idempotency settings. A
    /// request with an idempotency key gets 503 if its body is larger than `total`, or larger than `per_client` while
    /// more than half of `total` is in use.
    #[must_use]
    pub fn buffer(self, bounds: BufferBounds) -> Self {
        let buffers = Arc::new(Buffers::new(bounds));
        Self { buffers, ..self }
    }

    /// Creates the layer of the rule `name`. A request that passes the layer is charged to all `limits` or to none. If
    /// `keys` is set, a request with an idempotency key is then executed once, and its response is replayed to retries.
    /// If two nested layers have idempotency keys, only the outer layer claims the key. The limits of both apply.
    ///
    /// Two rules can contain the same limit, with the same settings, which then has one bucket for both. Rule names are
    /// values of the label `route` in metrics, so each rule has its own.
    ///
    /// The layer responds with 500 if the address of the peer is unknown. It responds with 400 if a header value has
    /// leading or trailing white space, if the request repeats a header in the key of a limit or in the scope of
    /// idempotency keys, or if `X-Forwarded-For` of a trusted peer has more than 256 addresses.
    ///
    /// The layer normalises the headers of the request, as the gateway does, and the application receives the result.
    /// It joins the lines of `Cookie`. It removes the headers that `Connection` lists, except those with a fixed
    /// meaning, such as `Authorization`, and headers that differ only in underscores or similar characters from one
    /// with a fixed meaning or one that the rule reads, such as `X_Api_Key` for `X-Api-Key`.
    ///
    /// The function of [`Limit::by`] or [`Scope::by`] sees the normalised headers, which are not checked for
    /// repetition. In a nested router of axum, it sees the path without the prefix of the router.
    pub fn layer(
        &self,
        name: &str,
        limits: impl IntoIterator<Item = Limit>,
        keys: Option<KeyRule>,
    ) -> Result<EmbeddedLayer, RuleError> {
        // The iterator can call functions of this `Embedded`, so it runs before the lock.
        let limits = limits.into_iter().collect();
        let mut rules = self.rules.lock();
        let limits = rules.add(name, limits, keys.as_ref())?;
        #[cfg(feature = "disk")]
        if let RecordStore::Disk(records) = &self.store.records {
            records.set_max_response(rules.max_response);
        }
        let metrics = rules.newest();
        let state = RuleState {
            trust: Arc::clone(&self.trust),
            respond: Arc::clone(&self.respond),
            throttle: Arc::clone(&self.throttle),
            headers: rules::HeaderChecks::new(&limits, keys.as_ref()),
            limits: rules.prepare(&limits, self.respond.rate_limit, &self.clock),
            idempotency: self.idempotency(),
            keys: keys.map(|keys| {
                let hints = self.respond.hints.clone();
                Arc::new(RouteKeys::new(keys, hints, Arc::clone(&metrics)))
            }),
            tasks: self.tasks.clone(),
            metrics,
            _store: self.store.clone(),
            clock: self.clock.clone(),
        };
        Ok(EmbeddedLayer::new(state))
    }

    fn idempotency(&self) -> Idempotency<RecordStore> {
        Idempotency::new(
            self.store.records.clone(),
            self.store.hash_keys.clone(),
            MAX_EXECUTIONS,
            Arc::clone(&self.buffers),
            self.tasks.clone(),
            self.clock.clone(),
        )
    }

    /// Returns a handle to the metrics of all layers, including later ones. They have the names of the gateway's
    /// metrics and are a complete `OpenMetrics` document, so they need a path of their own.
    pub fn metrics(&self) -> EmbeddedMetrics {
        EmbeddedMetrics {
            rules: Arc::clone(&self.rules),
            store: self.store.clone(),
            buffers: Arc::clone(&self.buffers),
        }
    }

    /// Waits until all requests with an idempotency key are executed, including those whose client has disconnected,
    /// and closes the store. To be called after the server has stopped. A later request with an idempotency key, or
    /// with a JSON body in a rule with a `body_field`, gets 503.
    ///
    /// To bound the wait, use `tokio::time::timeout`. If it expires, the store is not closed.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        let store = self.store.clone();
        // The close waits for the threads of the store.
        let closing = tokio::task::spawn_blocking(move || store.close());
        if let Err(error) = closing.await {
            tracing::error!(%error, "cannot close store");
        }
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Self::new()
    }
}

/// Metrics of the layers of an [`Embedded`], for Prometheus. Label values are names of rules and limits, never clients
/// or idempotency keys.
///
/// The handle is an axum handler: `.route("/metrics", get(embedded.metrics()))`.
#[derive(Clone, Debug)]
pub struct EmbeddedMetrics {
    rules: Arc<Mutex<Rules>>,
    store: OpenStore,
    buffers: Arc<Buffers>,
}

impl EmbeddedMetrics {
    /// Returns the current values in the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        let metrics: Metrics = self.rules.lock().metrics();
        let stages = StageMetrics {
            workers: [Arc::new(metrics)].into(),
            buckets: self.store.buckets.clone(),
            records: self.store.records.clone(),
            buffers: Buffers::clone(&self.buffers),
        };
        stages.into_text()
    }
}

impl IntoResponse for EmbeddedMetrics {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, OPENMETRICS)], self.text()).into_response()
    }
}

#[cfg(test)]
mod tests;
