//! Counting and logging of requests.
//!
//! A request is counted when its response begins, and its line of the access log is written when the response ends:
//! only then are its size and duration known, and whether the client's socket took its last byte.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};

use super::rule::RouteRule;
use crate::access_log::{CountedBy, Escaped, Facts, KeyUse, Notes};
use crate::body::{BodyError, ResponseBody};
use crate::client::ClientId;
use crate::clock::{Clock, Moment};
use crate::config::Policy;
use crate::http1;
use crate::metrics::Metrics;
use crate::request_id::{RequestId, X_REQUEST_ID};

/// Status under which a request is recorded whose client disconnected before the response, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Counts the requests of one worker and writes their lines of the access log.
#[derive(Debug)]
pub(super) struct Recorder {
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Whether requests without a route are logged.
    logs_unrouted: bool,
    /// Whether any request is logged.
    logs_any: bool,
}

/// A request without a response. If it is dropped in this state, it is recorded with the status 499: the client
/// disconnected, or the gateway shut down at the end of its grace period.
pub(super) struct PendingRequest<'a> {
    recorder: &'a Arc<Recorder>,
    /// `None` once the request is finished.
    facts: Option<RequestFacts>,
}

/// What is recorded of a request.
struct RequestFacts {
    /// When it arrived, if any request is logged.
    started: Option<Moment>,
    peer: IpAddr,
    method: Method,
    version: Version,
    request_id: RequestId,
    client: Option<ClientId>,
    route: Option<Arc<RouteRule>>,
    /// Boxed, because the facts are moved often.
    logged: Option<Box<Logged>>,
}

/// Facts of a logged request only.
struct Logged {
    target: Uri,
    host: Option<HeaderValue>,
    /// Whether what arrived is not a request: its method, target and version are not known.
    is_placeholder: bool,
    notes: Arc<Notes>,
}

/// The body of a response to a client. It counts the response as truncated if it is dropped before the last byte is
/// sent.
#[derive(Debug)]
pub(crate) struct RecordedBody {
    body: ResponseBody,
    bytes: u64,
    is_delivered: bool,
    recorder: Arc<Recorder>,
    /// The line that is due at the end. Boxed, because a response is moved often.
    line: Option<Box<Line>>,
}

/// A line of the access log that lacks only how the response ended.
struct Line {
    facts: RequestFacts,
    status: StatusCode,
}

impl Logged {
    fn new(target: &Uri, host: Option<HeaderValue>) -> Box<Self> {
        Box::new(Self {
            target: target.clone(),
            host,
            is_placeholder: false,
            notes: Arc::default(),
        })
    }
}

impl PendingRequest<'_> {
    fn facts(&self) -> &RequestFacts {
        self.facts.as_ref().expect("present until it is finished")
    }

    fn facts_mut(&mut self) -> &mut RequestFacts {
        self.facts.as_mut().expect("present until it is finished")
    }

    /// Returns the notes for the access log, if the request is logged.
    pub(super) fn notes(&self) -> Option<&Arc<Notes>> {
        self.facts().logged.as_ref().map(|logged| &logged.notes)
    }

    pub(super) fn request_id(&self) -> &RequestId {
        &self.facts().request_id
    }

    pub(super) fn set_client(&mut self, client: ClientId) {
        self.facts_mut().client = Some(client);
    }

    /// Sets the route, and begins a line of the access log if the route has one.
    pub(super) fn set_route(&mut self, route: &Arc<RouteRule>, target: &Uri, host: &HeaderValue) {
        let facts = self.facts_mut();
        facts.route = Some(Arc::clone(route));
        if route.access_log && is_logged() {
            facts.logged = Some(Logged::new(target, Some(host.clone())));
        }
    }

    /// Begins a line of the access log for a request that is rejected before its route is known.
    pub(super) fn log_rejected<B>(&mut self, request: &Request<B>, is_violation: bool) {
        let logs = self.recorder.logs_unrouted;
        let facts = self.facts_mut();
        if facts.route.is_none() && logs && is_logged() {
            let mut logged = Logged::new(request.uri(), host_of(request));
            // On HTTP/2 a violation follows a valid head.
            logged.is_placeholder = is_violation && request.version() != Version::HTTP_2;
            facts.logged = Some(logged);
        }
    }

    /// Notes why the gateway makes the response.
    pub(super) fn log_reason(&self, reason: &'static str) {
        if let Some(notes) = self.notes() {
            notes.facts().reason = Some(reason);
        }
    }

    /// Counts the request, and gives its response the request id and a body that records the end.
    pub(super) fn finish(mut self, mut response: Response<ResponseBody>) -> Response<RecordedBody> {
        let facts = self.facts();
        let id = facts.request_id.to_header();
        response.headers_mut().insert(X_REQUEST_ID, id);
        let status = response.status();
        self.recorder.count(facts, status);
        let line = if facts.logged.is_some() {
            let facts = self.facts.take();
            facts.map(|facts| Box::new(Line { facts, status }))
        } else {
            // Dropped in place, because a move costs more.
            self.facts = None;
            None
        };
        let recorder = Arc::clone(self.recorder);
        response.map(|body| RecordedBody {
            body,
            bytes: 0,
            is_delivered: false,
            recorder,
            line,
        })
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if let Some(facts) = self.facts.take() {
            let status = StatusCode::from_u16(CLIENT_CLOSED_REQUEST).expect("three digits");
            self.recorder.count(&facts, status);
            self.recorder.log(&Line { facts, status }, 0, false);
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

    /// Begins the record of a request from `peer`.
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

    /// Writes a line of the access log.
    fn log(&self, line: &Line, bytes_out: u64, is_truncated: bool) {
        let Line { facts, status } = line;
        let (Some(logged), Some(started)) = (&facts.logged, facts.started) else {
            return;
        };
        let duration = self.clock.now().since(started);
        let arrived = self.clock.wall().checked_sub(duration);
        let is_request = !logged.is_placeholder;
        let host = logged.host.as_ref().and_then(|host| host.to_str().ok());
        let notes = logged.notes.facts();
        let rejected_by = notes.rejected_by.as_ref();
        tracing::info!(
            target: "tidegate::access",
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
            limits = Counted::of(facts.client, &notes).map(tracing::field::display),
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

/// Returns the host of a request that was not checked.
fn host_of<B>(request: &Request<B>) -> Option<HeaderValue> {
    let header = request.headers().get(HOST).cloned();
    header.or_else(|| HeaderValue::from_str(request.uri().authority()?.as_str()).ok())
}

/// Whether lines of the access log are written at all.
fn is_logged() -> bool {
    tracing::enabled!(target: "tidegate::access", tracing::Level::INFO)
}

/// The evaluated limits, as `NAME=KEY` separated by commas.
struct Counted<'a> {
    client: Option<ClientId>,
    notes: &'a Facts,
}

impl<'a> Counted<'a> {
    fn of(client: Option<ClientId>, notes: &'a Facts) -> Option<Self> {
        (!notes.limits.is_empty()).then_some(Self { client, notes })
    }
}

impl fmt::Display for Counted<'_> {
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

/// Returns a duration as 64 bits, which every reader of JSON accepts as a number.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a wait in milliseconds, rounded up.
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
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.bytes += data.len() as u64;
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

impl http1::ResponseBody for RecordedBody {
    fn delivered(mut self: Pin<&mut Self>) {
        self.is_delivered = true;
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        if !self.is_delivered {
            self.recorder.metrics.truncated.inc();
        }
        if let Some(line) = self.line.take() {
            self.recorder.log(&line, self.bytes, !self.is_delivered);
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
