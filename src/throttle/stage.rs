//! The throttle stage: charges a request to the limits of its route.
//!
//! The charge is made on arrival. A client that disconnects while its request is delayed is not forwarded, and its slot
//! is spent. If the buckets are in memory, the decision is made without waiting; only the delay and a remote store are
//! awaited, both in a box, so that the future of every other request stays small.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::decision::USUAL_LIMITS;
use super::{
    BucketKey, Buckets, Charge, ChargeResult, Decision, KeyPart, Limit, Mode, Outcome, Side,
    rate_limit,
};
use crate::access_log::CountedBy;
use crate::clock::Clock;
use crate::context::RequestContext;
use crate::hash_keys::HashKeySource;
use crate::metrics::{LimitMetrics, Metrics, RouteMetrics};
use crate::problem::{HEADERS, Problem, Retry};
use crate::respond::Dialect;
use crate::respond::retry_after::whole_seconds;

/// Charges requests to buckets.
#[derive(Debug)]
pub(crate) struct Throttle<S> {
    buckets: S,
    hash_keys: HashKeySource,
}

/// The limits of a route, compiled for one worker.
#[derive(Debug)]
pub(crate) struct RouteLimits {
    enforced: Vec<Arc<Limit>>,
    shadow: Vec<Arc<Limit>>,
    cost: NonZeroU32,
    /// Dialect of the `RateLimit` headers.
    dialect: Dialect,
    /// The gateway's members of `RateLimit-Policy`, the same on every response.
    policy: HeaderValue,
    metrics: Arc<RouteMetrics>,
    /// Counters of the enforced limits, then of those in shadow mode.
    limit_metrics: Vec<Arc<LimitMetrics>>,
    clock: Clock,
}

/// The decision on an admitted request. Its response shows it in `RateLimit` headers.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// `None` if the response shows no limit. Boxed, because the request keeps it until its response.
    decision: Option<Box<Decision>>,
}

/// Charges of the limits of a route, in their order.
type Charges<'a> = SmallVec<[Charge<'a>; USUAL_LIMITS]>;

impl RouteLimits {
    /// Compiles the limits of a route, of which a request takes `cost` tokens each. `metrics` are the counters of the
    /// worker and `route` those of the route.
    pub(crate) fn new(
        limits: &[Arc<Limit>],
        cost: NonZeroU32,
        dialect: Dialect,
        route: &Arc<RouteMetrics>,
        metrics: &Metrics,
        clock: Clock,
    ) -> Self {
        // Copies: a worker does not share the reference counts that each of its requests changes.
        let (enforced, shadow): (Vec<_>, Vec<_>) = limits
            .iter()
            .map(|limit| Arc::new(Limit::clone(limit)))
            .partition(|limit| limit.mode == Mode::Enforce);
        let limit_metrics = enforced
            .iter()
            .chain(&shadow)
            .map(|limit| Arc::clone(&metrics.limits[usize::from(limit.id.0)]))
            .collect();
        Self {
            policy: rate_limit::policy(&enforced),
            enforced,
            shadow,
            cost,
            dialect,
            metrics: Arc::clone(route),
            limit_metrics,
            clock,
        }
    }

    /// Writes the `RateLimit` headers of the response to an admitted request.
    pub(crate) fn write_headers(&self, admission: &Admission, headers: &mut HeaderMap) {
        if let Some(decision) = &admission.decision {
            self.write(headers, decision);
        }
    }

    fn write(&self, headers: &mut HeaderMap, decision: &Decision) {
        let Self {
            dialect,
            enforced,
            policy,
            clock,
            ..
        } = self;
        rate_limit::write(headers, *dialect, enforced, policy, decision, clock);
    }

    fn is_empty(&self) -> bool {
        self.enforced.is_empty() && self.shadow.is_empty()
    }

