//! Builds the request that is sent to a server, and its copy for retries.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Uri, Version};
use http_body::Body as _;

use super::HostHeader;
use super::body::{UploadProgress, UpstreamBody};
use super::headers;
use super::replay_body::ReplayBuffer;
use crate::metrics::UpstreamMetrics;
use crate::request::body::RequestBody;
use crate::request::buffers::{Buffered, Buffers};
use crate::request::client::Caller;
use crate::request::context::Arrival;
use crate::request::headers::HeaderNames;

#[derive(Debug)]
pub(super) struct UpstreamRequest {
    /// `None` while it is being sent and after it was sent.
    pub(super) request: Option<Request<UpstreamBody>>,
    /// `None` if the body is empty.
    pub(super) upload: Option<Arc<UploadProgress>>,
}

#[derive(Debug)]
pub(super) struct RequestCopy {
    method: Method,
    target: Uri,
    /// A `HeaderMap` takes twice as long to copy, and most copies are never used.
    headers: Vec<(HeaderName, HeaderValue)>,
    body: CopiedBody,
    is_for_retries: bool,
    /// For when a reused connection closes.
    pub(super) is_repeatable: bool,
}

#[derive(Debug)]
enum CopiedBody {
    Complete(Bytes),
    Buffered(ReplayBuffer),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBuilder<'a> {
    pub(super) caller: &'a Caller,
    pub(super) arrival: &'a Arrival,
    pub(super) names: &'a HeaderNames,
    pub(super) metrics: &'a UpstreamMetrics,
    pub(super) upgrade: bool,
    /// In bytes. `None` if the request must not be retried.
    pub(super) max_copy: Option<usize>,
    /// The method alone allows a second execution, and no claim is held.
    pub(super) is_repeatable: bool,
    pub(super) buffers: &'a Arc<Buffers>,
}

impl RequestBuilder<'_> {
    pub(super) fn build(
        self,
        request: Request<RequestBody>,
    ) -> (UpstreamRequest, Option<RequestCopy>) {
        let (mut parts, body) = request.into_parts();
        let headers = &mut parts.headers;
        let dropped =
            headers::to_upstream(headers, self.caller, self.arrival, self.names, self.upgrade);
        if dropped > 0 {
            self.metrics.headers_dropped.add(dropped);
        }
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            // hyper drops the body of a GET request if its length is unknown and this header is absent.
            parts
                .headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            parts.headers.remove(CONTENT_LENGTH);
        }
        let path = parts.uri.into_parts().path_and_query;
        let target = path.map_or_else(Uri::default, Uri::from);
        // The length of a body without a declared length is checked while it is copied.
        let declared = body.size_hint().lower();
        let max_copy = self.max_copy.filter(|&cap| declared <= cap as u64);
        let is_whole = body.whole().is_some();
        let (body, copied) = match (body.whole(), max_copy) {
            // Not counted towards the limits on bodies in memory: the idempotency stage or `request_buffer` has counted
            // the body, or it shares memory with the request head.
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
    /// `None` if the copy of the body was dropped.
    pub(super) fn to_request(&self) -> Option<UpstreamRequest> {
        let body = match &self.body {
            CopiedBody::Complete(bytes) => UpstreamBody::new(bytes.clone().into()),
            CopiedBody::Buffered(buffer) => UpstreamBody::replaying(buffer.replay()?),
        };
        let (method, target) = (self.method.clone(), self.target.clone());
        let headers = self.headers.iter().cloned().collect();
        Some(UpstreamRequest::new(method, target, headers, body))
    }

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
    /// HTTP/1.1 requires a host. A request without `Host` has none to preserve.
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
