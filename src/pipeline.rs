//! Chain of stages that a request passes: enter → charge → idempotency → forward → respond.
//!
//! The stages are plain functions that take a `RequestContext` and their part of the route's compiled rule. A stage that
//! rejects a request returns a `Problem`, which the pipeline renders. Each request keeps a reference to its rule, so it
//! is completed with the configuration that it started with.

mod access_log;
pub(crate) mod explain;
pub(crate) mod log;
mod rule;
mod scenario;
mod state;

use std::future;
use std::sync::Arc;

use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, Either};
use http::{Request, Response};
use tokio_util::task::TaskTracker;

use self::access_log::{AccessLog, PendingRequest};
use self::rule::{RouteRule, Targets, compile};
use crate::clock::Clock;
use crate::config::{Policy, ServerSettings};
use crate::http::http1::Violation;
use crate::http::service::{Abort, Reply};
use crate::http::settings::ConnectionSettings;
use crate::idempotency::{Idempotency, OnUnknown};
use crate::metrics::Metrics;
use crate::request::body::{RequestBody, ResponseBody};
use crate::request::buffers::{Buffered, Buffers};
use crate::request::client::Trust;
use crate::request::client::unlisted_proxy::{self, UnlistedProxy};
use crate::request::context::{Arrival, ClientConnection, FailedRequest, RequestContext, Resend};
use crate::request::log_fields::AccessLogNotes;
use crate::request::route::{Matcher, RouteError};
use crate::request::{Entered, Rejected, enter};
use crate::respond::{Preferences, Problem, RespondSettings, render};
use crate::scenario::respond;
use crate::store::{BucketStore, RecordStore};
use crate::throttle::{Admission, Throttle};

pub use self::state::GatewayState;
pub use crate::store::OpenError;
pub(crate) use access_log::LoggedBody;

/// Chain of stages of one worker.
#[derive(Debug)]
pub(crate) struct Pipeline {
    policy: Arc<Policy>,
    routes: Matcher<Arc<RouteRule>>,
    targets: Targets,
    throttle: Arc<Throttle<BucketStore>>,
    idempotency: Idempotency<RecordStore>,
    buffers: Arc<Buffers>,
    respond: RespondSettings,
    connection_settings: Arc<ConnectionSettings>,
    access_log: Arc<AccessLog>,
    unlisted_proxy: Arc<UnlistedProxy>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Reference-counted, because the execution of a request with an idempotency key can continue after the client's
/// connection has closed.
#[derive(Debug)]
struct Routed {
    ctx: RequestContext,
    arrival: Arrival,
    rule: Arc<RouteRule>,
}

impl Pipeline {
    /// `worker` is its index. `tasks` tracks executions that continue after the client's connection has closed.
    ///
    /// The worker has its own copy of each reference-counted value that a request uses. If two cores updated the same
    /// reference count, the updates would take more time than the rest of a stage.
    pub(crate) fn new(shared: &GatewayState, worker: usize, tasks: TaskTracker) -> Self {
        let max_executions = shared.policy.server.limits.connections / shared.metrics.len();
        let (store, buffers) = (&shared.store, Arc::new(shared.buffers.clone()));
        let clock = shared.clock.clone();
        let throttle = Throttle::new(store.buckets.clone(), store.hash_keys.clone());
        let idempotency = Idempotency::new(
            store.records.clone(),
            store.hash_keys.clone(),
            max_executions.max(1),
            Arc::clone(&buffers),
            tasks,
            clock,
        );
        Self::with_stages(
            shared,
            worker,
            Arc::new(throttle),
            idempotency,
            buffers,
            &Targets::new(),
        )
    }

    /// The stages of the same worker under the policy of `shared`. They share all state with `self`, which requests in
    /// flight still use.
    pub(crate) fn renewed(&self, shared: &GatewayState, worker: usize) -> Self {
        Self::with_stages(
            shared,
            worker,
            Arc::clone(&self.throttle),
            self.idempotency.clone(),
            Arc::clone(&self.buffers),
            &self.targets,
        )
    }

    fn with_stages(
        shared: &GatewayState,
        worker: usize,
        throttle: Arc<Throttle<BucketStore>>,
        idempotency: Idempotency<RecordStore>,
        buffers: Arc<Buffers>,
        previous: &Targets,
    ) -> Self {
        let GatewayState { policy, clock, .. } = shared;
        let metrics = Arc::clone(&shared.metrics[worker]);
        let targets = rule::targets(shared, worker, previous);
        Self {
            routes: compile(shared, worker, &buffers, &targets),
            targets,
            throttle,
            idempotency,
            buffers,
            respond: policy.respond.clone(),
            connection_settings: Arc::new(ConnectionSettings {
                timeouts: policy.server.timeouts,
                limits: policy.server.limits,
            }),
            access_log: Arc::new(AccessLog::new(policy, Arc::clone(&metrics), clock.clone())),
            unlisted_proxy: Arc::clone(&shared.unlisted_proxy),
            policy: Arc::clone(policy),
            metrics,
            clock: clock.clone(),
        }
    }

