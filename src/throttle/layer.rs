//! The throttle as a tower layer, around the gateway's forwarder or any other service.
//!
//! It finds who is calling and under which route in the [`Passage`] an earlier stage left in the
//! request's extensions; a request without one is not its business and passes. The charge is made on
//! arrival: a client that leaves while it is being delayed is not carried on, and its slot is spent.
//!
//! Where the buckets are at hand, all is decided before there is a future, and the request goes on from
//! where it is: only one that has to wait is moved into a box to do so.

mod future;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use smallvec::SmallVec;
use tower::{Layer, Service};

use self::future::{Answering, Statement, Way};
use super::decision::USUAL_LIMITS;
use super::{Buckets, Charge, Judgement, KeyPart, Limit, Mode, Outcome, Side, Verdict};
use crate::access_log::{CountedBy, Notes};
use crate::admin::Metrics;
use crate::client::Caller;
use crate::clock::Clock;
use crate::idempotency::Naming;
use crate::pipeline::Arrival;
use crate::respond::{Dialect, Manner, Rejection, problem, rate_limit};
use crate::route::{Route, RouteId, Routes};

pub use self::future::ThrottleFuture;

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

/// Whether a request may be sent again although a server may have received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resending {
    /// If its method is idempotent.
    ByMethod,
    /// No, whatever its method: its idempotency key is held if its outcome becomes unknown.
    Never,
    /// Yes: the upstream handles its idempotency key.
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
    rules: Vec<Arc<Rules>>,
    manner: Arc<Manner>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Charges by the limits of a route, in their order.
type Charges<'a> = SmallVec<[Charge<'a>; USUAL_LIMITS]>;

/// Returns by what the access log shows that a charge was counted.
fn counted_by(charge: &Charge<'_>) -> CountedBy {
    match &*charge.limit.key {
        [KeyPart::Client] => CountedBy::Client,
        [KeyPart::Global] => CountedBy::Global,
        _ => CountedBy::Hash(charge.bucket.high),
    }
}

/// What a route's requests are held to.
#[derive(Debug)]
struct Rules {
    route: RouteId,
    enforced: Vec<Arc<Limit>>,
    shadow: Vec<Arc<Limit>>,
    cost: NonZeroU32,
    /// Dialect of the `RateLimit` headers.
    dialect: Dialect,
    /// The gateway's members of `RateLimit-Policy`, the same on every response.
    policy: HeaderValue,
    clock: Clock,
}

/// What becomes of a request.
enum Ruling<B> {
    Admitted(Admitted),
    Refused(Response<B>),
}

/// How a request goes on; mostly at once.
#[derive(Default)]
struct Admitted {
    delay: Duration,
    statement: Option<Box<Statement>>,
}

impl Passage {
    /// The notes for the access log, if the request is logged.
    pub fn notes(&self) -> Option<&Arc<Notes>> {
        self.arrival.as_ref()?.notes.as_ref()
    }
}

impl Rules {
    fn of(route: &Route, dialect: Dialect, clock: Clock) -> Self {
        // Copies: a worker does not share the reference counts that each of its requests changes.
        let (enforced, shadow): (Vec<_>, Vec<_>) = route
            .limits
            .iter()
            .map(|limit| Arc::new(Limit::clone(limit)))
            .partition(|limit| limit.mode == Mode::Enforce);
        let policy = rate_limit::policy(&enforced);
        Self {
            route: route.id,
            enforced,
            shadow,
            cost: route.cost,
            dialect,
            policy,
            clock,
        }
    }

    fn is_empty(&self) -> bool {
        self.enforced.is_empty() && self.shadow.is_empty()
    }

