//! The idempotency stage: executes a keyed request once, and replays its response.
//!
//! The stage reads the whole body of a request with a key, so that it can distinguish it from another request with the
//! same key. It claims the key afterwards: a client that disconnects before has claimed nothing. With `body_field` the
//! key can be in the body itself. The execution is [detached](detach) from its caller: the client cannot stop it.

mod detach;
mod execution;
mod keyed;

use std::sync::Arc;

use http::{Request, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use self::detach::Detached;
use self::execution::Execution;
use super::gather::{Excess, Gathered, gather};
use super::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, IdempotencyError, InFlightPolicy,
    OnUnknown, RecordId, Records, Rule, StoreError, Waiter,
};
use crate::access_log::KeyUse;
use crate::body::{RequestBody, ResponseBody};
use crate::buffers::{Buffered, Buffers};
use crate::clock::Clock;
use crate::context::{Failed, RequestContext, Resend};
use crate::failpoint::failpoint;
use crate::hash_keys::HashKeySource;
use crate::metrics::{KeyedMetrics, RouteMetrics};
use crate::problem::Problem;

pub(crate) use self::keyed::KeyedRequest;

/// Executes keyed requests once. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Idempotency<S>(Arc<Shared<S>>);

#[derive(Debug)]
struct Shared<S> {
    records: S,
    /// Bounds the executions in flight. Their clients may have disconnected, so nothing else bounds them.
    executions: Arc<Semaphore>,
    /// Bounds the bodies held in memory.
    buffers: Arc<Buffers>,
    hash_keys: HashKeySource,
    tasks: TaskTracker,
    clock: Clock,
}

/// The rule of a route's keys and its counters, for one worker.
#[derive(Debug)]
pub(crate) struct RouteKeys {
    rule: Rule,
    metrics: Arc<RouteMetrics>,
}

impl RouteKeys {
    /// Combines a rule with the counters of its route.
    pub(crate) fn new(rule: Rule, metrics: Arc<RouteMetrics>) -> Self {
        Self { rule, metrics }
    }

    fn metrics(&self) -> &KeyedMetrics {
        &self.metrics.keyed
    }

    /// The rejection of a request with a key whose outcome is unknown.
    fn outcome_unknown(&self) -> IdempotencyError {
        IdempotencyError::OutcomeUnknown {
            is_held: self.holds_unknown(),
        }
    }

    /// Whether a key whose outcome is unknown is held, so that it does not execute again.
    fn holds_unknown(&self) -> bool {
        self.rule.terms.on_unknown == OnUnknown::Hold
    }
}

impl<S> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Records> Idempotency<S> {
    /// Creates the stage with records in `records`, whose names are hashed with `hash_keys`. Up to `max_executions` run
    /// at once. `tasks` tracks them: a shutdown closes it and waits for it. Bodies are held within the bounds of
    /// `buffers`.
    pub(crate) fn new(
        records: S,
        hash_keys: HashKeySource,
        max_executions: usize,
        buffers: Arc<Buffers>,
        tasks: TaskTracker,
        clock: Clock,
    ) -> Self {
        let permits = max_executions.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            records,
            executions: Arc::new(Semaphore::new(permits)),
            buffers,
            hash_keys,
            tasks,
            clock,
        }))
    }

    /// Responds to a keyed request: with a stored response, or by `execute`, at most once per key.
    ///
    /// `execute` receives the request with its whole body, and whether the request may be sent more than once. It runs
    /// to its end even if the returned future is dropped.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn reserves memory for its arguments twice, and this future is moved to a box"
    )]
    pub(crate) fn run<'a, F, Fut>(
        &'a self,
        ctx: &'a RequestContext,
        keys: &'a Arc<RouteKeys>,
        mut keyed: KeyedRequest,
        mut request: Request<RequestBody>,
        execute: F,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Problem>> + Send + use<'a, S, F, Fut>
    where
        F: FnOnce(Request<RequestBody>, Resend) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<ResponseBody>, Failed>> + Send + 'static,
    {
        async move {
            let shared = &self.0;
            let metrics = keys.metrics();
            let claimed = shared.claim(ctx, keys, &mut keyed, &mut request).await?;
            match claimed {
                None => Ok(execute(request, Resend::ByMethod).await?),
                Some(Claim::Replay(stored)) => {
                    let mut response: Response<ResponseBody> = stored.replay();
                    if shared.records.copies_replays() {
                        let body = stored.body();
                        let mut charge = shared.buffers.charge(ctx.caller.id(), Buffered::Replay);
                        if charge.grow(body.len()).is_err() {
                            metrics.exhausted.inc();
                            return Err(IdempotencyError::BuffersFull.into());
                        }
                        *response.body_mut() = charge.hold(body).into();
                    }
                    metrics.replays.inc();
                    ctx.note(|facts| facts.idempotency = Some(KeyUse::Replayed));
                    Ok(response)
                }
                Some(Claim::Won(permit)) => {
                    let Ok(place) = Arc::clone(&shared.executions).try_acquire_owned() else {
                        metrics.exhausted.inc();
                        // Nothing was sent, so the permit frees its key as it is dropped.
                        return Err(IdempotencyError::TooManyExecutions.into());
                    };
                    metrics.claims.inc();
                    let execution = Execution {
                        shared: Arc::clone(shared),
                        client: ctx.caller.id(),
                        keys: Arc::clone(keys),
                        notes: ctx.notes.clone(),
                        _place: place,
                    };
                    // Nothing is awaited between the claim and this: a client that disconnects cannot take the claim with
                    // it.
                    let running = execution.run(permit, request, execute);
                    Detached::new(running, shared.tasks.clone()).await
                }
                Some(Claim::InFlight(waiter)) => {
                    drop(request);
                    // Boxed: the timer in it would make every keyed request's future large and aligned to cache lines.
                    Box::pin(wait(waiter, keys, ctx)).await
                }
                Some(rejected) => {
                    let error = rejected_by(&rejected, keys);
                    Err(noted(error, ctx))
                }
            }
        }
    }
}

