//! Entry of the upstream stage: builds the request for the server, records metrics and logs, and converts errors to
//! problems.

use std::sync::Arc;

use http::header::UPGRADE;
use http::{Request, Response, Version};
use tokio::time::Instant;

use super::attempts::Attempts;
use super::error::ForwardError;
use super::request::RequestBuilder;
use super::response;
use super::target::RouteTarget;
use super::timeouts::RequestTimeouts;
use super::tunnel::{RequestedTunnel, TunnelSlot, Tunnels};
use crate::failpoint::failpoint;
use crate::http::http1::upgrade;
use crate::request::body::{RequestBody, ResponseBody};
use crate::request::buffers::Buffers;
use crate::request::context::{Arrival, Delivery, FailedRequest, RequestContext, Resend};
use crate::request::headers::{HeaderNames, asks_for_upgrade};

#[derive(Debug)]
pub(crate) struct Forwarder {
    /// Names from which keys and scopes are read. A header with a similar name, such as `x_api_key` for `x-api-key`, is
    /// not forwarded.
    names: HeaderNames,
    buffers: Arc<Buffers>,
    /// Over all workers.
    tunnels: Arc<Tunnels>,
}

struct FailedExchange {
    error: ForwardError,
    attempts: u32,
    /// Whether a server may have received the request although no response arrived.
    is_lost: bool,
}

impl Forwarder {
    pub(crate) fn new(names: HeaderNames, buffers: Arc<Buffers>, tunnels: Arc<Tunnels>) -> Self {
        Self {
            names,
            buffers,
            tunnels,
        }
    }

    /// Retries also require a retry configuration.
    pub(crate) async fn forward(
        &self,
        ctx: &RequestContext,
        arrival: &Arrival,
        route: &RouteTarget,
        request: Request<RequestBody>,
        resend: Resend,
    ) -> Result<Response<ResponseBody>, FailedRequest> {
        let target = &*route.target;
        // `Upgrade` is ignored in other versions than HTTP/1.1 (RFC 9110, section 7.8).
        let upgrades = request.version() == Version::HTTP_11 && asks_for_upgrade(request.headers());
        let slot = if upgrades {
            let slot = self.tunnels.reserve(ctx.caller.id());
            Some(slot.map_err(|problem| FailedRequest {
                problem,
                delivery: Delivery::Unsent,
            })?)
        } else {
            None
        };
        let started = Instant::now();
        let exchanged = self.exchange(ctx, arrival, route, request, resend, slot);
        let FailedExchange {
            error,
            attempts,
            is_lost,
        } = match exchanged.await {
            Ok(response) => {
                target.metrics.responded(started.elapsed());
                return Ok(response);
            }
            Err(failed) => failed,
        };
        if let ForwardError::RequiresHttp1 = error {
            target.metrics.responded(started.elapsed());
        } else {
            target.metrics.failed(error.counted_as());
        }
        if matches!(error, ForwardError::ReusedClosed(_)) {
            ctx.note(|fields| fields.reason = Some("reused-connection-closed"));
        }
        let upstream = &target.state.upstream;
        let (name, request_id) = (&*upstream.name, &arrival.request_id);
        if error.is_warning() {
            tracing::warn!(
                upstream = name,
                %request_id,
                attempts,
                %error,
                "upstream request failed, client receives an error response"
            );
        } else {
            tracing::debug!(
                upstream = name,
                %request_id,
                attempts,
                %error,
                "upstream request failed because of the client, open circuit breakers or the concurrency limit"
            );
        }
        let delivery = if is_lost {
            Delivery::PossiblySent
        } else {
            error.delivery()
        };
        let is_held = delivery == Delivery::PossiblySent && resend == Resend::Never;
        Err(FailedRequest {
            problem: error.problem(upstream, is_held),
            delivery,
        })
    }

    async fn exchange(
        &self,
        ctx: &RequestContext,
        arrival: &Arrival,
        route: &RouteTarget,
        mut request: Request<RequestBody>,
        resend: Resend,
        slot: Option<TunnelSlot>,
    ) -> Result<Response<ResponseBody>, FailedExchange> {
        let RouteTarget { target, retry, .. } = route;
        let upstream = &target.state.upstream;
        let in_flight = target.metrics.in_flight();
        let deadline = retry.and_then(|retry| retry.deadline);
        let timeouts = RequestTimeouts::start(route.timeouts, deadline);
        let upgrades = slot.is_some();
        let tunnel = slot.and_then(|slot| {
            Some(RequestedTunnel {
                protocols: request.headers().get(UPGRADE)?.clone(),
                client: upgrade::on(&mut request)?,
                slot,
            })
        });

        let is_http2 = request.version() == Version::HTTP_2;
        let owns_connections = !is_http2 && !ctx.caller.peer_trusted();
        let is_safe = match resend {
            Resend::ByMethod => request.method().is_idempotent(),
            Resend::Never => false,
            Resend::Always => true,
        };
        let may_retry = retry.is_some() && is_safe && !upgrades;
        let builder = RequestBuilder {
            caller: &ctx.caller,
            arrival,
            names: &self.names,
            metrics: &target.metrics,
            upgrade: upgrades,
            is_repeatable: resend == Resend::ByMethod && is_safe && !upgrades,
            max_copy: may_retry.then(|| upstream.retry.map_or(0, |retry| retry.max_body)),
            buffers: &self.buffers,
        };
        if let Some(budget) = &target.state.budget {
            budget.request(target.clock.now());
        }
        let (request, copy) = builder.build(request);
        let client = owns_connections.then_some(&arrival.connection);
        let mut attempts = Attempts::new(target, *retry, timeouts, copy, client, ctx);
        let sent = attempts.run(request).await;
        let response = sent.and_then(|(response, lease, guard)| {
            failpoint!("mid-upstream");
            let held = (lease, in_flight, guard);
            response::to_client(response, held, &timeouts, arrival, tunnel, is_http2)
        });
        response.map_err(|error| FailedExchange {
            error,
            attempts: attempts.count,
            is_lost: attempts.is_lost,
        })
    }
}
