//! Updates the metrics of requests and writes their access log lines.
//!
//! The recorder increments the request metrics when a response begins. It writes the access log line when the response
//! ends, because the line contains the size and the duration of the response, and whether the client's socket accepted
//! its last byte.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};

use super::rule::RouteRule;
use crate::clock::{Clock, Moment};
use crate::config::Policy;
use crate::http::http1;
use crate::metrics::Metrics;
use crate::pipeline::log::ACCESS_TARGET;
use crate::request::body::{BodyError, ResponseBody};
use crate::request::client::ClientId;
use crate::request::log_fields::{AccessLogFields, AccessLogNotes, CountedBy, Escaped, KeyUse};
use crate::request::request_id::{RequestId, X_REQUEST_ID};
use crate::scenario::Recording;
use crate::scenario::observation::ResponseEnd;

/// Status that is recorded if the client disconnects before the response begins. nginx uses the same status.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Status that is recorded if a scenario closes the connection instead of responding. nginx uses the same status.
static NO_RESPONSE: LazyLock<StatusCode> =
    LazyLock::new(|| StatusCode::from_u16(444).expect("444 is a valid status code"));

/// Updates the request metrics of one worker and writes its access log lines.
#[derive(Debug)]
pub(super) struct Recorder {
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Whether requests that match no route are written to the access log.
    logs_unrouted: bool,
    /// Whether any request is written to the access log.
    logs_any: bool,
}

/// Request that has no response yet. If it is dropped in this state, it is recorded with status 499, because the client
/// disconnected or the shutdown grace period expired.
pub(super) struct PendingRequest<'a> {
    recorder: &'a Arc<Recorder>,
    /// Data about the request; `None` once the response has begun.
    facts: Option<RequestFacts>,
}

/// Data about a request for metrics and the access log.
struct RequestFacts {
    /// Time at which the request arrived; `None` if the access log is off for all requests.
    started: Option<Moment>,
    peer: IpAddr,
    method: Method,
    version: Version,
    request_id: RequestId,
    client: Option<ClientId>,
    route: Option<Arc<RouteRule>>,
    /// Data for the access log; `None` if the request is not logged. Boxed to keep this struct small, because it is
    /// moved often.
    logged: Option<Box<Logged>>,
}

/// Additional data about a request that gets an access log line.
struct Logged {
    target: Uri,
    host: Option<HeaderValue>,
    /// Whether the client sent no valid HTTP request. The log line then contains no method, path or protocol.
    is_placeholder: bool,
    notes: Arc<AccessLogNotes>,
}

/// Body of a response to a client. If the body is dropped before its last byte is sent, the response is recorded as
/// truncated.
#[derive(Debug)]
pub(crate) struct RecordedBody {
    body: ResponseBody,
    bytes: u64,
    is_delivered: bool,
    /// Whether the body has returned an error.
    has_failed: bool,
    recorder: Arc<Recorder>,
    /// Access log line to write when the body ends; `None` if the request is not logged. Boxed to keep the response
    /// small, because it is moved often.
    line: Option<Box<AccessLogLine>>,
}

/// Data of an access log line that is known when the response begins.
struct AccessLogLine {
    facts: RequestFacts,
    status: StatusCode,
    /// Record of the request; `None` unless its route has a scenario. Boxed, because most routes have none.
    recording: Option<Box<Recording>>,
}