    /// Returns what becomes of a request after this charged: its admission and delay, or why it is rejected.
    fn decide(
        &self,
        charged: ChargeResult,
        ctx: &RequestContext,
    ) -> Result<(Admission, Duration), Problem> {
        for index in charged.exceeded {
            self.limit_metrics[self.enforced.len() + index]
                .shadow_refused
                .inc();
        }
        if self.enforced.is_empty() {
            return Ok((Admission::default(), Duration::ZERO));
        }
        let decision = charged.decision;
        let has_headers = self.dialect != Dialect::Off && !decision.readings.is_empty();
        match decision.outcome {
            Outcome::Admitted { delay } => {
                if !delay.is_zero() {
                    self.metrics.delayed.inc();
                }
                let decision = has_headers.then(|| Box::new(decision));
                Ok((Admission { decision }, delay))
            }
            Outcome::Rejected { wait, by } => {
                self.limit_metrics[by].refused.inc();
                let limit = &self.enforced[by];
                ctx.note(|facts| facts.rejected_by = Some((Arc::clone(&limit.name), wait)));
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
                    problem.headers.reserve(HEADERS);
                    self.write(&mut problem.headers, &decision);
                }
                Err(problem)
            }
            Outcome::Unavailable => Err(Problem::store_unavailable(
                "The limits of this request cannot be checked, because their store is not available. The request was not \
                 sent. Retry it later.",
            )),
        }
    }
}

impl<S: Buckets> Throttle<S> {
    /// Creates the stage over `buckets`, whose names are hashed with `hash_keys`.
    pub(crate) fn new(buckets: S, hash_keys: HashKeySource) -> Self {
        Self { buckets, hash_keys }
    }

    /// Charges a request with these headers to the limits of its route, and waits for its slot if a limit delays it.
    pub(crate) async fn charge(
        &self,
        ctx: &RequestContext,
        limits: &RouteLimits,
        headers: &HeaderMap,
    ) -> Result<Admission, Problem> {
        if ctx.caller.exempt() || limits.is_empty() {
            return Ok(Admission::default());
        }
        let charges = self.charges(ctx, limits, headers);
        let (enforced, watched) = charges.split_at(limits.enforced.len());
        let result = match self.buckets.try_charge(enforced, watched) {
            Some(result) => result,
            None => Box::pin(self.charge_remote(charges, limits.enforced.len())).await,
        };
        let (admission, delay) = limits.decide(result, ctx)?;
        if !delay.is_zero() {
            Box::pin(tokio::time::sleep(delay)).await;
        }
        Ok(admission)
    }

    async fn charge_remote(&self, charges: Charges<'_>, enforced: usize) -> ChargeResult {
        let (enforced, watched) = charges.split_at(enforced);
        self.buckets.charge(enforced, watched).await
    }

    /// Returns what a request is charged: by the enforced limits, then by those in shadow mode.
    fn charges<'a>(
        &self,
        ctx: &RequestContext,
        limits: &'a RouteLimits,
        headers: &HeaderMap,
    ) -> Charges<'a> {
        let seed = self.hash_keys.keys().seed;
        let client = ctx.caller.id();
        // A forwarded preflight never takes a token of the request that it precedes.
        let side = if ctx.is_preflight {
            Side::Preflight
        } else {
            Side::Main
        };
        let charges: Charges<'_> = limits
            .enforced
            .iter()
            .chain(&limits.shadow)
            .map(|limit| Charge {
                limit,
                bucket: BucketKey::of(seed, limit, side, client, headers),
                cost: limits.cost,
            })
            .collect();
        ctx.note(|facts| {
            let counted = charges.iter();
            let counted =
                counted.map(|charge| (Arc::clone(&charge.limit.name), counted_by(charge)));
            facts.limits.extend(counted);
        });
        charges
    }
}

/// Creates the problem of a request that `limit` rejects. Without `format!`, because this is the most frequent
/// rejection.
fn rate_limited(limit: &Limit, wait: Duration) -> Problem {
    let seconds = whole_seconds(wait);
    let unit = if seconds == 1 { " second" } else { " seconds" };
    let detail = [
        "The limit '",
        &limit.name,
        "' is used up. Wait ",
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

/// Returns by what the access log shows that a charge was counted.
fn counted_by(charge: &Charge<'_>) -> CountedBy {
    match &*charge.limit.key {
        [KeyPart::Client] => CountedBy::Client,
        [KeyPart::Global] => CountedBy::Global,
        _ => CountedBy::Hash(charge.bucket.high),
    }
}
