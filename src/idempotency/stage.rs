//! Idempotency stage: executes a request with an idempotency key once, and replays its response to retries.
//!
//! The stage first reads the complete body, which is part of the fingerprint and can contain the idempotency key
//! (`body_field`). Then the stage claims the key. In this order, a client that disconnects while it sends the body
//! leaves no claim behind. Claim and execution are [detached](detach) from the connection, so a client that disconnects
//! does not abort them. If it aborted a claim, duplicates that already wait for the execution would have none.

mod detach;
mod execution;
mod find_key;
mod wait;

use std::ops::ControlFlow;
use std::sync::Arc;

use http::{HeaderName, Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use self::detach::Detached;
use self::execution::Execution;
use self::wait::wait;
use super::{
    Claim, ClaimRejection, ClaimRequest, Fingerprint, IdempotencyError, KeyRule, OnUnknown,
    RecordId, Records, StoreError, StoredResponse,
};
use crate::clock::Clock;
use crate::failpoint::failpoint;
use crate::metrics::{KeyedMetrics, RouteMetrics};
use crate::request::body::{ExceededBound, ReadBody, RequestBody, ResponseBody, read_body};
use crate::request::buffers::{Buffered, Buffers};
use crate::request::client::ClientId;
use crate::request::context::{FailedRequest, RequestContext};
use crate::request::hash_keys::HashKeySource;
use crate::request::log_fields::{AccessLogNotes, KeyUse};
use crate::request::request_id::RequestId;
use crate::respond::{Hints, Problem};

pub(crate) use self::find_key::KeyedRequest;

/// Idempotency stage with its records in the store `S`. Clones are cheap and share their state.
#[derive(Debug)]
pub(crate) struct Idempotency<S>(Arc<StageState<S>>);

#[derive(Debug)]
struct StageState<S> {
    records: S,
    /// Bounds the number of executions in flight. The maximum number of connections does not bound it, because an
    /// execution continues after its client has disconnected.
    executions: Arc<Semaphore>,
    /// Bounds the memory for buffered request and response bodies.
    buffers: Arc<Buffers>,
    hash_keys: HashKeySource,
    tasks: TaskTracker,
    clock: Clock,
}

/// Settings of a route for idempotency keys, and the metrics of the route, for one worker.
#[derive(Debug)]
pub(crate) struct RouteKeys {
    rule: KeyRule,
    hints: Hints,
    metrics: Arc<RouteMetrics>,
}

impl RouteKeys {
    /// Combines the settings of a route with the metrics of the same route.
    pub(crate) fn new(rule: KeyRule, hints: Hints, metrics: Arc<RouteMetrics>) -> Self {
        Self {
            rule,
            hints,
            metrics,
        }
    }

    /// Returns the name of the header that contains the idempotency key.
    pub(crate) fn header(&self) -> &HeaderName {
        &self.rule.header
    }

    fn metrics(&self) -> &KeyedMetrics {
        &self.metrics.keyed
    }

    /// Counts a rejected claim, and returns the problem for the client. Notes an unknown outcome for the access log.
    fn reject(&self, rejection: ClaimRejection, notes: Option<&Arc<AccessLogNotes>>) -> Problem {
        let metrics = self.metrics();
        let count = match rejection {
            ClaimRejection::KeyReused(_) => &metrics.mismatches,
            ClaimRejection::OutcomeUnknown => {
                note(notes, KeyUse::Unknown);
                &metrics.unknowns
            }
            ClaimRejection::ResponseNotRetained => &metrics.tombstones,
            ClaimRejection::ClientFull { .. } => {
                metrics.client_share_rejections.inc();
                &metrics.exhausted
            }
            ClaimRejection::ScopeFull { .. } | ClaimRejection::StoreFull => &metrics.exhausted,
        };
        count.inc();
        rejection.problem(&self.rule.settings)
    }

    /// Returns whether the route has `on_unknown = "hold"`. If so, a request whose outcome is unknown is never executed
    /// again.
    fn holds_unknown(&self) -> bool {
        self.rule.settings.on_unknown == OnUnknown::Hold
    }
}

impl<S> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Records> Idempotency<S> {
    /// Creates the stage with its records in the idempotency store `records`. `hash_keys` provides the keys for hashing
    /// the ids of records. At most `max_executions` requests are executed at the same time. `buffers` bounds the memory
    /// for bodies. `tasks` tracks all executions, including those whose client has disconnected, so that a shutdown can
    /// wait for them.
    pub(crate) fn new(
        records: S,
        hash_keys: HashKeySource,
        max_executions: usize,
        buffers: Arc<Buffers>,
        tasks: TaskTracker,
        clock: Clock,
    ) -> Self {
        let permits = max_executions.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(StageState {
            records,
            executions: Arc::new(Semaphore::new(permits)),
            buffers,
            hash_keys,
            tasks,
            clock,
        }))
    }

    /// Responds to a request that has an idempotency key, or whose body can contain one. Returns a stored response, or
    /// calls `execute`, at most once per key.
    ///
    /// Replays of the response name `request_id`; `None` if an embedding application has no id for the request.
    ///
    /// `execute` receives the request with its complete body, and `on_unknown` of the claim under which it is executed;
    /// `None` if it has no key. `execute` is completed even if the returned future is dropped.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice, which makes this boxed future larger"
    )]
    pub(crate) fn run<'a, F, Fut>(
        &'a self,
        ctx: &'a RequestContext,
        keys: &'a Arc<RouteKeys>,
        mut keyed: KeyedRequest,
        request_id: Option<&'a RequestId>,
        mut request: Request<RequestBody>,
        execute: F,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Problem>> + Send + use<'a, S, F, Fut>
    where
        F: FnOnce(Request<RequestBody>, Option<OnUnknown>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<ResponseBody>, FailedRequest>> + Send + 'static,
    {
        async move {
            let stage = &self.0;
            let prepared = stage.prepare(ctx, keys, &mut keyed, &mut request).await?;
            let Some(claim) = prepared else {
                return Ok(execute(request, None).await?);
            };
            let execution = |slot| Execution {
                stage: Arc::clone(stage),
                client: ctx.caller.id(),
                keys: Arc::clone(keys),
                request_id: request_id.cloned(),
                notes: ctx.notes.clone(),
                _slot: slot,
            };
            // The slot bounds the claims whose clients have disconnected. Without one, the claim is not detached.
            let slot = if stage.records.is_in_memory() {
                None
            } else {
                stage.slot()
            };
            let waiter = if let Some(slot) = slot {
                let execution = execution(slot);
                let running = async move {
                    let (keys, notes) = (&execution.keys, execution.notes.as_ref());
                    let response = match execution.stage.claim(&claim, keys).await? {
                        Claim::Won(permit) => execution.run(permit, request, execute).await?,
                        Claim::Replay(stored) => {
                            let client = execution.client;
                            execution.stage.replay(&stored, keys, client, notes)?
                        }
                        Claim::InFlight(waiter) => return Ok(ControlFlow::Continue(waiter)),
                        Claim::Rejected(rejection) => return Err(keys.reject(rejection, notes)),
                    };
                    Ok(ControlFlow::Break(response))
                };
                match Detached::new(running, &stage.tasks).await? {
                    ControlFlow::Break(response) => return Ok(response),
                    ControlFlow::Continue(waiter) => waiter,
                }
            } else {
                match stage.claim(&claim, keys).await? {
                    Claim::Won(permit) => {
                        let Some(slot) = stage.slot() else {
                            keys.metrics().exhausted.inc();
                            // Dropping the permit here releases the idempotency key, because the request was not sent.
                            return Err(IdempotencyError::TooManyExecutions.into());
                        };
                        // There must be no await between the claim and this line. At an await, a client that
                        // disconnects could cancel the request after the idempotency key was claimed.
                        let running = execution(slot).run(permit, request, execute);
                        return Detached::new(running, &stage.tasks).await;
                    }
                    Claim::InFlight(waiter) => {
                        // `execute` can own resources that other requests need, such as a service of a bounded pool.
                        drop((request, execute));
                        waiter
                    }
                    Claim::Replay(stored) => {
                        return stage.replay(&stored, keys, ctx.caller.id(), ctx.notes.as_ref());
                    }
                    Claim::Rejected(rejection) => {
                        return Err(keys.reject(rejection, ctx.notes.as_ref()));
                    }
                }
            };
            // The wait is boxed, because its timer would enlarge the future of every request with an idempotency key.
            Box::pin(wait(waiter, keys, ctx)).await
        }
    }
}