impl Logged {
    fn new<B>(request: &Request<B>) -> Box<Self> {
        Box::new(Self {
            target: request.uri().clone(),
            host: host_of(request),
            is_placeholder: false,
            notes: Arc::default(),
        })
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
            facts.logged = Some(Logged::new(request));
        }
    }

    /// Starts an access log line for a request that is rejected before its route is known. `is_violation` means that
    /// the request is not valid HTTP.
    pub(super) fn log_rejected<B>(&mut self, request: &Request<B>, is_violation: bool) {
        let logs = self.recorder.logs_unrouted;
        let facts = self.facts_mut();
        if facts.route.is_none() && logs && is_logged() {
            let mut logged = Logged::new(request);
            // A request over HTTP/2 has a valid head even if it violates the protocol, so its log line contains the
            // method, the path and the protocol.
            logged.is_placeholder = is_violation && request.version() != Version::HTTP_2;
            facts.logged = Some(logged);
        }
    }

    /// Sets the access log field `reason` for a response that the gateway generates.
    pub(super) fn log_reason(&self, reason: &'static str) {
        if let Some(notes) = self.notes() {
            notes.fields().reason = Some(reason);
        }
    }

    /// Increments the request metrics and adds the request id to the response. Replaces the body of the response with a
    /// [`RecordedBody`], which writes the access log line when it ends.
    pub(super) fn finish(self, response: Response<ResponseBody>) -> Response<RecordedBody> {
        self.finish_recorded(response, None)
    }

    /// Does the same as [`finish`](Self::finish) for a response that the record of a scenario contains.
    pub(super) fn finish_recorded(
        mut self,
        mut response: Response<ResponseBody>,
        recording: Option<Box<Recording>>,
    ) -> Response<RecordedBody> {
        let facts = self.facts();
        let id = facts.request_id.to_header();
        response.headers_mut().insert(X_REQUEST_ID, id);
        let mut status = response.status();
        if let Some(recording) = &recording {
            let is_aborted = response.body().abort().is_some();
            recording.started((!is_aborted).then_some(status), response.headers());
            if is_aborted {
                status = *NO_RESPONSE;
            }
        }
        self.recorder.count(facts, status);
        let line = if facts.logged.is_some() || recording.is_some() {
            let facts = self.facts.take();
            facts.map(|facts| {
                Box::new(AccessLogLine {
                    facts,
                    status,
                    recording,
                })
            })
        } else {
            // The data is dropped in place, which is faster than moving it out of the option.
            self.facts = None;
            None
        };
        let recorder = Arc::clone(self.recorder);
        response.map(|body| RecordedBody {
            body,
            bytes: 0,
            is_delivered: false,
            has_failed: false,
            recorder,
            line,
        })
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if let Some(facts) = self.facts.take() {
            let status =
                StatusCode::from_u16(CLIENT_CLOSED_REQUEST).expect("499 is a valid status code");
            self.recorder.count(&facts, status);
            let line = AccessLogLine {
                facts,
                status,
                recording: None,
            };
            self.recorder.log(&line, 0, false);
        }
    }
}

impl Recorder {
    pub(super) fn new(policy: &Policy, metrics: Arc<Metrics>, clock: Clock) -> Self {
        let logs_unrouted = policy.log.access;
        Self {
            metrics,
            clock,
            logs_unrouted,
            logs_any: logs_unrouted || policy.routes.iter().any(|route| route.access_log),
        }
    }