    pub(crate) fn settings(&self) -> &ServerSettings {
        &self.policy.server
    }

    pub(crate) fn connection_settings(&self) -> &Arc<ConnectionSettings> {
        &self.connection_settings
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.policy.trust
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Responds to a request that arrived on `connection`.
    ///
    /// The throttle is the first stage. So a request that it rejects claims no idempotency key and uses no upstream
    /// connection. Replays are charged to rate limits like other requests.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice, which copies every request once more"
    )]
    pub(crate) fn respond(
        self: Arc<Self>,
        connection: &Arc<ClientConnection>,
        mut request: Request<RequestBody>,
    ) -> impl Future<Output = Reply<LoggedBody>> {
        async move {
            let mut pending = self
                .access_log
                .begin(connection.peer, Some(request.headers()));
            let settings = self.policy.entry_settings(&self.routes);
            let entered = match enter(&settings, connection.peer, &mut request) {
                Ok(entered) => entered,
                Err(rejected) => return self.reject_entry(pending, *rejected, &request),
            };
            if !entered.caller.peer_trusted()
                && (self.metrics.totals.untrusted.inc()).is_multiple_of(unlisted_proxy::INTERVAL)
            {
                self.unlisted_proxy
                    .observe(&entered.caller, request.headers());
            }
            pending.set_client(entered.caller.id());
            pending.set_route(entered.route, &request);
            if let (Some(cors), true) = (&self.respond.cors, entered.is_preflight) {
                let mut response = cors.preflight(request.headers());
                self.respond.add_headers(response.headers_mut());
                pending.log_reason("preflight");
                return pending.finish(Reply::Response(response), None);
            }
            let routed = route(entered, connection, &pending, &mut request);

            let Routed { ctx, rule, .. } = &*routed;
            // A CORS preflight is not an attempt of the client, so it uses no step.
            if let Some(scenario) = &rule.scenario
                && !ctx.is_preflight
            {
                let responding = Box::pin(self.run_scenario(&routed, scenario, request));
                let (reply, traced) = responding.await;
                return pending.finish(reply, Some(Box::new(traced)));
            }
            let reject = |problem| self.reject(problem, &ctx.preferences, ctx.notes.as_ref());
            let charged = self
                .throttle
                .charge(ctx, &rule.limits, request.headers().into());
            let admission = match charged.await {
                Ok(admission) => admission,
                Err(problem) => {
                    let reply = reject(problem);
                    pending.set_rejected();
                    return pending.finish(reply, None);
                }
            };
            let executed = self.execute(&routed, request).await;
            let mut reply = executed.map_or_else(reject, Reply::Response);
            self.add_headers(&routed, &admission, &mut reply);
            pending.finish(reply, None)
        }
    }

    /// Adds the `RateLimit` and CORS headers.
    fn add_headers(&self, routed: &Routed, admission: &Admission, reply: &mut Reply<ResponseBody>) {
        let Reply::Response(response) = reply else {
            return;
        };
        let Routed { ctx, rule, .. } = routed;
        let headers = response.headers_mut();
        rule.limits.write_headers(admission, headers);
        if let Some(cors) = &self.respond.cors {
            cors.write_if_absent(headers, ctx.preferences.origin(), &self.respond);
        }
    }

    /// A violation of HTTP, a size limit or a timeout.
    pub(crate) fn reject_invalid(
        &self,
        connection: &ClientConnection,
        violation: Violation,
        head: Option<&Request<()>>,
    ) -> Reply<LoggedBody> {
        if violation == Violation::BodyTooSlow {
            self.metrics.totals.slow_bodies.inc();
        }
        let headers = head.map(Request::headers);
        let mut pending = self.access_log.begin(connection.peer, headers);
        pending.log_unrouted(head);
        let preferences = headers.map(Preferences::of).unwrap_or_default();
        let reply = self.reject(violation.into(), &preferences, pending.notes());
        pending.finish(reply, None)
    }