impl<S: Records> StageState<S> {
    /// Reserves the resources of an execution; `None` if too many run.
    fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.executions).try_acquire_owned().ok()
    }

    fn replay(
        &self,
        stored: &StoredResponse,
        keys: &RouteKeys,
        client: ClientId,
        notes: Option<&Arc<AccessLogNotes>>,
    ) -> Result<Response<ResponseBody>, Problem> {
        let metrics = keys.metrics();
        let mut response = replay(stored, keys);
        if !self.records.is_in_memory() {
            let body = stored.body();
            let mut charge = self.buffers.charge(client, Buffered::Replay);
            if charge.grow(body.len()).is_err() {
                metrics.exhausted.inc();
                return Err(IdempotencyError::BuffersFull.into());
            }
            *response.body_mut() = charge.hold(body).into();
        }
        metrics.replays.inc();
        note(notes, KeyUse::Replayed);
        Ok(response)
    }

    /// Reads the body of a request and returns the claim of its idempotency key. The body counts against `max_buffered`
    /// until its last reference is dropped. Returns `None` if the request has no key and the route does not require
    /// one.
    async fn prepare(
        &self,
        ctx: &RequestContext,
        keys: &RouteKeys,
        keyed: &mut KeyedRequest,
        request: &mut Request<RequestBody>,
    ) -> Result<Option<ClaimRequest>, Problem> {
        let (rule, metrics) = (&keys.rule, keys.metrics());
        let client = ctx.caller.id();
        let mut charge = self.buffers.charge(client, Buffered::Request);
        let body = match read_body(request.body_mut(), rule.max_request, &mut charge).await? {
            ReadBody::Whole(body) => charge.hold(body),
            ReadBody::Partial {
                exceeded: ExceededBound::Cap,
                ..
            } => {
                return Err(Problem::payload_too_large(rule.max_request as u64));
            }
            ReadBody::Partial {
                exceeded: ExceededBound::Buffers,
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
        // All hashes of a request use the same hash keys, which are read only after the body has arrived. A shared
        // store can change its hash keys while the body arrives. A record id from the old hash keys differs
        // from the id of a retry, so the claim would not prevent a second execution.
        let hash_keys = self.hash_keys.keys();
        let secret = hash_keys.secret;
        let mut claim = ClaimRequest {
            at: self.clock.now(),
            id: RecordId::of(&secret, key, &rule.scope, client, request.headers()),
            client: hash_keys.seed.client(client),
            fingerprint: Fingerprint::of(&secret, rule, request, &body),
            settings: rule.settings,
        };
        if let Some(caller) = &keyed.caller {
            claim.id = RecordId::named(&secret, key, &keys.metrics.name, caller);
            // The name identifies the caller, so a retry with a renewed credential is the same request.
            claim.fingerprint.credentials = [0; 16];
        }
        *request.body_mut() = body.into();
        Ok(Some(claim))
    }

    async fn claim(&self, claim: &ClaimRequest, keys: &RouteKeys) -> Result<Claim, Problem> {
        let metrics = keys.metrics();
        let claimed = self.records.claim(claim).await;
        metrics
            .claim_latency
            .record(self.clock.now().since(claim.at));
        claimed.map_err(|error| store_failed("claim", &error, metrics).into())
    }
}

/// Creates the replay of a stored response. A retry of a request whose response is a 5xx gets the same 5xx.
fn replay(stored: &StoredResponse, keys: &RouteKeys) -> Response<ResponseBody> {
    let mut response = stored.replay();
    if stored.status().is_server_error() {
        keys.hints.do_not_retry(response.headers_mut());
    }
    response
}

fn note(notes: Option<&Arc<AccessLogNotes>>, key_use: KeyUse) {
    if let Some(notes) = notes {
        notes.fields().idempotency = Some(key_use);
    }
}

/// Increments the metric of failed idempotency store operations, and returns the error for the request. If the store
/// was already degraded, the failure is logged only at debug level, because the store has already logged it.
fn store_failed(step: &str, error: &StoreError, metrics: &KeyedMetrics) -> IdempotencyError {
    metrics.store_errors.inc();
    if error.is_new {
        tracing::error!(step, %error, "idempotency store operation failed");
    } else {
        tracing::debug!(step, %error, "idempotency store operation failed because the store is degraded");
    }
    IdempotencyError::StoreUnavailable
}
