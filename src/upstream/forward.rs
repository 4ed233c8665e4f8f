//! The innermost service: sends a request upstream and brings the answer's head back.
//!
//! How often it is sent, and where to, is for `carry` to say; here it is made ready, and
//! what came of it is counted, logged and made into what the client gets.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, Version};
use tokio::time::Instant;
use tower::Service;

use super::answer::{self, Relaying};
use super::carry::{Answered, Carrying};
use super::connect::ConnectorError;
use super::error::ForwardError;
use super::headers;
use super::outgoing::Making;
use super::patience::Patience;
use super::standing::Standing;
use super::target::Target;
use crate::admin::Metrics;
use crate::buffers::Buffers;
use crate::clock::Clock;
use crate::failpoint::failpoint;
use crate::gateway::ServerSettings;
use crate::idempotency::Undone;
use crate::intake::RequestBody;
use crate::intake::headers::HeaderNames;
use crate::pipeline::Arrival;
use crate::respond::{Asked, Body, Manner, problem};
use crate::route::Routes;
use crate::throttle::{Passage, Resending};
use crate::wire::upgrade;

/// Sends requests upstream. Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub struct Forward(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    targets: Vec<Target>,
    /// Headers that limits, scopes and keys are read from.
    names: HeaderNames,
    max_body: u64,
    /// Bounds the bodies held in memory.
    buffers: Arc<Buffers>,
    manner: Arc<Manner>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// What came of a request.
struct Outcome {
    answer: Result<Response<Body>, ForwardError>,
    attempts: u32,
    /// Whether anybody may have got it without its answer having come back.
    lost: bool,
}

impl Forward {
    /// Creates the forwarder of a worker, with connections of its own to the upstreams of `standings`, for requests
    /// of `routes`. Copies of bodies for retries are held within the bounds of `buffers`.
    #[expect(clippy::too_many_arguments, reason = "what it works with, each once")]
    pub fn new(
        standings: &[Arc<Standing>],
        worker: usize,
        routes: &Routes,
        server: &ServerSettings,
        buffers: Arc<Buffers>,
        manner: Arc<Manner>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Result<Self, ConnectorError> {
        let targets = standings
            .iter()
            .map(|standing| Target::new(standing, worker, &clock))
            .collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Shared {
            targets,
            names: routes.headers().clone(),
            max_body: server.caps.body_bytes,
            buffers,
            manner,
            metrics,
            clock,
        })))
    }
}

impl Service<Request<RequestBody>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { Ok(shared.forward(request).await) })
    }
}

impl Shared {
    async fn forward(&self, mut request: Request<RequestBody>) -> Response<Body> {
        let passage: Passage = request
            .extensions_mut()
            .remove()
            .expect("routed before it is forwarded");
        let arrival = passage
            .arrival
            .as_ref()
            .expect("received before it is forwarded");
        let target = &self.targets[arrival.upstream.0];
        let asked = Asked::of(request.headers());
        let started = Instant::now();

        let outcome = self.exchange(request, target, &passage, arrival).await;
        let Outcome {
            answer,
            attempts,
            lost,
        } = outcome;
        let upstream = &target.standing.upstream;
        let metrics = self.metrics.upstream(upstream.id);
        match answer {
            Ok(response) => {
                metrics.answered(started.elapsed());
                response
            }
            Err(error) => {
                metrics.failed(&error);
                let name = &*upstream.name;
                let request_id = &arrival.request_id;
                if error.is_news() {
                    tracing::warn!(upstream = name, %request_id, attempts, %error, "no answer from upstream");
                } else {
                    tracing::debug!(upstream = name, %request_id, attempts, %error, "a request was not completed");
                }
                let undone = if lost { Undone::Lost } else { error.undone() };
                let is_held = undone == Undone::Lost && passage.resending == Resending::Never;
                let rejection = error.rejection(upstream, is_held);
                if let Some(notes) = &arrival.notes {
                    notes.facts().reason = Some(rejection.kind());
                }
                let asked = asked.headers();
                let mut response = problem::response(&rejection, &asked, &self.manner, &self.clock);
                response.extensions_mut().insert(undone);
                response
            }
        }
    }

    async fn exchange(
        &self,
        mut request: Request<RequestBody>,
        target: &Target,
        passage: &Passage,
        arrival: &Arrival,
    ) -> Outcome {
        let upstream = &target.standing.upstream;
        let metrics = self.metrics.upstream(upstream.id);
        let in_flight = metrics.in_flight();
        let patience = Patience::from_now(
            upstream.timeouts,
            target.retry.and_then(|retry| retry.deadline),
        );
        // HTTP/1.0 has no upgrades (RFC 9110, section 7.8), nor has HTTP/2 this kind.
        let upgrades =
            request.version() == Version::HTTP_11 && headers::asks_for_upgrade(request.headers());
        let client_upgrade = upgrades.then(|| upgrade::on(&mut request)).flatten();

        let is_safe = match passage.resending {
            Resending::ByMethod => request.method().is_idempotent(),
            Resending::Never => false,
            Resending::Always => true,
        };
        let may_retry = target.retry.is_some() && is_safe && !upgrades;
        let making = Making {
            passage,
            arrival,
            names: &self.names,
            upgrade: upgrades,
            keep: may_retry.then(|| upstream.retry.map_or(0, |retry| retry.max_body)),
            buffers: &self.buffers,
        };
        if let Some(budget) = &target.standing.budget {
            budget.request(target.worker, self.clock.now());
        }
        let (outgoing, spare) = making.make(request);
        let mut carrying = Carrying::new(
            target,
            metrics,
            patience,
            self.max_body,
            spare,
            arrival.notes.as_deref(),
        );
        let carried = carrying.carry(outgoing).await;
        let answer = carried.and_then(|answered| {
            failpoint!("mid-upstream");
            let Answered {
                response,
                lease,
                visit,
            } = answered;
            let relaying = Relaying {
                lease,
                patience,
                in_flight,
                visit,
            };
            answer::to_client(response, relaying, arrival, client_upgrade)
        });
        Outcome {
            answer,
            attempts: carrying.attempts,
            lost: carrying.lost,
        }
    }
}
