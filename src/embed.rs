//! Rate limits and idempotency keys as tower layers for an axum application, without the proxy.
//!
//! [`Embedded`] contains the rate limits, the settings for idempotency keys, and the state that the layers share. All
//! routes of the application have the same limits and settings. The layer that is added last processes a request first:
//!
//! ```
//! use std::num::NonZeroU32;
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::routing::post;
//! use tidegate::embed::Embedded;
//! use tidegate::idempotency::KeyRule;
//! use tidegate::throttle::{Limit, Quota};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?;
//! let embedded = Embedded::new(vec![Limit::per_client("device", quota)], Some(KeyRule::default()));
//! let app: Router = Router::new()
//!     .route("/payments", post(|| async { "paid\n" }))
//!     .layer(embedded.idempotency())
//!     .layer(embedded.throttle())
//!     .layer(embedded.identify());
//! # Ok(())
//! # }
//! ```
//!
//! Serve the application with `into_make_service_with_connect_info::<SocketAddr>()`. Otherwise the layers do not know
//! the peer address. They then apply no rate limits, ignore idempotency keys, and log one warning. Apply the layers to
//! the outermost router. In a nested router, axum removes the prefix of the path, so two different requests could have
//! the same fingerprint. All state is in memory.
//!
//! The layers call the same stage functions as the gateway.

mod idempotency;
mod identify;
mod throttle;

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use tokio_util::task::TaskTracker;

use self::idempotency::IdempotencyState;
use self::identify::IdentifyState;
use self::throttle::ThrottleState;
use crate::buffers::{BufferBounds, Buffers};
use crate::client::Trust;
use crate::clock::Clock;
use crate::context::RequestContext;
use crate::hash_keys::HashKeySource;
use crate::idempotency::{Idempotency, KeyRule, RouteKeys};
use crate::intake::headers::HeaderNames;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::respond::{Preferences, RespondSettings, render};
use crate::store::StoreCapacity;
use crate::store::memory::MemoryBuckets;
use crate::store::memory::records::MemoryRecords;
use crate::throttle::{Limit, LimitId, Mode, RouteLimits, Throttle};

pub use self::idempotency::{IdempotencyLayer, Idempotent};
pub use self::identify::{Identify, IdentifyLayer};
pub use self::throttle::{ThrottleLayer, Throttled};

/// Maximum number of rate limit buckets in memory.
const MAX_CLIENTS: usize = 1_000_000;

/// Maximum number of requests with an idempotency key that are in flight at the same time.
const MAX_EXECUTIONS: usize = 65_536;

/// Settings and state that the layers of one application share.
#[derive(Debug)]
pub struct Embedded {
    limits: Vec<Arc<Limit>>,
    rule: Option<KeyRule>,
    trust: Arc<Trust>,
    settings: Arc<RespondSettings>,
    throttle: Arc<Throttle<MemoryBuckets>>,
    records: MemoryRecords,
    hash_keys: HashKeySource,
    buffers: Arc<Buffers>,
    metrics: Metrics,
    tasks: TaskTracker,
    clock: Clock,
}

impl Embedded {
    /// Creates the state for these rate limits and, if given, these settings for idempotency keys. No peer is trusted
    /// to set `X-Forwarded-For`.
    pub fn new(limits: Vec<Limit>, idempotency: Option<KeyRule>) -> Self {
        let limits: Vec<_> = (0..)
            .zip(limits)
            .map(|(index, limit)| {
                let id = LimitId(index);
                Arc::new(Limit { id, ..limit })
            })
            .collect();
        let clock = Clock::real();
        let hash_keys = HashKeySource::random();
        let buckets = MemoryBuckets::new(MAX_CLIENTS, clock.clone());
        let route = ("embedded".into(), idempotency.is_some());
        Self {
            trust: Arc::default(),
            settings: Arc::default(),
            throttle: Arc::new(Throttle::new(buckets, hash_keys.clone())),
            records: MemoryRecords::new(StoreCapacity::default(), clock.clone()),
            hash_keys,
            buffers: Arc::new(Buffers::new(BufferBounds::default())),
            metrics: Metrics::new(
                [(&route.0, route.1)],
                limits.iter().map(|limit| &limit.name),
                [],
            ),
            tasks: TaskTracker::new(),
            limits,
            rule: idempotency,
            clock,
        }
    }

