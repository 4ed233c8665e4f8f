//! Counts requests, and writes their access log lines.
//!
//! A request is counted when its response begins. Its line is written when the response ends, because the line contains
//! the size and the duration of the response, and whether the client's socket accepted its last byte.

mod body;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};

use self::body::BodyEnd;
pub(crate) use self::body::LoggedBody;
use super::rule::RouteRule;
use crate::clock::{Clock, Moment};
use crate::config::Policy;
use crate::http::service::Reply;
use crate::metrics::Metrics;
use crate::pipeline::log::ACCESS_TARGET;
use crate::request::body::ResponseBody;
use crate::request::client::ClientId;
use crate::request::log_fields::{AccessLogNotes, Escaped, KeyUse, ShownKey};
use crate::request::request_id::{RequestId, X_REQUEST_ID};
use crate::respond::TRACEPARENT;
use crate::respond::trace::TraceId;
use crate::scenario::TracedAttempt;
use crate::scenario::trace::ResponseEnd;

/// Status of a request whose client disconnects before the response begins, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Status of an exchange that the gateway ends without a response, as in nginx.
const NO_RESPONSE: u16 = 444;

#[derive(Debug)]
pub(super) struct AccessLog {
    metrics: Arc<Metrics>,
    clock: Clock,
    logs_unrouted: bool,
}

/// Request without a response. If it is dropped in this state, the client has disconnected or the shutdown grace period
/// has expired.
pub(super) struct PendingRequest<'a> {
    log: &'a Arc<AccessLog>,
    /// `None` once the response has begun.
    facts: Option<RequestFacts>,
}

#[derive(Debug)]
struct RequestFacts {
    started: Moment,
    peer: IpAddr,
    request_id: RequestId,
    client: Option<ClientId>,
    route: Option<Arc<RouteRule>>,
    is_rejected: bool,
    /// `None` if the request is not logged. Boxed to keep this struct small, because it is moved often.
    logged: Option<Box<Logged>>,
}

#[derive(Debug)]
struct Logged {
    /// `None` if the client sent no valid head.
    head: Option<LoggedHead>,
    notes: Arc<AccessLogNotes>,
}

#[derive(Debug)]
struct LoggedHead {
    method: Method,
    target: Uri,
    version: Version,
    host: Option<HeaderValue>,
    trace: Option<TraceId>,
}

#[derive(Debug)]
struct AccessLogLine {
    facts: RequestFacts,
    status: u16,
    /// Boxed, because most routes have no scenario.
    traced: Option<Box<TracedAttempt>>,
}

impl LoggedHead {
    fn of<B>(request: &Request<B>) -> Self {
        let (target, headers) = (request.uri(), request.headers());
        // The entry of the request adds `Host`, but only after it has checked the head.
        let host = headers.get(HOST).cloned();
        Self {
            method: request.method().clone(),
            host: host.or_else(|| HeaderValue::from_str(target.authority()?.as_str()).ok()),
            target: target.clone(),
            version: request.version(),
            trace: headers.get(&TRACEPARENT).and_then(TraceId::of),
        }
    }
}

impl PendingRequest<'_> {
    fn facts(&self) -> &RequestFacts {
        self.facts.as_ref().expect("the response has not begun")
    }

    fn facts_mut(&mut self) -> &mut RequestFacts {
        self.facts.as_mut().expect("the response has not begun")
    }

    /// Returns `None` if the request is not logged.
    pub(super) fn notes(&self) -> Option<&Arc<AccessLogNotes>> {
        self.facts().logged.as_ref().map(|logged| &logged.notes)
    }

    pub(super) fn arrived(&self) -> Moment {
        self.facts().started
    }

    pub(super) fn request_id(&self) -> &RequestId {
        &self.facts().request_id
    }

    pub(super) fn set_client(&mut self, client: ClientId) {
        self.facts_mut().client = Some(client);
    }

    pub(super) fn set_route<B>(&mut self, route: &Arc<RouteRule>, request: &Request<B>) {
        self.facts_mut().route = Some(Arc::clone(route));
        self.log_head(route.access_log, Some(request));
    }

    /// `head` is `None` if the client sent no valid one.
    pub(super) fn log_unrouted<B>(&mut self, head: Option<&Request<B>>) {
        self.log_head(self.log.logs_unrouted, head);
    }

    fn log_head<B>(&mut self, is_on: bool, head: Option<&Request<B>>) {
        // The level of access log lines is `info`.
        if is_on && tracing::enabled!(target: ACCESS_TARGET, tracing::Level::INFO) {
            let (head, notes) = (head.map(LoggedHead::of), Arc::default());
            self.facts_mut().logged = Some(Box::new(Logged { head, notes }));
        }
    }

    /// The duration of a request that a limit rejected is not counted, because many rejections would hide the duration
    /// of other requests.
    pub(super) fn set_rejected(&mut self) {
        self.facts_mut().is_rejected = true;
    }

    /// Sets the field `reason` of a response that the gateway generates.
    pub(super) fn log_reason(&self, reason: &'static str) {
        if let Some(notes) = self.notes() {
            notes.fields().reason = Some(reason);
        }
    }

    /// Counts the request, and adds its id to the response. `traced` is that of a request of a scenario.
    pub(super) fn finish(
        mut self,
        reply: Reply<ResponseBody>,
        traced: Option<Box<TracedAttempt>>,
    ) -> Reply<LoggedBody> {
        let mut response = match reply {
            Reply::Response(response) => response,
            Reply::Abort(abort) => {
                self.finish_aborted(traced);
                return Reply::Abort(abort);
            }
        };
        let facts = self.facts();
        let id = facts.request_id.to_header();
        response.headers_mut().insert(X_REQUEST_ID, id);
        if let Some(traced) = &traced {
            traced.started(Some(response.status()), response.headers());
        }
        let status = response.status().as_u16();
        self.log.count(facts, status);
        let timed = match &facts.route {
            Some(route) if !facts.is_rejected => Some((Arc::clone(route), facts.started)),
            _ => None,
        };
        let line = if facts.logged.is_some() || traced.is_some() {
            let facts = self.facts.take();
            facts.map(|facts| {
                Box::new(AccessLogLine {
                    facts,
                    status,
                    traced,
                })
            })
        } else {
            // Dropped in place, which is faster than moving it out of the option.
            self.facts = None;
            None
        };
        let log = Arc::clone(self.log);
        Reply::Response(response.map(|body| LoggedBody {
            body,
            bytes: 0,
            end: BodyEnd::Unfinished,
            log,
            timed,
            line,
        }))
    }

    fn finish_aborted(mut self, traced: Option<Box<TracedAttempt>>) {
        if let Some(mut traced) = traced {
            traced.started(None, &HeaderMap::new());
            traced.ended(ResponseEnd::Aborted);
        }
        self.end(NO_RESPONSE, true);
        self.log.metrics.totals.truncated.inc();
    }

    /// Counts and logs a request that gets no response.
    fn end(&mut self, status: u16, is_truncated: bool) {
        if let Some(facts) = self.facts.take() {
            self.log.count(&facts, status);
            self.log.write(&facts, status, 0, is_truncated);
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.end(CLIENT_CLOSED_REQUEST, false);
    }
}

