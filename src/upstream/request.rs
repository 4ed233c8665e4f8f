//! Builds the request that is sent to a server, and its copy for retries.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Uri, Version};
use http_body::Body as _;

use super::HostHeader;
use super::body::{UploadProgress, UpstreamBody};
use super::headers::{self, RequestOrigin};
use super::replay_body::ReplayBuffer;
use crate::body::RequestBody;
use crate::buffers::{Buffered, Buffers};
use crate::client::Caller;
use crate::context::Arrival;
use crate::intake::headers::HeaderNames;
use crate::metrics::UpstreamMetrics;

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
    headers: HeaderMap,
    body: CopiedBody,
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
        match max_copy {
            None => {
                let (body, upload) = UpstreamBody::new(body);
                let request = Some(assemble(parts.method, target, parts.headers, body));
                (UpstreamRequest { request, upload }, None)
            }
            Some(cap) => {
                let body = if let Some(bytes) = body.whole() {
                    // This copy does not count towards the limits on bodies in memory. The idempotency stage or
                    // `request_buffer` has already counted the body, or the body shares memory with the request head.
                    CopiedBody::Complete(bytes.clone())
                } else {
                    let client = self.caller.id();
                    let charge = self.buffers.charge(client, Buffered::Retry);
                    CopiedBody::Buffered(ReplayBuffer::new(body, cap, charge))
                };
                let copy = RequestCopy {
                    method: parts.method,
                    target,
                    headers: parts.headers,
                    body,
                };
                let first = copy
                    .to_request()
                    .expect("the copy is complete before it is sent");
                (first, Some(copy))
            }
        }
    }
}

impl RequestCopy {
    /// Creates the request of another attempt. Returns `None` if the copy of the body was dropped.
    pub(super) fn to_request(&self) -> Option<UpstreamRequest> {
        let (body, upload) = match &self.body {
            CopiedBody::Complete(bytes) => UpstreamBody::new(bytes.clone().into()),
            CopiedBody::Buffered(buffer) => UpstreamBody::replaying(buffer.replay()?),
        };
        let (method, target) = (self.method.clone(), self.target.clone());
        let request = Some(assemble(method, target, self.headers.clone(), body));
        Some(UpstreamRequest { request, upload })
    }

    /// Whether the request can be sent again. This is possible unless the copy of its body was dropped.
    pub(super) fn is_complete(&self) -> bool {
        match &self.body {
            CopiedBody::Complete(_) => true,
            CopiedBody::Buffered(buffer) => buffer.is_complete(),
        }
    }
}

fn assemble(
    method: Method,
    target: Uri,
    headers: HeaderMap,
    body: UpstreamBody,
) -> Request<UpstreamBody> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = headers;
    request
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
