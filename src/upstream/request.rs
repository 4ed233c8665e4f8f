//! Builds the request that is sent to a server, and its copy for retries.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Uri, Version};
use http_body::Body as _;

use super::HostHeader;
use super::body::{UploadProgress, UpstreamBody};
use super::headers::{self, RequestOrigin};
use super::replay_body::ReplayBuffer;
use crate::metrics::UpstreamMetrics;
use crate::request::body::RequestBody;
use crate::request::buffers::{Buffered, Buffers};
use crate::request::client::Caller;
use crate::request::context::Arrival;
use crate::request::headers::HeaderNames;

/// A request that is ready to be sent to a server.
#[derive(Debug)]
pub(super) struct UpstreamRequest {
    /// The request. `None` while it is being sent and after it was sent.
    pub(super) request: Option<Request<UpstreamBody>>,
    /// Progress of the request body. `None` if the body is empty.
    pub(super) upload: Option<Arc<UploadProgress>>,
}

/// A copy of a request, from which retries create their requests.
#[derive(Debug)]
pub(super) struct RequestCopy {
    method: Method,
    target: Uri,
    /// A list, because most copies are never used, and a `HeaderMap` takes twice as long to copy.
    headers: Vec<(HeaderName, HeaderValue)>,
    body: CopiedBody,
    is_for_retries: bool,
    /// Whether the request is sent once more if a reused connection closes.
    pub(super) is_repeatable: bool,
}

#[derive(Debug)]
enum CopiedBody {
    /// The complete body is in memory. It can be empty.
    Complete(Bytes),
    /// The body is copied while it is forwarded.
    Buffered(ReplayBuffer),
}

/// Converts the request of a client into the request for a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBuilder<'a> {
    pub(super) caller: &'a Caller,
    pub(super) arrival: &'a Arrival,
    /// Names of the headers from which rate limit keys, scopes and idempotency keys are read.
    pub(super) names: &'a HeaderNames,
    pub(super) metrics: &'a UpstreamMetrics,
    pub(super) upgrade: bool,
    /// Maximum size of a body that is copied for retries, in bytes. `None` if the request must not be retried.
    pub(super) max_copy: Option<usize>,
    /// Whether the method alone allows a second execution, and no claim is held.
    pub(super) is_repeatable: bool,
    /// Size limits of the request and response bodies in memory.
    pub(super) buffers: &'a Arc<Buffers>,
}

impl RequestBuilder<'_> {
    /// Returns the request to send. Also returns a copy if the request can be retried.
    pub(super) fn build(
        self,
        request: Request<RequestBody>,
    ) -> (UpstreamRequest, Option<RequestCopy>) {
        let (mut parts, body) = request.into_parts();
        let origin = RequestOrigin {
            caller: self.caller,
            forwarded_for: self.arrival.connection.forwarded_for(self.caller),
            scheme: self.arrival.connection.scheme,
            request_id: &self.arrival.request_id,
        };
        let dropped = headers::to_upstream(&mut parts.headers, origin, self.names, self.upgrade);
        if dropped > 0 {
            self.metrics.headers_dropped.add(dropped);
        }
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            // `Transfer-Encoding` is set explicitly, because hyper drops the body of a GET request if its length is
            // unknown.
            parts
                .headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            parts.headers.remove(CONTENT_LENGTH);
        }
        let path = parts.uri.into_parts().path_and_query;
        let target = path.map_or_else(Uri::default, Uri::from);
        // A body with a declared length above `max_copy` is not copied. The length of other bodies is checked while
        // they are copied.
        let declared = body.size_hint().lower();
        let max_copy = self.max_copy.filter(|&cap| declared <= cap as u64);
        let is_whole = body.whole().is_some();
        let (body, copied) = match (body.whole(), max_copy) {
            // This copy does not count towards the limits on bodies in memory. The idempotency stage or `request_buffer`
            // has already counted the body, or the body shares memory with the request head.
            (Some(bytes), _) if max_copy.is_some() || self.is_repeatable => {
                let copied = CopiedBody::Complete(bytes.clone());
                (UpstreamBody::new(body), Some(copied))
            }
            (None, Some(cap)) => {
                let charge = self.buffers.charge(self.caller.id(), Buffered::Retry);
                let buffer = ReplayBuffer::new(body, cap, charge);
                let first = buffer
                    .replay()
                    .expect("nothing was dropped from a new buffer");
                (
                    UpstreamBody::replaying(first),
                    Some(CopiedBody::Buffered(buffer)),
                )
            }
            _ => (UpstreamBody::new(body), None),
        };
        let copy = copied.map(|body| RequestCopy {
            method: parts.method.clone(),
            target: target.clone(),
            headers: (parts.headers.iter())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            body,
            is_for_retries: max_copy.is_some(),
            is_repeatable: self.is_repeatable && is_whole,
        });
        let request = UpstreamRequest::new(parts.method, target, parts.headers, body);
        (request, copy)
    }
}

impl RequestCopy {
    /// Creates the request of another attempt. Returns `None` if the copy of the body was dropped.
    pub(super) fn to_request(&self) -> Option<UpstreamRequest> {
        let body = match &self.body {
            CopiedBody::Complete(bytes) => UpstreamBody::new(bytes.clone().into()),
            CopiedBody::Buffered(buffer) => UpstreamBody::replaying(buffer.replay()?),
        };
        let (method, target) = (self.method.clone(), self.target.clone());
        let headers = self.headers.iter().cloned().collect();
        Some(UpstreamRequest::new(method, target, headers, body))
    }

    /// Whether the retry policy can send the request again. This is possible unless the copy of its body was dropped.
    pub(super) fn is_ready_for_retry(&self) -> bool {
        self.is_for_retries
            && match &self.body {
                CopiedBody::Complete(_) => true,
                CopiedBody::Buffered(buffer) => buffer.is_complete(),
            }
    }
}

impl UpstreamRequest {
    fn new(method: Method, target: Uri, headers: HeaderMap, body: UpstreamBody) -> Self {
        let upload = body.progress().cloned();
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = target;
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = headers;
        let request = Some(request);
        Self { request, upload }
    }
}

impl HostHeader {
    /// Returns the setting for a request with these headers. A request without `Host` gets the host of the server,
    /// because HTTP/1.1 requires a host and there is none to preserve.
    pub(super) fn for_request(&self, headers: &HeaderMap) -> &Self {
        match self {
            Self::Preserve if !headers.contains_key(HOST) => &Self::Server,
            setting => setting,
        }
    }

    pub(super) fn write(&self, headers: &mut HeaderMap, server: &HeaderValue) {
        let host = match self {
            Self::Preserve => return,
            Self::Server => server.clone(),
            Self::Literal(host) => host.clone(),
        };
        headers.insert(HOST, host);
    }
}
