//! Updates the metrics of requests and writes their access log lines.
//!
//! The access log increments the request metrics when a response begins. It writes the line when the response ends,
//! because the line contains the size and the duration of the response, and whether the client's socket accepted its
//! last byte.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};

use super::rule::RouteRule;
use crate::clock::{Clock, Moment};
use crate::config::Policy;
use crate::http::http1;
use crate::http::service::Reply;
use crate::metrics::Metrics;
use crate::pipeline::log::ACCESS_TARGET;
use crate::request::body::{BodyError, ResponseBody};
use crate::request::client::ClientId;
use crate::request::log_fields::{AccessLogFields, AccessLogNotes, Escaped, KeyUse, ShownKey};
use crate::request::request_id::{RequestId, X_REQUEST_ID};
use crate::respond::TRACEPARENT;
use crate::respond::trace::TraceId;
use crate::scenario::TracedAttempt;
use crate::scenario::trace::ResponseEnd;

/// Logged and counted as the status if the client disconnects before the response begins, as in nginx.
static CLIENT_CLOSED_REQUEST: LazyLock<StatusCode> =
    LazyLock::new(|| StatusCode::from_u16(499).expect("499 is a valid status code"));

/// Logged and counted as the status if the gateway ends an exchange without a response, as in nginx.
static NO_RESPONSE: LazyLock<StatusCode> =
    LazyLock::new(|| StatusCode::from_u16(444).expect("444 is a valid status code"));

/// Updates the request metrics of one worker and writes its access log lines.
#[derive(Debug)]
pub(super) struct AccessLog {
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Whether requests that match no route are written to the access log.
    logs_unrouted: bool,
}

/// Request that has no response yet. If it is dropped in this state, it is logged with status 499, because the client
/// disconnected or the shutdown grace period expired.
pub(super) struct PendingRequest<'a> {
    log: &'a Arc<AccessLog>,
    /// `None` once the response has begun.
    facts: Option<RequestFacts>,
}

/// Data about a request for metrics and the access log.
struct RequestFacts {
    started: Moment,
    peer: IpAddr,
    request_id: RequestId,
    client: Option<ClientId>,
    route: Option<Arc<RouteRule>>,
    is_rejected: bool,
    /// Data for the access log; `None` if the request is not logged. Boxed to keep this struct small, because it is
    /// moved often.
    logged: Option<Box<Logged>>,
}

/// Additional data about a request that gets an access log line.
struct Logged {
    /// `None` if the client sent no valid head.
    head: Option<LoggedHead>,
    notes: Arc<AccessLogNotes>,
}

struct LoggedHead {
    method: Method,
    target: Uri,
    version: Version,
    host: Option<HeaderValue>,
    trace: Option<TraceId>,
}

/// Body of a response to a client. If the body is dropped before its last byte is sent, the response is logged as
/// truncated.
#[derive(Debug)]
pub(crate) struct LoggedBody {
    body: ResponseBody,
    bytes: u64,
    end: BodyEnd,
    log: Arc<AccessLog>,
    /// Route and time of arrival, for the duration of the request; `None` if it is not counted.
    timed: Option<(Arc<RouteRule>, Moment)>,
    /// Access log line to write when the body ends; `None` if the request is not logged. Boxed to keep the response
    /// small, because it is moved often.
    line: Option<Box<AccessLogLine>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// The body is being sent. If it is dropped in this state, the client has disconnected.
    Unfinished,
    Delivered,
    /// The body has returned an error. `resets` means that the server resets the connection.
    Failed {
        resets: bool,
    },
}

/// Data of an access log line that is known when the response begins.
struct AccessLogLine {
    facts: RequestFacts,
    status: StatusCode,
    /// Trace of the request; `None` unless its route has a scenario. Boxed, because most routes have none.
    traced: Option<Box<TracedAttempt>>,
}

impl LoggedHead {
    fn of<B>(request: &Request<B>) -> Self {
        Self {
            method: request.method().clone(),
            target: request.uri().clone(),
            version: request.version(),
            host: host_of(request.uri(), request.headers()),
            trace: request.headers().get(&TRACEPARENT).and_then(TraceId::of),
        }
    }
}

