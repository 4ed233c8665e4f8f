//! Throttle stage: charges a request to the rate limits of its route.
//!
//! A request is charged when it arrives. If the client disconnects while its request is delayed, the request is not
//! forwarded and its tokens are not returned. Only a delay and a remote store need an await. Their futures are boxed,
//! because unboxed they would enlarge the future of every request.

use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::census::{Census, RejectedRequest};
use super::decision::USUAL_LIMITS;
use super::{
    BucketKey, BucketKind, Buckets, Charge, ChargeOutcome, ChargeResult, Decision, KeyPart,
    KeySource, Limit, Mode, rate_limit,
};
use crate::clock::Clock;
use crate::metrics::{LimitMetrics, Metrics, RouteMetrics};
use crate::request::context::RequestContext;
use crate::request::hash_keys::HashKeySource;
use crate::respond::retry_after::whole_seconds;
use crate::respond::{Dialect, HEADER_CAPACITY, Problem, Retry};

#[derive(Debug)]
pub(crate) struct Throttle<S> {
    buckets: S,
    hash_keys: HashKeySource,
}

/// Prepared for one worker.
#[derive(Debug)]
pub(crate) struct RouteLimits {
    enforced: Vec<RouteLimit>,
    shadow: Vec<RouteLimit>,
    cost: NonZeroU32,
    dialect: Dialect,
    /// The same in all responses, unless the upstream sends its own `RateLimit-Policy`.
    policy: HeaderValue,
    metrics: Arc<RouteMetrics>,
    clock: Clock,
}

/// With the counters of one worker.
#[derive(Debug)]
pub(super) struct RouteLimit {
    pub(super) limit: Arc<Limit>,
    pub(super) metrics: Arc<LimitMetrics>,
    /// `None` in an embedding application.
    pub(super) census: Option<Arc<Census>>,
}

#[derive(Clone, Debug)]
pub(crate) struct LimitState {
    pub(crate) limit: Arc<Limit>,
    pub(crate) census: Option<Arc<Census>>,
}

/// Admitted requests per key in the sample of a census.
const SAMPLE_INTERVAL: u64 = 16;

#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// `None` if the response gets no `RateLimit` headers. Boxed, because unboxed it would enlarge the future of every
    /// request.
    decision: Option<Box<Decision>>,
}

/// In the order of the route's limits.
type Charges<'a> = SmallVec<[Charge<'a>; USUAL_LIMITS]>;

impl Deref for RouteLimit {
    type Target = Limit;

    fn deref(&self) -> &Limit {
        &self.limit
    }
}

impl RouteLimits {
    /// A request takes `cost` tokens from each limit.
    pub(crate) fn new(
        limits: impl IntoIterator<Item = LimitState>,
        cost: NonZeroU32,
        dialect: Dialect,
        route: &Arc<RouteMetrics>,
        metrics: &Metrics,
        clock: Clock,
    ) -> Self {
        // Each worker has its own copy of the limits. Otherwise all workers would write the same reference counts for
        // each request.
        let (enforced, shadow): (Vec<_>, Vec<_>) = limits
            .into_iter()
            .map(|LimitState { limit, census }| RouteLimit {
                metrics: Arc::clone(metrics.limit(&route.name, &limit.name)),
                limit: Arc::new(Limit::clone(&limit)),
                census,
            })
            .partition(|limit| limit.mode == Mode::Enforce);
        Self {
            policy: rate_limit::policy(&enforced),
            enforced,
            shadow,
            cost,
            dialect,
            metrics: Arc::clone(route),
            clock,
        }
    }

    pub(crate) fn write_headers(&self, admission: &Admission, headers: &mut HeaderMap) {
        if let Some(decision) = &admission.decision {
            self.write(headers, decision);
        }
    }

    fn write(&self, headers: &mut HeaderMap, decision: &Decision) {
        let limits = &self.enforced;
        rate_limit::write(
            headers,
            self.dialect,
            limits,
            &self.policy,
            decision,
            &self.clock,
        );
    }

