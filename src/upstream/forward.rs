//! The upstream stage: sends a request to a server of its upstream and returns the response.
//!
//! [`attempts`](super::attempts) decides how often a request is sent, and where to. This module builds the request, and
//! counts, logs and converts the result.

use std::sync::Arc;

use http::{Request, Response, Version};
use tokio::time::Instant;

use super::attempts::{Attempts, Responded};
use super::error::ForwardError;
use super::request::RequestBuilder;
use super::response::{self, Exchange};
use super::target::Target;
use super::timeouts::RequestTimeouts;
use crate::body::{RequestBody, ResponseBody};
use crate::buffers::Buffers;
use crate::context::{Arrival, Failed, RequestContext, Resend, Undone};
use crate::failpoint::failpoint;
use crate::http1::upgrade;
use crate::intake::headers::{HeaderNames, asks_for_upgrade};

/// Sends requests upstream.
#[derive(Debug)]
pub(crate) struct Forwarder {
    /// Headers that limits, scopes and keys are read from. Lookalikes are not forwarded.
    names: HeaderNames,
    /// Bytes of a request body at most.
    max_body: u64,
    /// Bounds the bodies held in memory.
    buffers: Arc<Buffers>,
}

/// The result of all attempts to send a request.
struct Outcome {
    response: Result<Response<ResponseBody>, ForwardError>,
    attempts: u32,
    /// Whether a server may have received the request although no response arrived.
    is_lost: bool,
}

impl Forwarder {
    /// Creates the stage for request bodies of up to `max_body` bytes. Copies of bodies for retries are held within the
    /// bounds of `buffers`.
    pub(crate) fn new(names: HeaderNames, max_body: u64, buffers: Arc<Buffers>) -> Self {
        Self {
            names,
            max_body,
            buffers,
        }
    }

    /// Sends `request` to a server of `target`, with retries if the configuration and `resend` allow them.
    pub(crate) async fn forward(
        &self,
        ctx: &RequestContext,
        arrival: &Arrival,
        target: &Target,
        request: Request<RequestBody>,
        resend: Resend,
    ) -> Result<Response<ResponseBody>, Failed> {
        let started = Instant::now();
        let Outcome {
            response,
            attempts,
            is_lost,
        } = self.exchange(ctx, arrival, target, request, resend).await;
        let error = match response {
            Ok(response) => {
                target.metrics.responded(started.elapsed());
                return Ok(response);
            }
            Err(error) => error,
        };
        target.metrics.failed(error.counted_as());
        let upstream = &target.state.upstream;
        let (name, request_id) = (&*upstream.name, &arrival.request_id);
        if error.is_news() {
            tracing::warn!(upstream = name, %request_id, attempts, %error, "no response from upstream");
        } else {
            tracing::debug!(upstream = name, %request_id, attempts, %error, "request not completed");
        }
        let undone = if is_lost {
            Undone::Lost
        } else {
            error.undone()
        };
        let is_held = undone == Undone::Lost && resend == Resend::Never;
        Err(Failed {
            problem: error.problem(upstream, is_held),
            undone,
        })
    }

    async fn exchange(
        &self,
        ctx: &RequestContext,
        arrival: &Arrival,
        target: &Target,
        mut request: Request<RequestBody>,
        resend: Resend,
    ) -> Outcome {
        let upstream = &target.state.upstream;
        let in_flight = target.metrics.in_flight();
        let timeouts = RequestTimeouts::from_now(
            upstream.timeouts,
            target.retry.and_then(|retry| retry.deadline),
        );
        // HTTP/1.0 has no upgrades (RFC 9110, section 7.8), nor has HTTP/2 this kind.
        let upgrades = request.version() == Version::HTTP_11 && asks_for_upgrade(request.headers());
        let client_upgrade = upgrades.then(|| upgrade::on(&mut request)).flatten();

        let is_safe = match resend {
            Resend::ByMethod => request.method().is_idempotent(),
            Resend::Never => false,
            Resend::Always => true,
        };
        let may_retry = target.retry.is_some() && is_safe && !upgrades;
        let builder = RequestBuilder {
            caller: &ctx.caller,
            arrival,
            names: &self.names,
            upgrade: upgrades,
            keep: may_retry.then(|| upstream.retry.map_or(0, |retry| retry.max_body)),
            buffers: &self.buffers,
        };
        if let Some(budget) = &target.state.budget {
            budget.request(target.worker, target.clock.now());
        }
        let (request, copy) = builder.build(request);
        let mut attempts = Attempts::new(target, timeouts, self.max_body, copy, ctx);
        let sent = attempts.run(request).await;
        let response = sent.and_then(|responded| {
            failpoint!("mid-upstream");
            let Responded {
                response,
                lease,
                guard,
            } = responded;
            let exchange = Exchange {
                lease,
                timeouts,
                in_flight,
                guard,
            };
            response::to_client(response, exchange, arrival, client_upgrade)
        });
        Outcome {
            response,
            attempts: attempts.count,
            is_lost: attempts.is_lost,
        }
    }
}
