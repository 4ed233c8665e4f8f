//! Idempotency stage: executes a request with an idempotency key once, and replays its response to retries.
//!
//! The stage reads the complete body before it claims the key, so a client that disconnects meanwhile leaves no claim
//! behind. Claim and execution are [detached](detach) from the connection. If a disconnect aborted a claim, duplicates
//! that already wait for the execution would have none.

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

/// Clones share their state.
#[derive(Debug)]
pub(crate) struct Idempotency<S>(Arc<StageState<S>>);

#[derive(Debug)]
struct StageState<S> {
    records: S,
    /// The maximum number of connections does not bound executions, because they continue after their client has
    /// disconnected.
    executions: Arc<Semaphore>,
    buffers: Arc<Buffers>,
    hash_keys: HashKeySource,
    tasks: TaskTracker,
    clock: Clock,
}

/// For one worker.
#[derive(Debug)]
pub(crate) struct RouteKeys {
    rule: KeyRule,
    hints: Hints,
    metrics: Arc<RouteMetrics>,
}

impl RouteKeys {
    pub(crate) fn new(rule: KeyRule, hints: Hints, metrics: Arc<RouteMetrics>) -> Self {
        Self {
            rule,
            hints,
            metrics,
        }
    }

    pub(crate) fn header(&self) -> &HeaderName {
        &self.rule.header
    }

    fn metrics(&self) -> &KeyedMetrics {
        &self.metrics.keyed
    }

    /// Also notes an unknown outcome for the access log.
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
    /// At most `max_executions` requests are executed at the same time. `tasks` tracks all executions, including those
    /// whose client has disconnected, so that a shutdown can wait for them.
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

    /// Returns a stored response, or calls `execute`, at most once per key, which completes even if the returned future
    /// is dropped. It receives the request with its complete body, and `on_unknown` of its claim; `None` without a key.
    /// Replays name `request_id`; `None` if an embedding application has none.
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
            let (client, notes) = (ctx.caller.id(), ctx.notes.as_ref());
            let prepared = stage.prepare(ctx, keys, &mut keyed, &mut request).await?;
            let Some(claim) = prepared else {
                return Ok(execute(request, None).await?);
            };
            let execution = |slot| Execution {
                stage: Arc::clone(stage),
                client,
                keys: Arc::clone(keys),
                request_id: request_id.cloned(),
                notes: ctx.notes.clone(),
                _slot: slot,
            };
            // Bounds the claims whose clients have disconnected. Without a slot, the claim is not detached.
            let is_detached = !stage.records.is_in_memory();
            let slot = is_detached.then(|| stage.slot()).flatten();
            let waiter = if let Some(slot) = slot {
                let execution = execution(slot);
                let running = async move {
                    let (keys, notes) = (&execution.keys, execution.notes.as_ref());
                    let response = match execution.stage.claim(&claim, keys).await? {
                        Claim::Won(permit) => execution.run(permit, request, execute).await?,
                        Claim::Replay(stored) => {
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
                            // The request was not sent, so dropping the permit releases the key.
                            return Err(IdempotencyError::TooManyExecutions.into());
                        };
                        // No await between the claim and this line: a client that disconnects could cancel the request
                        // after the claim.
                        let running = execution(slot).run(permit, request, execute);
                        return Detached::new(running, &stage.tasks).await;
                    }
                    Claim::InFlight(waiter) => {
                        // It can own resources that other requests need, such as a service of a bounded pool.
                        drop((request, execute));
                        waiter
                    }
                    Claim::Replay(stored) => return stage.replay(&stored, keys, client, notes),
                    Claim::Rejected(rejection) => return Err(keys.reject(rejection, notes)),
                }
            };
            // Boxed, because its timer would enlarge the future of every request with a key.
            Box::pin(wait(waiter, keys, ctx)).await
        }
    }
}

impl<S: Records> StageState<S> {
    /// `None` if too many run.
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

    /// The body counts against `max_buffered` until its last reference is dropped. `None` if the request has no key and
    /// the route does not require one.
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
        // Read once, after the body has arrived: a shared store can change its hash keys meanwhile, and an id from the
        // old ones differs from that of a retry, so the claim would not prevent a second execution.
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
            // So a retry with a renewed credential is the same request.
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

/// A retry would get the same 5xx.
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

/// A store that was already degraded has logged the failure.
fn store_failed(step: &str, error: &StoreError, metrics: &KeyedMetrics) -> IdempotencyError {
    metrics.store_errors.inc();
    if error.is_new {
        tracing::error!(step, %error, "idempotency store operation failed");
    } else {
        tracing::debug!(step, %error, "idempotency store operation failed because the store is degraded");
    }
    IdempotencyError::StoreUnavailable
}