    /// Starts recording a request that arrived on a connection from `peer`.
    pub(super) fn begin<'a, B>(
        self: &'a Arc<Self>,
        peer: IpAddr,
        request: &Request<B>,
    ) -> PendingRequest<'a> {
        PendingRequest {
            recorder: self,
            facts: Some(RequestFacts {
                started: self.logs_any.then(|| self.clock.now()),
                peer,
                method: request.method().clone(),
                version: request.version(),
                request_id: RequestId::of(request.headers()),
                client: None,
                route: None,
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
    fn log(&self, line: &AccessLogLine, bytes_out: u64, is_truncated: bool) {
        let AccessLogLine { facts, status, .. } = line;
        let (Some(logged), Some(started)) = (&facts.logged, facts.started) else {
            return;
        };
        let duration = self.clock.now().since(started);
        let arrived = self.clock.wall().checked_sub(duration);
        let is_request = !logged.is_placeholder;
        let host = logged.host.as_ref().and_then(|host| host.to_str().ok());
        let notes = logged.notes.fields();
        let rejected_by = notes.rejected_by.as_ref();
        tracing::info!(
            target: ACCESS_TARGET,
            time = arrived.map(humantime::format_rfc3339_micros).map(tracing::field::display),
            peer = %facts.peer,
            client = facts.client.map(tracing::field::display),
            method = is_request.then_some(&facts.method).map(tracing::field::display),
            host = host.map(Escaped).map(tracing::field::display),
            path = is_request.then(|| tracing::field::display(Escaped(logged.target.path()))),
            protocol = is_request.then_some(facts.version).map(tracing::field::debug),
            route = facts.route.as_ref().map(|route| &*route.name),
            status = status.as_u16(),
            bytes_in = logged.notes.bytes_in(),
            bytes_out,
            duration_us = micros(duration),
            attempts = (notes.attempts > 0).then_some(notes.attempts),
            server = notes.server.as_deref(),
            limits = EvaluatedLimits::of(facts.client, &notes).map(tracing::field::display),
            limit = rejected_by.map(|(limit, _)| &**limit),
            wait_ms = rejected_by.map(|(_, wait)| wait_ms(*wait)),
            idempotency = notes.idempotency.map(KeyUse::as_str),
            reason = notes.reason,
            truncated = is_truncated.then_some(true),
            request_id = %facts.request_id,
            "request"
        );
    }
}

/// Returns the host of a request. It is in `Host` unless the request is rejected before its head is checked. Returns
/// `None` if the request names no host.
fn host_of<B>(request: &Request<B>) -> Option<HeaderValue> {
    let header = request.headers().get(HOST).cloned();
    header.or_else(|| HeaderValue::from_str(request.uri().authority()?.as_str()).ok())
}

/// Returns whether the log filter includes access log lines, which have the level `info`.
fn is_logged() -> bool {
    tracing::enabled!(target: ACCESS_TARGET, tracing::Level::INFO)
}

/// Rate limits that were evaluated for a request. They are displayed as `NAME=KEY`, separated by commas, where `KEY` is
/// the limit key.
struct EvaluatedLimits<'a> {
    client: Option<ClientId>,
    notes: &'a AccessLogFields,
}

impl<'a> EvaluatedLimits<'a> {
    fn of(client: Option<ClientId>, notes: &'a AccessLogFields) -> Option<Self> {
        (!notes.limits.is_empty()).then_some(Self { client, notes })
    }
}

impl fmt::Display for EvaluatedLimits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (limit, counted_by)) in self.notes.limits.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{limit}=")?;
            match (counted_by, self.client) {
                (CountedBy::Client, Some(client)) => write!(f, "{client}")?,
                (CountedBy::Client, None) => f.write_str("client")?,
                (CountedBy::Global, _) => f.write_str("global")?,
                (CountedBy::Hash(hash), _) => write!(f, "{hash:016x}")?,
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

impl http_body::Body for RecordedBody {
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
            Poll::Ready(Some(Err(_))) => self.has_failed = true,
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

impl http1::TrackDelivery for RecordedBody {
    fn delivered(mut self: Pin<&mut Self>) {
        self.is_delivered = true;
    }

    fn abort(&self) -> Option<http1::Abort> {
        self.body.abort()
    }

    fn resets_on_failure(&self) -> bool {
        self.body.resets_on_failure()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        if !self.is_delivered {
            self.recorder.metrics.truncated.inc();
        }
        if let Some(mut line) = self.line.take() {
            if let Some(recording) = &mut line.recording {
                recording.ended(self.end(), self.bytes);
            }
            self.recorder.log(&line, self.bytes, !self.is_delivered);
        }
    }
}

impl RecordedBody {
    /// Returns how the response ended, for the record of a scenario.
    fn end(&self) -> ResponseEnd {
        if self.is_delivered {
            ResponseEnd::Complete
        } else if self.has_failed || self.body.abort().is_some() {
            ResponseEnd::Aborted
        } else {
            ResponseEnd::ClientClosed
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