    /// Writes the `RateLimit` headers of a response.
    fn write(&self, headers: &mut HeaderMap, verdict: &Verdict) {
        let Self {
            dialect,
            enforced,
            policy,
            clock,
            ..
        } = self;
        rate_limit::write(headers, *dialect, enforced, policy, verdict, clock);
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
        let rules = routes
            .iter()
            .map(|route| Arc::new(Rules::of(route, manner.rate_limit, clock.clone())));
        Self(Arc::new(Shared {
            buckets,
            naming,
            rules: rules.collect(),
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
    type Future = ThrottleFuture<Inner::Future, ResBody, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let admitted = match self.shared.decide(&request) {
            Some(Ruling::Refused(response)) => {
                let response = Some(Box::new(response));
                return Way::Refused { response }.into();
            }
            Some(Ruling::Admitted(Admitted { delay, statement })) if delay.is_zero() => {
                let inner = self.inner.call(request);
                return Way::Passing { inner, statement }.into();
            }
            Some(Ruling::Admitted(admitted)) => Some(admitted),
            None => None,
        };
        // The service that was found ready is the one called; the clone stays behind for the next.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let answering = Arc::clone(&self.shared).wait(admitted, request, inner);
        Way::Waiting { answering }.into()
    }
}

impl<S: Buckets> Shared<S> {
    /// What becomes of a request; `None` if whoever keeps the buckets has to be asked.
    fn decide<A, B: From<Bytes>>(&self, request: &Request<A>) -> Option<Ruling<B>> {
        let Some((rules, passage)) = self.rules(request) else {
            return Some(Ruling::Admitted(Admitted::default()));
        };
        let buckets = self.buckets.at_hand()?;
        let charges = self.charges(rules, passage, request.headers());
        let (enforced, watched) = charges.split_at(rules.enforced.len());
        let judgement = buckets.judge(enforced, watched);
        Some(self.rule(rules, judgement, request.headers(), passage.notes()))
    }

    /// The answer to a request that waits for its slot or, if it is not yet `admitted`, to be decided.
    fn wait<Inner, A, B>(
        self: Arc<Self>,
        admitted: Option<Admitted>,
        request: Request<A>,
        mut inner: Inner,
    ) -> Answering<B, Inner::Error>
    where
        Inner: Service<Request<A>, Response = Response<B>> + Send + 'static,
        Inner::Future: Send,
        A: Send + 'static,
        B: From<Bytes>,
    {
        Box::pin(async move {
            let Admitted { delay, statement } = match (admitted, self.rules(&request)) {
                (Some(admitted), _) => admitted,
                (None, None) => Admitted::default(),
                (None, Some((rules, passage))) => {
                    let charges = self.charges(rules, passage, request.headers());
                    let (enforced, watched) = charges.split_at(rules.enforced.len());
                    let judgement = self.buckets.charge(enforced, watched).await;
                    match self.rule(rules, judgement, request.headers(), passage.notes()) {
                        Ruling::Admitted(admitted) => admitted,
                        Ruling::Refused(response) => return Ok(response),
                    }
                }
            };
            if !delay.is_zero() {
                // Boxed: a timer is large and aligned to cache lines, and would make the future of every
                // request so that had to be asked about, the many that never wait included.
                Box::pin(tokio::time::sleep(delay)).await;
            }
            let mut response = inner.call(request).await?;
            if let Some(statement) = statement {
                statement.write(response.headers_mut());
            }
            Ok(response)
        })
    }

    /// Returns what becomes of a request with these headers after this judgement.
    fn rule<B: From<Bytes>>(
        &self,
        rules: &Arc<Rules>,
        judgement: Judgement,
        headers: &HeaderMap,
        notes: Option<&Arc<Notes>>,
    ) -> Ruling<B> {
        for place in judgement.exceeded {
            let limit = &rules.shadow[place];
            self.metrics.limit(limit.id).shadow_refused.inc();
        }
        if rules.enforced.is_empty() {
            return Ruling::Admitted(Admitted::default());
        }
        let verdict = judgement.verdict;
        let has_headers = rules.dialect != Dialect::Off && !verdict.readings.is_empty();
        let rejection = match verdict.outcome {
            Outcome::Admitted { delay } => {
                if !delay.is_zero() {
                    self.metrics.route(Some(rules.route)).delayed.inc();
                }
                let statement = has_headers.then(|| {
                    Box::new(Statement {
                        rules: Arc::clone(rules),
                        verdict,
                    })
                });
                return Ruling::Admitted(Admitted { delay, statement });
            }
            Outcome::Refused { wait, by } => {
                let limit = Arc::clone(&rules.enforced[by]);
                self.metrics.limit(limit.id).refused.inc();
                if let Some(notes) = notes {
                    notes.facts().rejected_by = Some((limit.id, wait));
                }
                let mut others = Vec::new();
                if rules.enforced.len() > 1 {
                    let rejecting = verdict.rejecting().into_iter();
                    let rejecting = rejecting.filter(|&index| index != by);
                    others.extend(rejecting.map(|index| Arc::clone(&rules.enforced[index])));
                }
                Rejection::RateLimited {
                    limit,
                    wait,
                    others,
                }
            }
            Outcome::Unavailable => Rejection::LimitsUnavailable,
        };
        if let Some(notes) = notes {
            notes.facts().reason = Some(rejection.kind());
        }
        let mut response = problem::response(&rejection, headers, &self.manner, &self.clock);
        if has_headers {
            rules.write(response.headers_mut(), &verdict);
        }
        Ruling::Refused(response)
    }

    /// What a request is held to, and whose it is; `None` if it is held to nothing.
    fn rules<'s, 'r, A>(
        &'s self,
        request: &'r Request<A>,
    ) -> Option<(&'s Arc<Rules>, &'r Passage)> {
        let passage = request.extensions().get::<Passage>()?;
        let rules = &self.rules[passage.route.0];
        (!passage.caller.exempt() && !rules.is_empty()).then_some((rules, passage))
    }

    /// Returns what a request is charged: by the enforced limits, then by those in shadow mode.
    fn charges<'a>(&self, rules: &'a Rules, passage: &Passage, headers: &HeaderMap) -> Charges<'a> {
        let seed = self.naming.names().seed;
        let client = passage.caller.id();
        let limits = rules.enforced.iter().chain(&rules.shadow);
        let charges: Charges<'_> = limits
            .map(|limit| Charge {
                limit,
                bucket: seed.bucket(limit, passage.side, client, headers),
                cost: rules.cost,
            })
            .collect();
        if let Some(notes) = passage.notes() {
            let counted = charges
                .iter()
                .map(|charge| (charge.limit.id, counted_by(charge)));
            notes.facts().limits.extend(counted);
        }
        charges
    }
}