impl AccessLog {
    pub(super) fn new(policy: &Policy, metrics: Arc<Metrics>, clock: Clock) -> Self {
        Self {
            metrics,
            clock,
            logs_unrouted: policy.log.access,
        }
    }

    /// `headers` is `None` if the client sent no valid head.
    pub(super) fn begin<'a>(
        self: &'a Arc<Self>,
        peer: IpAddr,
        headers: Option<&HeaderMap>,
    ) -> PendingRequest<'a> {
        PendingRequest {
            log: self,
            facts: Some(RequestFacts {
                started: self.clock.now(),
                peer,
                request_id: headers.map_or_else(RequestId::random, RequestId::of),
                client: None,
                route: None,
                is_rejected: false,
                logged: None,
            }),
        }
    }

    fn count(&self, facts: &RequestFacts, status: u16) {
        let route = facts.route.as_ref();
        let counters = route.map_or(&self.metrics.unrouted, |route| &route.metrics);
        counters.responded(status);
    }

    /// `bytes_out` is the number of body bytes that were sent to the client.
    fn write(&self, facts: &RequestFacts, status: u16, bytes_out: u64, is_truncated: bool) {
        let Some(logged) = &facts.logged else {
            return;
        };
        let duration = self.clock.now().since(facts.started);
        let arrived = self.clock.wall().checked_sub(duration);
        let head = logged.head.as_ref();
        let host = head.and_then(|head| head.host.as_ref()?.to_str().ok());
        let notes = logged.notes.fields();
        let rejected_by = notes.rejected_by.as_ref();
        tracing::info!(
            target: ACCESS_TARGET,
            time = arrived.map(humantime::format_rfc3339_micros).map(tracing::field::display),
            peer = %facts.peer,
            client = facts.client.map(tracing::field::display),
            method = head.map(|head| tracing::field::display(&head.method)),
            host = host.map(Escaped).map(tracing::field::display),
            path = head.map(|head| tracing::field::display(Escaped(head.target.path()))),
            protocol = head.map(|head| tracing::field::debug(head.version)),
            route = facts.route.as_ref().map(|route| &*route.name),
            status,
            bytes_in = logged.notes.bytes_in(),
            bytes_out,
            // Not all JSON parsers accept 128-bit numbers.
            duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            attempts = (notes.attempts > 0).then_some(notes.attempts),
            server = notes.server.as_deref(),
            limits = (!notes.limits.is_empty())
                .then(|| tracing::field::display(EvaluatedLimits(&notes.limits))),
            limit = rejected_by.map(|(limit, _)| &**limit),
            wait_ms = rejected_by.map(|(_, wait)| wait_ms(*wait)),
            shadow = (!notes.shadow.is_empty()).then(|| notes.shadow.join(",")),
            idempotency = notes.idempotency.map(KeyUse::as_str),
            reason = notes.reason,
            truncated = is_truncated.then_some(true),
            request_id = %facts.request_id,
            trace_id = head.and_then(|head| Some(head.trace.as_ref()?.as_str())),
            "request"
        );
    }
}

/// Displayed as `NAME=KEY`, separated by commas.
struct EvaluatedLimits<'a>(&'a [(Arc<str>, ShownKey)]);

impl fmt::Display for EvaluatedLimits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (limit, key)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{limit}=")?;
            match key {
                ShownKey::Value(value) => {
                    // A comma separates limits.
                    for (index, part) in value.split(',').enumerate() {
                        let comma = if index > 0 { "\\u{2c}" } else { "" };
                        write!(f, "{comma}{}", Escaped(part))?;
                    }
                }
                key => key.fmt(f)?,
            }
        }
        Ok(())
    }
}

/// Rounded up.
fn wait_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
