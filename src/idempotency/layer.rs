//! Idempotency as a tower layer, around the gateway's forwarder or any other service.
//!
//! Like the throttle it finds who is calling and under which route in the [`Passage`] an earlier stage
//! left in the request; a request without one, or without a key where none is required, passes.
//!
//! The layer reads the whole body of a request with a key, so that it can distinguish it from another request with the
//! same key. It claims the key afterwards: a client that disconnects before has claimed nothing. With `body_field` the
//! key can be in the body itself. The execution is [detached](detach) from its caller: the client cannot stop it.

mod detach;
mod future;
mod look;
mod run;

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use self::detach::Detached;
use self::future::Way;
use self::look::{Keyed, Look};
use self::run::Execution;
use super::gather::{Excess, Gathered, gather};
use super::{
    Answer, Bid, Claim, Ending, Fingerprint, InFlightPolicy, Naming, OnUnknown, Records, Rule,
    StoreError, Told, Waiting,
};
use crate::access_log::{KeyUse, Notes};
use crate::admin::{KeyedMetrics, Metrics};
use crate::buffers::{Buffered, Buffers};
use crate::clock::Clock;
use crate::failpoint::failpoint;
use crate::intake::RequestBodyError;
use crate::respond::body::BodyError;
use crate::respond::{Asked, Manner, Rejection, problem};
use crate::route::{RouteId, Routes};
use crate::throttle::Passage;

pub use self::future::AnswerFuture;

/// Puts idempotency around a service.
#[derive(Debug)]
pub struct IdempotencyLayer<S>(Arc<Shared<S>>);

/// A service behind a memory of what it has done.
#[derive(Debug)]
pub struct Idempotency<Inner, S> {
    inner: Inner,
    shared: Arc<Shared<S>>,
}

#[derive(Debug)]
struct Shared<S> {
    records: Arc<S>,
    /// Executions underway at most. Their clients may have gone, so nothing else bounds them.
    executions: Arc<Semaphore>,
    /// Bounds the bodies held in memory.
    buffers: Arc<Buffers>,
    naming: Naming,
    rules: Vec<Option<Arc<Rule>>>,
    tasks: TaskTracker,
    manner: Arc<Manner>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

impl<S: Records> IdempotencyLayer<S> {
    /// Creates the layer for `routes`, with records in `records` that `naming` names. Up to `max_executions` run at
    /// once. `tasks` tracks them: a shutdown closes it and waits for it. Bodies are held within the bounds of
    /// `buffers`.
    #[expect(clippy::too_many_arguments, reason = "what it works with, each once")]
    pub fn new(
        routes: &Routes,
        records: Arc<S>,
        naming: Naming,
        max_executions: usize,
        buffers: Arc<Buffers>,
        tasks: TaskTracker,
        manner: Arc<Manner>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        // Copies, so that what every request counts references to is this layer's own.
        let rules = routes
            .iter()
            .map(|route| route.idempotency.as_deref().cloned().map(Arc::new))
            .collect();
        let places = max_executions.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            records,
            executions: Arc::new(Semaphore::new(places)),
            buffers,
            naming,
            rules,
            tasks,
            manner,
            metrics,
            clock,
        }))
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Inner: Clone, S> Clone for Idempotency<Inner, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<Inner, S> Layer<Inner> for IdempotencyLayer<S> {
    type Service = Idempotency<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Idempotency {
            inner,
            shared: Arc::clone(&self.0),
        }
    }
}

impl<Inner, S, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotency<Inner, S>
where
    Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    Inner::Future: Send,
    Inner::Error: Send + 'static,
    S: Records,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    ReqBody::Error: Into<BodyError> + Send,
    ResBody: Body<Data = Bytes> + Unpin + Send + 'static,
    ResBody::Error: Into<BodyError> + Send,
{
    type Response = Response<Told<ResBody>>;
    type Error = Inner::Error;
    type Future = AnswerFuture<Inner::Future, ResBody, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let way = match self.shared.look(&request) {
            Look::Pass => Way::Passing {
                inner: self.inner.call(request),
            },
            Look::Refuse(rejection) => {
                let asked = Asked::of(request.headers());
                let notes = request.extensions().get().and_then(Passage::notes);
                let refusal = self.shared.refusal(&rejection, &asked, notes);
                Way::Refused {
                    refusal: Some(Box::new(refusal)),
                }
            }
            Look::Keyed(keyed) => {
                // The service that was found ready is the one called; the clone stays for the next.
                let clone = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, clone);
                let shared = Arc::clone(&self.shared);
                Way::Keyed {
                    answering: Box::pin(shared.answer(request, keyed, inner)),
                }
            }
        };
        AnswerFuture { way }
    }
}

