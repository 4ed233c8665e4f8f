//! The throttle as a tower layer, around the gateway's forwarder or any other service.
//!
//! It finds who is calling and under which route in the [`Passage`] an earlier stage left in the
//! request's extensions; a request without one is not its business and passes. The charge is made on
//! arrival: a client that leaves while it is being delayed is not carried on, and its slot is spent.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use smallvec::SmallVec;
use tower::{Layer, Service};

use super::decision::USUAL_LIMITS;
use super::{Buckets, Charge, Limit, Mode, Outcome, Side};
use crate::admin::Metrics;
use crate::client::Caller;
use crate::clock::Clock;
use crate::idempotency::Naming;
use crate::pipeline::Arrival;
use crate::respond::{Dialect, Manner, Rejection, problem, rate_limit};
use crate::route::{Route, RouteId, Routes};

/// What the stages before found out about a request.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Who is calling.
    pub caller: Caller,
    /// The route it falls under.
    pub route: RouteId,
    /// The bucket it draws from: a forwarded CORS preflight never spends the real request's token.
    pub side: Side,
    /// Whether it may be sent to upstream again when nobody can say that the first time did nothing.
    pub resending: Resending,
    /// What only the gateway's own forwarder asks for. Here and not by itself: each kind of thing that a
    /// request carries costs it two allocations.
    pub arrival: Option<Arrival>,
}

/// Whether a request may be sent again when nobody can say that the first time did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resending {
    /// If its method is one that may be repeated.
    ByMethod,
    /// No: its key promises that it is carried out once, whatever its method.
    Never,
    /// Yes: upstream itself knows it by its key.
    Always,
}

/// Puts a throttle around a service.
#[derive(Debug)]
pub struct ThrottleLayer<S>(Arc<Shared<S>>);

/// A service behind a throttle.
#[derive(Debug)]
pub struct Throttle<Inner, S> {
    inner: Inner,
    shared: Arc<Shared<S>>,
}

#[derive(Debug)]
struct Shared<S> {
    buckets: Arc<S>,
    naming: Naming,
    rules: Vec<Rules>,
    manner: Arc<Manner>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Charges by the limits of a route, in their order.
type Charges<'a> = SmallVec<[Charge<'a>; USUAL_LIMITS]>;

/// What a route's requests are held to.
#[derive(Debug)]
struct Rules {
    enforced: Vec<Arc<Limit>>,
    shadow: Vec<Arc<Limit>>,
    cost: NonZeroU32,
    /// `RateLimit-Policy`, the same for every response.
    policy: HeaderValue,
}

impl Rules {
    fn of(route: &Route) -> Self {
        // Copies, so that what every request counts references to is this layer's own.
        let (enforced, shadow): (Vec<_>, Vec<_>) = route
            .limits
            .iter()
            .map(|limit| Arc::new(Limit::clone(limit)))
            .partition(|limit| limit.mode == Mode::Enforce);
        let policy = rate_limit::policy(&enforced);
        Self {
            enforced,
            shadow,
            cost: route.cost,
            policy,
        }
    }
}

impl<S: Buckets> ThrottleLayer<S> {
    /// A throttle over `routes`, with its buckets in `buckets`.
    pub fn new(
        routes: &Routes,
        buckets: Arc<S>,
        naming: Naming,
        manner: Arc<Manner>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        let rules = routes.iter().map(|route| Rules::of(route)).collect();
        Self(Arc::new(Shared {
            buckets,
            naming,
            rules,
            manner,
            metrics,
            clock,
        }))
    }
}

impl<S> Clone for ThrottleLayer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Inner: Clone, S> Clone for Throttle<Inner, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<Inner, S> Layer<Inner> for ThrottleLayer<S> {
    type Service = Throttle<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Throttle {
            inner,
            shared: Arc::clone(&self.0),
        }
    }
}

impl<Inner, S, ReqBody, ResBody> Service<Request<ReqBody>> for Throttle<Inner, S>
where
    Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    Inner::Future: Send,
    S: Buckets,
    ReqBody: Send + 'static,
    ResBody: From<Bytes>,
{
    type Response = Response<ResBody>;
    type Error = Inner::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The service that was found ready is the one called; the clone stays behind for the next.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let Some(passage) = request.extensions().get::<Passage>() else {
                return inner.call(request).await;
            };
            let route = passage.route;
            let rules = &shared.rules[route.0];
            if passage.caller.exempt() || (rules.enforced.is_empty() && rules.shadow.is_empty()) {
                return inner.call(request).await;
            }

            let (enforced, watched) = shared.charges(rules, passage, request.headers());
            let judgement = shared.buckets.charge(&enforced, &watched).await;
            for place in judgement.exceeded {
                let limit = &rules.shadow[place];
                shared.metrics.limit(limit.id).shadow_refused.inc();
            }
            if rules.enforced.is_empty() {
                return inner.call(request).await;
            }
            let verdict = judgement.verdict;

            let mut response = match verdict.outcome {
                Outcome::Refused { wait, by } => {
                    let limit = Arc::clone(&rules.enforced[by]);
                    shared.metrics.limit(limit.id).refused.inc();
                    let rejection = Rejection::RateLimited { limit, wait };
                    problem::response(&rejection, request.headers(), &shared.manner, &shared.clock)
                }
                Outcome::Unavailable => {
                    let rejection = Rejection::LimitsUnavailable;
                    problem::response(&rejection, request.headers(), &shared.manner, &shared.clock)
                }
                Outcome::Admitted { delay } => {
                    if !delay.is_zero() {
                        shared.metrics.route(Some(route)).delayed.inc();
                        // Boxed: a timer is large and aligned to cache lines, and would make every
                        // request's future so, the many that never wait included.
                        Box::pin(tokio::time::sleep(delay)).await;
                    }
                    inner.call(request).await?
                }
            };
            if shared.manner.rate_limit != Dialect::Off && !verdict.readings.is_empty() {
                let dialect = shared.manner.rate_limit;
                let headers = response.headers_mut();
                rate_limit::write(headers, dialect, &rules.enforced, &rules.policy, &verdict);
            }
            Ok(response)
        })
    }
}

impl<S> Shared<S> {
    /// What a request is charged: by the limits that are enforced, and by those that only watch.
    fn charges<'a>(
        &self,
        rules: &'a Rules,
        passage: &Passage,
        headers: &HeaderMap,
    ) -> (Charges<'a>, Charges<'a>) {
        let seed = self.naming.names().seed;
        let client = passage.caller.id();
        let charge = |limit: &'a Arc<Limit>| Charge {
            limit,
            bucket: seed.bucket(limit, passage.side, client, headers),
            cost: rules.cost,
        };
        let of = |limits: &'a [Arc<Limit>]| limits.iter().map(charge).collect();
        (of(&rules.enforced), of(&rules.shadow))
    }
}