impl PendingRequest<'_> {
    fn facts(&self) -> &RequestFacts {
        self.facts
            .as_ref()
            .expect("the data is present until the request is finished")
    }

    fn facts_mut(&mut self) -> &mut RequestFacts {
        self.facts
            .as_mut()
            .expect("the data is present until the request is finished")
    }

    /// Returns the notes for the access log; `None` if the request is not logged.
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

    /// Sets the route of the request, and starts an access log line if `access_log` is on for the route.
    pub(super) fn set_route<B>(&mut self, route: &Arc<RouteRule>, request: &Request<B>) {
        let facts = self.facts_mut();
        facts.route = Some(Arc::clone(route));
        if route.access_log && is_logged() {
            facts.log(Some(LoggedHead::of(request)));
        }
    }

    /// Starts an access log line for a request without a route.
    pub(super) fn log_unrouted<B>(&mut self, request: &Request<B>) {
        if self.log.logs_unrouted && is_logged() {
            self.facts_mut().log(Some(LoggedHead::of(request)));
        }
    }

    /// Starts an access log line for a request that is not valid HTTP.
    pub(super) fn log_invalid(&mut self, head: Option<&Request<()>>) {
        if self.log.logs_unrouted && is_logged() {
            self.facts_mut().log(head.map(LoggedHead::of));
        }
    }

    /// Notes that a limit rejected the request. Its duration is not counted, because many rejections would hide the
    /// duration of other requests.
    pub(super) fn set_rejected(&mut self) {
        self.facts_mut().is_rejected = true;
    }

    /// Sets the access log field `reason` for a response that the gateway generates.
    pub(super) fn log_reason(&self, reason: &'static str) {
        if let Some(notes) = self.notes() {
            notes.fields().reason = Some(reason);
        }
    }

    /// Increments the request metrics and adds the request id to the response. Replaces the body of the response with a
    /// [`LoggedBody`], which writes the access log line when it ends.
    pub(super) fn finish(self, reply: Reply<ResponseBody>) -> Reply<LoggedBody> {
        self.finish_traced(reply, None)
    }

    /// Does the same as [`finish`](Self::finish) for a response of a scenario.
    pub(super) fn finish_traced(
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
        let status = response.status();
        if let Some(traced) = &traced {
            traced.started(Some(status), response.headers());
        }
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
            // The data is dropped in place, which is faster than moving it out of the option.
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
        self.end(*NO_RESPONSE, true);
        self.log.metrics.totals.truncated.inc();
    }

    /// Counts and logs a request that gets no response.
    fn end(&mut self, status: StatusCode, is_truncated: bool) {
        if let Some(facts) = self.facts.take() {
            self.log.count(&facts, status);
            self.log.write(&facts, status, 0, is_truncated);
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.end(*CLIENT_CLOSED_REQUEST, false);
    }
}

impl RequestFacts {
    fn log(&mut self, head: Option<LoggedHead>) {
        let notes = Arc::default();
        self.logged = Some(Box::new(Logged { head, notes }));
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

    fn count(&self, facts: &RequestFacts, status: StatusCode) {
        let route = facts.route.as_ref();
        let counters = route.map_or(&self.metrics.unrouted, |route| &route.metrics);
        counters.responded(status);
    }

    /// Writes an access log line. `bytes_out` is the number of body bytes that were sent to the client.
    fn write(&self, facts: &RequestFacts, status: StatusCode, bytes_out: u64, is_truncated: bool) {
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
            status = status.as_u16(),
            bytes_in = logged.notes.bytes_in(),
            bytes_out,
            duration_us = micros(duration),
            attempts = (notes.attempts > 0).then_some(notes.attempts),
            server = notes.server.as_deref(),
            limits = EvaluatedLimits::of(&notes).map(tracing::field::display),
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

/// Returns the host of a request. It is in `Host` unless the request is rejected before its head is checked. Returns
/// `None` if the request names no host.
fn host_of(target: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    let header = headers.get(HOST).cloned();
    header.or_else(|| HeaderValue::from_str(target.authority()?.as_str()).ok())
}

/// Returns whether the log filter includes access log lines, which have the level `info`.
fn is_logged() -> bool {
    tracing::enabled!(target: ACCESS_TARGET, tracing::Level::INFO)
}

/// Rate limits that were evaluated for a request. They are displayed as `NAME=KEY`, separated by commas, where `KEY` is
/// the limit key.
struct EvaluatedLimits<'a>(&'a [(Arc<str>, ShownKey)]);

impl<'a> EvaluatedLimits<'a> {
    fn of(notes: &'a AccessLogFields) -> Option<Self> {
        (!notes.limits.is_empty()).then_some(Self(&notes.limits))
    }
}

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

/// Returns a duration in microseconds, as a `u64` because not all JSON parsers accept 128-bit numbers.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the wait of a rejected request in milliseconds, rounded up, for the access log field `wait_ms`.
fn wait_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Poll::Ready(Some(Err(error))) => {
                let resets = matches!(error, BodyError::Scenario { resets: true });
                self.end = BodyEnd::Failed { resets };
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl http1::TrackDelivery for LoggedBody {
    fn delivered(mut self: Pin<&mut Self>) {
        self.end = BodyEnd::Delivered;
    }

    fn is_reset(&self) -> bool {
        self.end == BodyEnd::Failed { resets: true }
    }
}

impl Drop for LoggedBody {
    fn drop(&mut self) {
        let is_truncated = self.end != BodyEnd::Delivered;
        if is_truncated {
            self.log.metrics.totals.truncated.inc();
        }
        if let Some((route, started)) = self.timed.take() {
            let duration = self.log.clock.now().since(started);
            route.metrics.duration.record(duration);
        }
        if let Some(mut line) = self.line.take() {
            if let Some(traced) = &mut line.traced {
                let end = match self.end {
                    BodyEnd::Delivered => ResponseEnd::Complete,
                    BodyEnd::Failed { .. } => ResponseEnd::Aborted,
                    BodyEnd::Unfinished => ResponseEnd::ClientClosed,
                };
                traced.ended(end);
            }
            let AccessLogLine { facts, status, .. } = &*line;
            self.log.write(facts, *status, self.bytes, is_truncated);
        }
    }
}

impl fmt::Debug for AccessLogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessLogLine")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