impl<S: Records> Shared<S> {
    /// Responds to a request that has a key, or whose body can have one.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps room for its arguments twice, and this future is moved to where it runs"
    )]
    fn answer<Inner, ReqBody, ResBody>(
        self: Arc<Self>,
        mut request: Request<ReqBody>,
        mut keyed: Keyed,
        mut inner: Inner,
    ) -> impl Future<Output = Result<Response<Told<ResBody>>, Inner::Error>> + Send
    where
        Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Send + 'static,
        Inner::Future: Send,
        Inner::Error: Send + 'static,
        ReqBody: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        ReqBody::Error: Into<BodyError> + Send,
        ResBody: Body<Data = Bytes> + Unpin + Send + 'static,
        ResBody::Error: Into<BodyError> + Send,
    {
        async move {
            let claimed = match self.claim(&mut request, &mut keyed).await {
                Ok(Some(claim)) => Ok(claim),
                Ok(None) => {
                    let response = inner.call(request).await;
                    return response.map(|response| response.map(Told::passing));
                }
                Err(rejection) => Err(rejection),
            };
            let Keyed {
                client,
                rule,
                route,
                notes,
                ..
            } = keyed;
            let metrics = self.metrics(route);
            match claimed {
                Ok(Claim::Replay(answer)) => {
                    let mut response = answer.replay();
                    if self.records.copies_replays() {
                        let body = answer.body();
                        let mut charge = self.buffers.charge(client, Buffered::Replay);
                        if charge.grow(body.len()).is_err() {
                            metrics.exhausted.inc();
                            let asked = Asked::of(request.headers());
                            return Ok(self.refusal(
                                &Rejection::BuffersFull,
                                &asked,
                                notes.as_ref(),
                            ));
                        }
                        *response.body_mut() = charge.hold(body).into();
                    }
                    metrics.replays.inc();
                    note(notes.as_ref(), KeyUse::Replayed);
                    Ok(response)
                }
                Ok(Claim::Won(permit)) => {
                    let asked = Asked::of(request.headers());
                    let Ok(place) = Arc::clone(&self.executions).try_acquire_owned() else {
                        metrics.exhausted.inc();
                        // Nothing was sent, so the permit frees its key as it is dropped.
                        let rejection = Rejection::TooManyExecutions;
                        return Ok(self.refusal(&rejection, &asked, notes.as_ref()));
                    };
                    metrics.claims.inc();
                    let tasks = self.tasks.clone();
                    let execution = Execution {
                        shared: self,
                        client,
                        rule,
                        route,
                        asked,
                        notes,
                        _place: place,
                    };
                    // Nothing is awaited between the claim and this: there is no moment at which a client
                    // that leaves could take the claim with it.
                    let running = execution.run(permit, request, inner);
                    Detached::new(running, tasks).await
                }
                Ok(Claim::InFlight(waiting)) => {
                    let asked = Asked::of(request.headers());
                    drop(request);
                    // Boxed: the timer in it would make every request's future large and aligned to cache
                    // lines.
                    let waited = Box::pin(self.wait(waiting, &rule, metrics, notes.as_ref())).await;
                    Ok(waited.unwrap_or_else(|rejection| {
                        self.refusal(&rejection, &asked, notes.as_ref())
                    }))
                }
                Ok(refused) => {
                    let rejection = refused_by(&refused, &rule, metrics);
                    let asked = Asked::of(request.headers());
                    Ok(self.refusal(&rejection, &asked, notes.as_ref()))
                }
                Err(rejection) => {
                    let asked = Asked::of(request.headers());
                    Ok(self.refusal(&rejection, &asked, notes.as_ref()))
                }
            }
        }
    }

    /// Reads the body of a request and claims its key. The body is charged until its last byte is released. Returns
    /// `None` if the request has no key and needs none.
    async fn claim<B>(
        &self,
        request: &mut Request<B>,
        keyed: &mut Keyed,
    ) -> Result<Option<Claim>, Rejection>
    where
        B: Body<Data = Bytes> + From<Bytes> + Unpin,
        B::Error: Into<BodyError>,
    {
        let rule = &keyed.rule;
        let mut charge = self.buffers.charge(keyed.client, Buffered::Request);
        let body = match gather(request.body_mut(), rule.max_request, &mut charge).await {
            Ok(Gathered::Whole(body)) => charge.hold(body),
            Ok(Gathered::Partial { excess, .. }) => {
                return Err(match excess {
                    Excess::Cap => Rejection::PayloadTooLarge {
                        limit: rule.max_request as u64,
                    },
                    Excess::Buffers => {
                        self.metrics(keyed.route).exhausted.inc();
                        Rejection::BuffersFull
                    }
                });
            }
            Err(error) => return Err(unreadable(error.into())),
        };
        self.find_key(request, keyed, &body)?;
        let (Some(key), rule) = (&keyed.key, &keyed.rule) else {
            *request.body_mut() = body.into();
            return Ok(None);
        };
        failpoint!("before-claim");
        // Named as late as can be, and all of it with one secret: a store may have told another while the body
        // came, and what is claimed under an old name would be carried out again under the new one.
        let names = self.naming.names();
        let secret = names.secret;
        let bid = Bid {
            at: self.clock.now(),
            id: secret.record(key, &rule.scope, keyed.client, request.headers()),
            client: names.client(keyed.client),
            fingerprint: Fingerprint::of(&secret, rule, request, &body),
            terms: rule.terms,
        };
        *request.body_mut() = body.into();
        let claim = self.records.claim(&bid).await;
        let metrics = self.metrics(keyed.route);
        metrics.claim_latency.record(self.clock.now().since(bid.at));
        claim
            .map(Some)
            .map_err(|error| store_failed("claim", &error, metrics))
    }

    /// Returns what a duplicate gets that arrives while the first request is in flight.
    async fn wait<B>(
        &self,
        waiting: Waiting,
        rule: &Rule,
        metrics: &KeyedMetrics,
        notes: Option<&Arc<Notes>>,
    ) -> Result<Response<Told<B>>, Rejection> {
        let InFlightPolicy::Wait(limit) = rule.in_flight else {
            metrics.conflicts.inc();
            return Err(Rejection::InFlight);
        };
        metrics.waits.inc();
        note(notes, KeyUse::Waited);
        let replay = |answer: &Answer| {
            metrics.replays.inc();
            answer.replay()
        };
        match timeout(limit, waiting.ended()).await {
            Ok(Ending::Completed(answer)) => Ok(replay(&answer)),
            Ok(Ending::Released(Some(answer))) => Ok(answer.repeat()),
            Ok(Ending::Unknown) => {
                metrics.unknowns.inc();
                Err(outcome_unknown(rule))
            }
            Ok(Ending::Tombstone) => {
                metrics.tombstones.inc();
                Err(Rejection::ResponseNotRetained)
            }
            Ok(Ending::Released(None)) | Err(_) => {
                metrics.conflicts.inc();
                Err(Rejection::InFlight)
            }
        }
    }

    /// Makes the response for `rejection` and notes it for the access log.
    fn refusal<B: From<Bytes>>(
        &self,
        rejection: &Rejection,
        asked: &Asked,
        notes: Option<&Arc<Notes>>,
    ) -> Response<B> {
        if let Some(notes) = notes {
            let mut facts = notes.facts();
            facts.reason = Some(rejection.kind());
            if matches!(rejection, Rejection::OutcomeUnknown { .. }) {
                facts.idempotency = Some(KeyUse::Unknown);
            }
        }
        problem::response(rejection, &asked.headers(), &self.manner, &self.clock)
    }

    fn metrics(&self, route: RouteId) -> &KeyedMetrics {
        &self.metrics.route(Some(route)).keyed
    }
}

