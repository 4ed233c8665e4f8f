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
use http::{HeaderValue, Method, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};

use super::Answered;
use crate::access_log::{CountedBy, Escaped, Facts, KeyUse, Notes};
use crate::admin::Metrics;
use crate::client::ClientId;
use crate::clock::{Clock, Moment};
use crate::config::Policy;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::respond::Rejection;
use crate::respond::body::BodyError;
use crate::route::RouteId;
use crate::wire;

/// Status under which a request is recorded whose client disconnected before the response, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Counts the requests of one worker and writes their lines of the access log.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) policy: Arc<Policy>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// A request in progress.
pub(super) struct Seen {
    /// When it arrived, if any request is logged.
    pub(super) started: Option<Moment>,
    pub(super) peer: IpAddr,
    pub(super) method: Method,
    pub(super) version: Version,
    pub(super) request_id: RequestId,
    pub(super) client: Option<ClientId>,
    pub(super) route: Option<RouteId>,
    /// Boxed, because a request in progress is moved often.
    pub(super) logged: Option<Box<Logged>>,
}

/// What only a logged request keeps.
pub(super) struct Logged {
    pub(super) target: Uri,
    pub(super) host: Option<HeaderValue>,
    /// Whether what arrived is not a request: its method, target and version are not known.
    pub(super) is_placeholder: bool,
    pub(super) notes: Arc<Notes>,
}

/// A request without a response. If it is dropped in this state, it is recorded with the status 499: the client
/// disconnected, or the gateway shut down at the end of its grace period.
pub(super) struct PendingRequest<'a> {
    pub(super) recorder: &'a Arc<Recorder>,
    pub(super) seen: Option<Seen>,
}

/// The body of a response to a client. It counts the response as truncated if it is dropped before the last byte is
/// sent.
#[derive(Debug)]
pub struct ResponseBody {
    body: Answered,
    bytes: u64,
    is_delivered: bool,
    recorder: Arc<Recorder>,
    /// The line that is due at the end. Boxed, because a response is moved often.
    line: Option<Box<Line>>,
}

/// A line of the access log that lacks only how the response ended.
struct Line {
    seen: Seen,
    status: StatusCode,
}

impl Logged {
    /// A request for `target` at `host`.
    pub(super) fn new(target: &Uri, host: Option<HeaderValue>) -> Box<Self> {
        Box::new(Self {
            target: target.clone(),
            host,
            is_placeholder: false,
            notes: Arc::default(),
        })
    }

    /// Notes the response that the gateway makes for `rejection`.
    pub(super) fn reject(&self, rejection: &Rejection) {
        self.notes.facts().reason = Some(rejection.kind());
    }
}

impl PendingRequest<'_> {
    /// Counts the request, and gives its response the request id and a body that records the end.
    pub(super) fn finish(mut self, mut response: Response<Answered>) -> Response<ResponseBody> {
        let seen = self.seen.as_ref().expect("a request is finished once");
        let id = seen.request_id.to_header();
        response.headers_mut().insert(X_REQUEST_ID, id);
        let status = response.status();
        self.recorder.count(seen, status);
        let line = if seen.logged.is_some() {
            let seen = self.seen.take();
            seen.map(|seen| Box::new(Line { seen, status }))
        } else {
            // Dropped in place, because a move costs more.
            self.seen = None;
            None
        };
        let recorder = Arc::clone(self.recorder);
        response.map(|body| ResponseBody {
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
        if let Some(seen) = self.seen.take() {
            let status = StatusCode::from_u16(CLIENT_CLOSED_REQUEST).expect("three digits");
            self.recorder.count(&seen, status);
            self.recorder.log(&Line { seen, status }, 0, false);
        }
    }
}

impl Recorder {
    fn count(&self, seen: &Seen, status: StatusCode) {
        self.metrics.route(seen.route).answered(status);
    }

    /// Writes a line of the access log.
    fn log(&self, line: &Line, bytes_out: u64, is_truncated: bool) {
        let Line { seen, status } = line;
        let (Some(logged), Some(started)) = (&seen.logged, seen.started) else {
            return;
        };
        let duration = self.clock.now().since(started);
        let arrived = self.clock.wall().checked_sub(duration);
        let is_request = !logged.is_placeholder;
        let host = logged.host.as_ref().and_then(|host| host.to_str().ok());
        let route = seen.route.and_then(|id| self.policy.routes.get(id));
        let facts = logged.notes.facts();
        let rejected_by = facts.rejected_by.map(|(limit, wait)| {
            let limit = &self.policy.limits[usize::from(limit.0)];
            (&*limit.name, wait_ms(wait))
        });
        tracing::info!(
            target: "tidegate::access",
            time = arrived.map(humantime::format_rfc3339_micros).map(tracing::field::display),
            peer = %seen.peer,
            client = seen.client.map(tracing::field::display),
            method = is_request.then_some(&seen.method).map(tracing::field::display),
            host = host.map(Escaped).map(tracing::field::display),
            path = is_request.then(|| tracing::field::display(Escaped(logged.target.path()))),
            protocol = is_request.then_some(seen.version).map(tracing::field::debug),
            route = route.map(|route| &*route.name),
            status = status.as_u16(),
            bytes_in = logged.notes.bytes_in(),
            bytes_out,
            duration_us = micros(duration),
            attempts = (facts.attempts > 0).then_some(facts.attempts),
            server = facts.server.as_deref(),
            limits = Counted::of(self, seen, &facts).map(tracing::field::display),
            limit = rejected_by.map(|(limit, _)| limit),
            wait_ms = rejected_by.map(|(_, wait)| wait),
            idempotency = facts.idempotency.map(KeyUse::as_str),
            reason = facts.reason,
            truncated = is_truncated.then_some(true),
            request_id = %seen.request_id,
            "request"
        );
    }
}

/// The evaluated limits, as `NAME=KEY` separated by commas.
struct Counted<'a> {
    recorder: &'a Recorder,
    client: Option<ClientId>,
    facts: &'a Facts,
}

impl<'a> Counted<'a> {
    fn of(recorder: &'a Recorder, seen: &Seen, facts: &'a Facts) -> Option<Self> {
        (!facts.limits.is_empty()).then_some(Self {
            recorder,
            client: seen.client,
            facts,
        })
    }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (limit, counted_by)) in self.facts.limits.iter().enumerate() {
            let limit = &self.recorder.policy.limits[usize::from(limit.0)];
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{}=", limit.name)?;
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

impl http_body::Body for ResponseBody {
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

impl wire::ResponseBody for ResponseBody {
    fn delivered(mut self: Pin<&mut Self>) {
        self.is_delivered = true;
    }
}

impl Drop for ResponseBody {
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