    fn reject_entry(
        &self,
        mut pending: PendingRequest<'_>,
        rejected: Rejected<'_, Arc<RouteRule>>,
        request: &Request<RequestBody>,
    ) -> Reply<LoggedBody> {
        match &rejected {
            Rejected::Head(_) => pending.log_unrouted(Some(request)),
            Rejected::Route(caller, error) => {
                pending.set_client(caller.id());
                pending.log_unrouted(Some(request));
                if error.is_ambiguous() {
                    self.metrics.totals.ambiguous_paths.inc();
                } else if matches!(error, RouteError::NotStrict { .. }) {
                    self.metrics.totals.strict_path_rejections.inc();
                }
            }
            Rejected::IdentifyingHeaders(caller, rule, _) => {
                pending.set_client(caller.id());
                pending.set_route(rule, request);
            }
        }
        let preferences = Preferences::of(request.headers());
        let reply = self.reject(rejected.into(), &preferences, pending.notes());
        pending.finish(reply, None)
    }

    /// The idempotency stage directly precedes the upstream stage, so that it stores only responses from the upstream. It
    /// reads the complete body. The body of any other request is buffered up to `request_buffer`, so that a slow client
    /// does not occupy a server.
    fn execute<'a>(
        &'a self,
        routed: &'a Arc<Routed>,
        request: Request<RequestBody>,
    ) -> BoxFuture<'a, Result<Response<ResponseBody>, Problem>> {
        let Routed { ctx, rule, .. } = &**routed;
        let keyed = match &rule.keys {
            Some(keys) => keys
                .inspect(&request)
                .map(|keyed| keyed.map(|keyed| (keys, keyed))),
            None => Ok(None),
        };
        match keyed {
            Ok(None) if request.body().whole().is_some() || rule.request_buffer == 0 => {
                let forwarding = forward(routed, request, Resend::ByMethod);
                Box::pin(forwarding.map_err(Problem::from))
            }
            Ok(None) => Box::pin(self.buffer_and_forward(routed, request)),
            Ok(Some((keys, keyed))) => {
                let id = Some(&routed.arrival.request_id);
                let owned = Arc::clone(routed);
                let execute = move |request, claim: Option<OnUnknown>| async move {
                    forward(&owned, request, Resend::under(claim)).await
                };
                Box::pin(self.idempotency.run(ctx, keys, keyed, id, request, execute))
            }
            Err(error) => Box::pin(future::ready(Err(error.into()))),
        }
    }

    async fn buffer_and_forward(
        &self,
        routed: &Routed,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Problem> {
        let client = routed.ctx.caller.id();
        let charge = self.buffers.charge(client, Buffered::Upload);
        let body = request.body_mut();
        body.buffer(routed.rule.request_buffer, charge).await?;
        Ok(forward(routed, request, Resend::ByMethod).await?)
    }

    /// Notes the type of the problem for the access log unless a stage has noted a reason.
    fn reject(
        &self,
        problem: Problem,
        preferences: &Preferences,
        notes: Option<&Arc<AccessLogNotes>>,
    ) -> Reply<ResponseBody> {
        if let Some(notes) = notes {
            notes.fields().reason.get_or_insert(problem.kind);
        }
        if problem.requires_http1 {
            return Reply::Abort(Abort::RequireHttp1);
        }
        Reply::Response(render(problem, preferences, &self.respond, &self.clock))
    }
}

fn forward(
    routed: &Routed,
    request: Request<RequestBody>,
    resend: Resend,
) -> impl Future<Output = Result<Response<ResponseBody>, FailedRequest>> {
    let Routed { ctx, arrival, rule } = routed;
    let RouteRule {
        forwarder, target, ..
    } = &**rule;
    match target {
        Some(target) => Either::Left(forwarder.forward(ctx, arrival, target, request, resend)),
        // Only a route with a scenario has no upstream.
        None => Either::Right(future::ready(Ok(respond::passed()))),
    }
}

// Without the hint, the call moves the client twice more: 93 instructions per request.
#[inline]
fn route(
    entered: Entered<'_, Arc<RouteRule>>,
    connection: &Arc<ClientConnection>,
    pending: &PendingRequest<'_>,
    request: &mut Request<RequestBody>,
) -> Arc<Routed> {
    let notes = pending.notes().cloned();
    if let Some(notes) = &notes {
        request.body_mut().count_bytes(notes);
    }
    let Entered {
        caller,
        is_preflight,
        test,
        route,
    } = entered;
    Arc::new(Routed {
        ctx: RequestContext::new(
            caller,
            pending.arrived(),
            is_preflight,
            request.headers(),
            notes,
        ),
        arrival: Arrival {
            connection: Arc::clone(connection),
            request_id: pending.request_id().clone(),
            test,
        },
        rule: Arc::clone(route),
    })
}

#[cfg(test)]
pub(crate) mod tests;