    /// Sets which peers are trusted to report the client address in `X-Forwarded-For`.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        let trust = Arc::new(trust);
        Self { trust, ..self }
    }

    /// Sets the format of the responses that the layers generate: the `RateLimit` headers, the hints for SDKs, the link
    /// to the documentation, and CORS.
    #[must_use]
    pub fn speaking(self, settings: RespondSettings) -> Self {
        let settings = Arc::new(settings);
        Self { settings, ..self }
    }

    /// Sets the bounds on the memory for request and response bodies. Neither bound should be below `max_request` of
    /// the idempotency settings. A request with an idempotency key gets 503 if its body is larger than `total`. It also
    /// gets 503 if its body is larger than `per_client` and more than half of `total` is in use.
    #[must_use]
    pub fn buffering(self, bounds: BufferBounds) -> Self {
        let buffers = Arc::new(Buffers::new(bounds));
        Self { buffers, ..self }
    }

    /// Returns the layer that identifies the client of a request. A request must pass this layer first.
    ///
    /// The layer rejects a request with 400 if a header value has leading or trailing white space. It also rejects a
    /// request that repeats a header in the key of a rate limit or in the scope of idempotency keys.
    pub fn identify(&self) -> IdentifyLayer {
        let mut names = HeaderNames::default();
        let headers_of = |mode| {
            let limits = self.limits.iter().filter(move |limit| limit.mode == mode);
            limits.flat_map(|limit| limit.headers())
        };
        let rule = self.rule.as_ref();
        let scope = rule.into_iter().flat_map(|rule| rule.scope.headers());
        let counted = names.add_route(
            headers_of(Mode::Enforce).chain(scope),
            headers_of(Mode::Shadow),
            rule.map(|rule| &rule.header),
        );
        IdentifyLayer(Arc::new(IdentifyState {
            trust: Arc::clone(&self.trust),
            names,
            counted,
            problems: self.problems(),
        }))
    }

    /// Returns the layer that applies the rate limits. A request must pass this layer second.
    pub fn throttle(&self) -> ThrottleLayer {
        let limits = RouteLimits::new(
            &self.limits,
            NonZeroU32::MIN,
            self.settings.rate_limit,
            &self.metrics.routes[0],
            &self.metrics,
            self.clock.clone(),
        );
        ThrottleLayer(Arc::new(ThrottleState {
            throttle: Arc::clone(&self.throttle),
            limits,
            problems: self.problems(),
        }))
    }

    /// Returns the layer that executes requests with an idempotency key once and replays their responses. A request
    /// must pass this layer last.
    pub fn idempotency(&self) -> IdempotencyLayer {
        let rule = self.rule.clone();
        IdempotencyLayer(Arc::new(IdempotencyState {
            stage: Idempotency::new(
                self.records.clone(),
                self.hash_keys.clone(),
                MAX_EXECUTIONS,
                Arc::clone(&self.buffers),
                self.tasks.clone(),
                self.clock.clone(),
            ),
            keys: rule.map(|rule| {
                let metrics = Arc::clone(&self.metrics.routes[0]);
                Arc::new(RouteKeys::new(rule, metrics))
            }),
            problems: self.problems(),
        }))
    }

    /// Waits until all requests with an idempotency key are executed, including those whose client has disconnected.
    /// Call this function after the server has stopped accepting requests.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn problems(&self) -> ProblemRenderer {
        ProblemRenderer {
            settings: Arc::clone(&self.settings),
            clock: self.clock.clone(),
        }
    }
}

/// Converts the problems of a layer into responses.
#[derive(Clone, Debug)]
struct ProblemRenderer {
    settings: Arc<RespondSettings>,
    clock: Clock,
}

impl ProblemRenderer {
    fn render<B: From<Bytes>>(&self, problem: Problem, preferences: &Preferences) -> Response<B> {
        render(problem, preferences, &self.settings, &self.clock)
    }
}

/// Boxed future that resolves to the response of a layer.
type ResponseFuture<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

/// Returns the context that [`IdentifyLayer`] has attached to a request. Returns `None` if the peer address is unknown.
fn context<B>(request: &Request<B>) -> Option<Arc<RequestContext>> {
    request.extensions().get().cloned()
}

/// Takes the service whose `poll_ready` succeeded, and leaves a clone for the next request. The clone itself is not
/// ready.
fn take_ready<Inner: Clone>(inner: &mut Inner) -> Inner {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

#[cfg(test)]
mod tests;