    fn is_empty(&self) -> bool {
        self.enforced.is_empty() && self.shadow.is_empty()
    }

    /// Returns the duration by which the request is delayed, too.
    fn decide(
        &self,
        result: ChargeResult,
        charges: &[Charge<'_>],
        ctx: &RequestContext,
        request: KeySource<'_>,
    ) -> Result<(Admission, Duration), Problem> {
        let (enforced, shadow) = charges.split_at(self.enforced.len());
        for (index, (limit, charge)) in self.shadow.iter().zip(shadow).enumerate() {
            if result.exceeded.contains(&index) {
                limit.metrics.shadow_rejected.inc();
                ctx.note(|fields| fields.shadow.push(Arc::clone(&limit.name)));
                limit.rejected(
                    charge.bucket,
                    Duration::ZERO,
                    &self.metrics.name,
                    ctx,
                    request,
                );
            } else {
                limit.metrics.admitted.inc();
            }
        }
        if self.enforced.is_empty() {
            return Ok((Admission::default(), Duration::ZERO));
        }
        let decision = result.decision;
        let has_headers = self.dialect != Dialect::Off && !decision.readings.is_empty();
        match decision.outcome {
            ChargeOutcome::Admitted { delay } => {
                if !delay.is_zero() {
                    self.metrics.delayed.inc();
                }
                let readings = decision.readings.iter();
                for ((limit, charge), reading) in self.enforced.iter().zip(enforced).zip(readings) {
                    limit.admitted(charge.bucket, reading.remaining, ctx, request);
                }
                let decision = has_headers.then(|| Box::new(decision));
                Ok((Admission { decision }, delay))
            }
            ChargeOutcome::Rejected { wait, by } => {
                let limit = &self.enforced[by];
                self.metrics.rejected.inc();
                limit.metrics.rejected.inc();
                ctx.note(|fields| fields.rejected_by = Some((Arc::clone(&limit.name), wait)));
                limit.rejected(enforced[by].bucket, wait, &self.metrics.name, ctx, request);
                let mut problem = rate_limited(limit, wait);
                if self.enforced.len() > 1 {
                    let others = decision
                        .rejecting()
                        .into_iter()
                        .filter(|&index| index != by);
                    let names = others.map(|index| Arc::clone(&self.enforced[index].name));
                    problem.violated.extend(names);
                }
                if has_headers {
                    problem.headers.reserve(HEADER_CAPACITY);
                    self.write(&mut problem.headers, &decision);
                }
                Err(problem)
            }
            ChargeOutcome::Unavailable => Err(Problem::store_unavailable(
                "The rate limits cannot be checked, because the store is unavailable. The request was not executed. \
                 Retry it later.",
            )),
        }
    }
}

impl RouteLimit {
    fn admitted(
        &self,
        bucket: BucketKey,
        remaining: u32,
        ctx: &RequestContext,
        request: KeySource<'_>,
    ) {
        let count = self.metrics.admitted.inc();
        let capacity = u64::from(self.quota.capacity().get());
        // A bucket of one token is empty after each request.
        let is_near = capacity > 1 && u64::from(remaining) * 5 < capacity;
        if is_near {
            self.metrics.near.inc();
        }
        let is_sampled = count.is_multiple_of(SAMPLE_INTERVAL);
        let census = (self.census.as_ref()).filter(|_| is_near || is_sampled);
        if let Some(census) = census.filter(|_| !ctx.is_preflight) {
            if is_near {
                let key = || self.shown_key(bucket, ctx.caller.id(), request);
                census.near(bucket, ctx.arrived, key);
            }
            if is_sampled {
                census.sample(bucket);
            }
        }
    }