/// Notes for the access log how a key is served.
fn note(notes: Option<&Arc<Notes>>, used: KeyUse) {
    if let Some(notes) = notes {
        notes.facts().idempotency = Some(used);
    }
}

/// The rejection of a request with a key whose outcome is unknown.
fn outcome_unknown(rule: &Rule) -> Rejection {
    Rejection::OutcomeUnknown {
        is_held: rule.terms.on_unknown == OnUnknown::Hold,
    }
}

/// Returns why a request does not get its key.
fn refused_by(claim: &Claim, rule: &Rule, metrics: &KeyedMetrics) -> Rejection {
    let (count, rejection) = match claim {
        Claim::Mismatch(mismatch) => (&metrics.mismatches, Rejection::KeyReused(*mismatch)),
        Claim::Tombstone => (&metrics.tombstones, Rejection::ResponseNotRetained),
        Claim::StoreFull => (&metrics.exhausted, Rejection::StoreFull),
        Claim::ScopeFull { no_sooner } => {
            let rejection = Rejection::KeysExhausted {
                limit: rule.terms.max_keys_per_scope,
                no_sooner: *no_sooner,
            };
            (&metrics.exhausted, rejection)
        }
        Claim::ClientFull { limit, no_sooner } => {
            metrics.client_share_rejections.inc();
            let rejection = Rejection::ClientKeysExhausted {
                limit: *limit,
                no_sooner: *no_sooner,
            };
            (&metrics.exhausted, rejection)
        }
        Claim::Unknown | Claim::Won(_) | Claim::Replay(_) | Claim::InFlight(_) => {
            (&metrics.unknowns, outcome_unknown(rule))
        }
    };
    count.inc();
    rejection
}

/// Counts a failed operation of the store and returns the rejection for a request that needs it. Logs the error
/// unless the store is known to be degraded, which the store itself logs.
fn store_failed(step: &str, error: &StoreError, metrics: &KeyedMetrics) -> Rejection {
    metrics.store_errors.inc();
    if error.is_news {
        tracing::error!(step, %error, "idempotency store operation failed");
    } else {
        tracing::debug!(step, %error, "idempotency store is degraded");
    }
    Rejection::StoreUnavailable
}

/// Why a request's body could not be read, as its client is told.
fn unreadable(error: BodyError) -> Rejection {
    match error.downcast::<RequestBodyError>() {
        Ok(error) => (&*error).into(),
        Err(_) => Rejection::bad_request("The request body could not be read."),
    }
}

#[cfg(test)]
mod tests;