impl<S: Records> Shared<S> {
    /// Reads the body of a request and claims its key. The body is charged until its last byte is released. Returns
    /// `None` if the request has no key and needs none.
    async fn claim(
        &self,
        ctx: &RequestContext,
        keys: &RouteKeys,
        keyed: &mut KeyedRequest,
        request: &mut Request<RequestBody>,
    ) -> Result<Option<Claim>, Problem> {
        let (rule, metrics) = (&keys.rule, keys.metrics());
        let client = ctx.caller.id();
        let mut charge = self.buffers.charge(client, Buffered::Request);
        let body = match gather(request.body_mut(), rule.max_request, &mut charge).await? {
            Gathered::Whole(body) => charge.hold(body),
            Gathered::Partial {
                excess: Excess::Cap,
                ..
            } => {
                return Err(Problem::payload_too_large(rule.max_request as u64));
            }
            Gathered::Partial {
                excess: Excess::Buffers,
                ..
            } => {
                metrics.exhausted.inc();
                return Err(IdempotencyError::BuffersFull.into());
            }
        };
        keys.search(keyed, request, &body)?;
        let Some(key) = &keyed.key else {
            *request.body_mut() = body.into();
            return Ok(None);
        };
        failpoint!("before-claim");
        // The names are made as late as possible, and all with the same keys: a shared store can change its keys while the
        // body arrives, and a claim under an old name would be executed again under the new one.
        let hash_keys = self.hash_keys.keys();
        let secret = hash_keys.secret;
        let claim = ClaimRequest {
            at: self.clock.now(),
            id: RecordId::of(&secret, key, &rule.scope, client, request.headers()),
            client: hash_keys.seed.client(client),
            fingerprint: Fingerprint::of(&secret, rule, request, &body),
            terms: rule.terms,
        };
        *request.body_mut() = body.into();
        let claimed = self.records.claim(&claim).await;
        metrics
            .claim_latency
            .record(self.clock.now().since(claim.at));
        claimed
            .map(Some)
            .map_err(|error| store_failed("claim", &error, metrics).into())
    }
}

/// Returns what a duplicate gets that arrives while the first request is in flight.
async fn wait(
    waiter: Waiter,
    keys: &RouteKeys,
    ctx: &RequestContext,
) -> Result<Response<ResponseBody>, Problem> {
    let metrics = keys.metrics();
    let InFlightPolicy::Wait(limit) = keys.rule.in_flight else {
        metrics.conflicts.inc();
        return Err(IdempotencyError::InFlight.into());
    };
    metrics.waits.inc();
    ctx.note(|facts| facts.idempotency = Some(KeyUse::Waited));
    match timeout(limit, waiter.ended()).await {
        Ok(ExecutionOutcome::Completed(stored)) => {
            metrics.replays.inc();
            Ok(stored.replay())
        }
        Ok(ExecutionOutcome::Released(Some(received))) => received.map(|stored| stored.repeat()),
        Ok(ExecutionOutcome::Unknown) => {
            metrics.unknowns.inc();
            Err(noted(keys.outcome_unknown(), ctx))
        }
        Ok(ExecutionOutcome::Tombstone) => {
            metrics.tombstones.inc();
            Err(IdempotencyError::ResponseNotRetained.into())
        }
        Ok(ExecutionOutcome::Released(None)) | Err(_) => {
            metrics.conflicts.inc();
            Err(IdempotencyError::InFlight.into())
        }
    }
}

/// Converts an error, and notes an unknown outcome for the access log.
fn noted(error: IdempotencyError, ctx: &RequestContext) -> Problem {
    if matches!(error, IdempotencyError::OutcomeUnknown { .. }) {
        ctx.note(|facts| facts.idempotency = Some(KeyUse::Unknown));
    }
    error.into()
}

/// Counts and returns why a request does not get its key.
fn rejected_by(claim: &Claim, keys: &RouteKeys) -> IdempotencyError {
    let metrics = keys.metrics();
    let (count, error) = match *claim {
        Claim::Mismatch(mismatch) => (&metrics.mismatches, IdempotencyError::KeyReused(mismatch)),
        Claim::Tombstone => (&metrics.tombstones, IdempotencyError::ResponseNotRetained),
        Claim::StoreFull => (&metrics.exhausted, IdempotencyError::StoreFull),
        Claim::ScopeFull { no_sooner } => {
            let limit = keys.rule.terms.max_keys_per_scope;
            let error = IdempotencyError::KeysExhausted { limit, no_sooner };
            (&metrics.exhausted, error)
        }
        Claim::ClientFull { limit, no_sooner } => {
            metrics.client_share_rejections.inc();
            let error = IdempotencyError::ClientKeysExhausted { limit, no_sooner };
            (&metrics.exhausted, error)
        }
        Claim::Unknown | Claim::Won(_) | Claim::Replay(_) | Claim::InFlight(_) => {
            (&metrics.unknowns, keys.outcome_unknown())
        }
    };
    count.inc();
    error
}

/// Counts a failed operation of the store and returns the rejection for a request that needs it. Logs the error
/// unless the store is known to be degraded, which the store itself logs.
fn store_failed(step: &str, error: &StoreError, metrics: &KeyedMetrics) -> IdempotencyError {
    metrics.store_errors.inc();
    if error.is_news {
        tracing::error!(step, %error, "idempotency store operation failed");
    } else {
        tracing::debug!(step, %error, "idempotency store is degraded");
    }
    IdempotencyError::StoreUnavailable
}
