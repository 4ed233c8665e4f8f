//! Limits and idempotency keys as tower layers for an axum application, without the proxy.
//!
//! An application has its own routes, so it needs one rule: its limits and the meaning of its keys. [`Embedded`] holds
//! the state that the layers share. tower applies layers from last to first:
//!
//! ```
//! use std::num::NonZeroU32;
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::routing::post;
//! use tidegate::embed::Embedded;
//! use tidegate::idempotency::Rule;
//! use tidegate::throttle::{Limit, Quota};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?;
//! let embedded = Embedded::new(vec![Limit::per_client("device", quota)], Some(Rule::default()));
//! let app: Router = Router::new()
//!     .route("/payments", post(|| async { "paid\n" }))
//!     .layer(embedded.idempotency())
//!     .layer(embedded.throttle())
//!     .layer(embedded.identify());
//! # Ok(())
//! # }
//! ```
//!
//! Serve it with `into_make_service_with_connect_info::<SocketAddr>()`: a request whose peer is not known has no client,
//! and passes all layers unchanged, which is logged once. Apply the layers to the outermost router: inside a nested one
//! they see a shortened path, and could take two requests for one. All state is in memory.
//!
//! The layers are adapters: the stages themselves are the functions that the gateway calls.

mod idempotency;
mod identify;
mod throttle;

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use tokio_util::task::TaskTracker;

use self::idempotency::Keying;
use self::identify::Identifying;
use self::throttle::Throttling;
use crate::buffers::{BufferBounds, Buffers};
use crate::client::Trust;
use crate::clock::Clock;
use crate::context::RequestContext;
use crate::hash_keys::HashKeySource;
use crate::idempotency::{Idempotency, RouteKeys, Rule};
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

/// Buckets tracked at once.
const MAX_CLIENTS: usize = 1_000_000;

/// Executions in flight at once.
const MAX_EXECUTIONS: usize = 65_536;

/// The state that the layers of one application share.
#[derive(Debug)]
pub struct Embedded {
    limits: Vec<Arc<Limit>>,
    rule: Option<Rule>,
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
    /// Creates layers that apply `limits` to every client and, if given, a rule for idempotency keys. No peer is trusted
    /// to set `X-Forwarded-For`.
    pub fn new(limits: Vec<Limit>, idempotency: Option<Rule>) -> Self {
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

    /// Sets the peers that are trusted to set `X-Forwarded-For`.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        let trust = Arc::new(trust);
        Self { trust, ..self }
    }

    /// Sets the form of the responses that the layers make: dialect, hints for SDKs, link to documentation, CORS.
    #[must_use]
    pub fn speaking(self, settings: RespondSettings) -> Self {
        let settings = Arc::new(settings);
        Self { settings, ..self }
    }

    /// Sets the bounds on request and response bodies that are held in memory. Choose bounds that are not below
    /// `max_request` of the rule: a larger keyed request body is always rejected with 503.
    #[must_use]
    pub fn buffering(self, bounds: BufferBounds) -> Self {
        let buffers = Arc::new(Buffers::new(bounds));
        Self { buffers, ..self }
    }

    /// Returns the layer that identifies the client, which a request passes first. It rejects a request with 400 if a
    /// header that a limit or the scope is counted by is repeated, or if a value has white space around it.
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
        IdentifyLayer(Arc::new(Identifying {
            trust: Arc::clone(&self.trust),
            names,
            counted,
            rejecting: self.rejecting(),
        }))
    }

    /// Returns the layer that applies the limits, which a request passes second.
    pub fn throttle(&self) -> ThrottleLayer {
        let limits = RouteLimits::new(
            &self.limits,
            NonZeroU32::MIN,
            self.settings.rate_limit,
            &self.metrics.routes[0],
            &self.metrics,
            self.clock.clone(),
        );
        ThrottleLayer(Arc::new(Throttling {
            throttle: Arc::clone(&self.throttle),
            limits,
            rejecting: self.rejecting(),
        }))
    }

    /// Returns the layer that replays responses to repeated keys, which a request passes last.
    pub fn idempotency(&self) -> IdempotencyLayer {
        let rule = self.rule.clone();
        IdempotencyLayer(Arc::new(Keying {
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
            rejecting: self.rejecting(),
        }))
    }

    /// Waits for executions whose clients may have disconnected. To be called when no more requests arrive.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn rejecting(&self) -> Rejecting {
        Rejecting {
            settings: Arc::clone(&self.settings),
            clock: self.clock.clone(),
        }
    }
}

/// Renders the problems of a layer.
#[derive(Clone, Debug)]
struct Rejecting {
    settings: Arc<RespondSettings>,
    clock: Clock,
}

impl Rejecting {
    fn render<B: From<Bytes>>(&self, problem: Problem, preferences: &Preferences) -> Response<B> {
        render(problem, preferences, &self.settings, &self.clock)
    }
}

/// The future of a request.
type Responding<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

/// Returns the context that [`IdentifyLayer`] has attached to a request.
fn context<B>(request: &Request<B>) -> Option<Arc<RequestContext>> {
    request.extensions().get().cloned()
}

/// Takes the service that was found ready, and leaves a clone for the next request.
fn take_ready<Inner: Clone>(inner: &mut Inner) -> Inner {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

#[cfg(test)]
mod tests;