    fn rejected(
        &self,
        bucket: BucketKey,
        wait: Duration,
        route: &Arc<str>,
        ctx: &RequestContext,
        request: KeySource<'_>,
    ) {
        let Some(census) = self.census.as_ref().filter(|_| !ctx.is_preflight) else {
            return;
        };
        let key = || self.shown_key(bucket, ctx.caller.id(), request);
        // A key without a caller cannot return.
        let stated = if self.key.contains(&KeyPart::Global) {
            Duration::ZERO
        } else {
            wait
        };
        let early = census.rejected(bucket, (ctx.arrived, stated), request.headers, key);
        if early {
            self.metrics.early.inc();
        }
        if self.mode == Mode::Enforce {
            census.publish(|| RejectedRequest {
                limit: Arc::clone(&self.name),
                route: Arc::clone(route),
                key: key(),
                wait,
                early,
            });
        }
    }
}

impl<S: Buckets> Throttle<S> {
    pub(crate) fn new(buckets: S, hash_keys: HashKeySource) -> Self {
        Self { buckets, hash_keys }
    }

    /// Also waits for the delay of the request.
    pub(crate) async fn charge(
        &self,
        ctx: &RequestContext,
        limits: &RouteLimits,
        request: KeySource<'_>,
    ) -> Result<Admission, Problem> {
        if ctx.caller.exempt() || limits.is_empty() {
            return Ok(Admission::default());
        }
        let charges = self.charges(ctx, limits, request);
        let (enforced, shadow) = charges.split_at(limits.enforced.len());
        let (admission, delay) = match self.buckets.try_charge(enforced, shadow) {
            Some(result) => limits.decide(result, &charges, ctx, request)?,
            None => Box::pin(self.charge_remote(charges, limits, ctx, request)).await?,
        };
        if !delay.is_zero() {
            Box::pin(tokio::time::sleep(delay)).await;
        }
        Ok(admission)
    }

    async fn charge_remote(
        &self,
        charges: Charges<'_>,
        limits: &RouteLimits,
        ctx: &RequestContext,
        request: KeySource<'_>,
    ) -> Result<(Admission, Duration), Problem> {
        let (enforced, shadow) = charges.split_at(limits.enforced.len());
        let result = self.buckets.charge(enforced, shadow).await;
        limits.decide(result, &charges, ctx, request)
    }

    /// First the enforced limits, then those in shadow mode.
    fn charges<'a>(
        &self,
        ctx: &RequestContext,
        limits: &'a RouteLimits,
        request: KeySource<'_>,
    ) -> Charges<'a> {
        let seed = self.hash_keys.keys().seed;
        let client = ctx.caller.id();
        // A preflight takes no token from the request that follows it.
        let kind = if ctx.is_preflight {
            BucketKind::Preflight
        } else {
            BucketKind::Main
        };
        let charges: Charges<'_> = limits
            .enforced
            .iter()
            .chain(&limits.shadow)
            .map(|limit| Charge {
                limit,
                bucket: BucketKey::of(seed, limit, kind, client, request),
                cost: limits.cost,
            })
            .collect();
        ctx.note(|fields| {
            let counted = charges.iter();
            let counted = counted.map(|Charge { limit, bucket, .. }| {
                let key = limit.shown_key(*bucket, client, request);
                (Arc::clone(&limit.name), key)
            });
            fields.limits.extend(counted);
        });
        charges
    }
}

/// `format!` is slower than `concat`, and this is the most frequent rejection.
fn rate_limited(limit: &Limit, wait: Duration) -> Problem {
    let seconds = whole_seconds(wait);
    let unit = if seconds == 1 { " second" } else { " seconds" };
    let detail = [
        "The rate limit '",
        &limit.name,
        "' is exceeded. Wait ",
        itoa::Buffer::new().format(seconds),
        unit,
        " before the next request.",
    ]
    .concat();
    let mut problem = Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "rate-limited",
        "Too many requests",
        detail,
    );
    problem.retry = Retry::After(wait, limit.retry_after);
    problem.violated.push(Arc::clone(&limit.name));
    problem
}
