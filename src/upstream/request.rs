//! The request that is sent to a server, and its copy for retries.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Uri, Version};
use http_body::Body as _;

use super::HostHeader;
use super::body::{UploadProgress, UpstreamBody};
use super::headers::{self, Provenance};
use super::replay::ReplayBuffer;
use crate::body::RequestBody;
use crate::buffers::{Buffered, Buffers};
use crate::client::Caller;
use crate::context::Arrival;
use crate::intake::headers::HeaderNames;

/// A request that is ready to be sent.
#[derive(Debug)]
pub(super) struct UpstreamRequest {
    /// `None` while it is being sent, and afterwards.
    pub(super) request: Option<Request<UpstreamBody>>,
    /// Progress of its body, if it has one.
    pub(super) upload: Option<Arc<UploadProgress>>,
}

/// The copy of a request, from which it is sent again.
#[derive(Debug)]
pub(super) struct RequestCopy {
    method: Method,
    target: Uri,
    headers: HeaderMap,
    body: CopiedBody,
}

#[derive(Debug)]
enum CopiedBody {
    /// All of it is in memory, or it is empty.
    Whole(Bytes),
    /// It is copied as it passes.
    Buffered(ReplayBuffer),
}

/// Builds the request that is sent from the client's.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBuilder<'a> {
    pub(super) caller: &'a Caller,
    pub(super) arrival: &'a Arrival,
    /// Headers that limits, scopes and keys are read from.
    pub(super) names: &'a HeaderNames,
    pub(super) upgrade: bool,
    /// Bytes of the body that are held for a retry at most, if the request may be retried.
    pub(super) keep: Option<usize>,
    /// Bounds the bodies held in memory.
    pub(super) buffers: &'a Arc<Buffers>,
}

impl RequestBuilder<'_> {
    /// Returns the request to send, and a copy if it may be retried.
    pub(super) fn build(
        self,
        request: Request<RequestBody>,
    ) -> (UpstreamRequest, Option<RequestCopy>) {
        let (mut parts, body) = request.into_parts();
        let provenance = Provenance {
            caller: self.caller,
            forwarded_for: self.arrival.connection.forwarded_for(self.caller),
            host: &self.arrival.host,
            scheme: self.arrival.connection.scheme,
            request_id: &self.arrival.request_id,
        };
        headers::to_upstream(&mut parts.headers, provenance, self.names, self.upgrade);
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            // Explicit, because hyper drops the body of a GET of unknown length.
            parts
                .headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            parts.headers.remove(CONTENT_LENGTH);
        }
        let path = parts.uri.into_parts().path_and_query;
        let target = path.map_or_else(Uri::default, Uri::from);
        // A body with a declared length above the cap is sent once. Other bodies are counted as they pass.
        let declared = body.size_hint().lower();
        let keep = self.keep.filter(|&cap| declared <= cap as u64);
        match keep {
            None => {
                let (body, upload) = UpstreamBody::new(body);
                let request = Some(assemble(parts.method, target, parts.headers, body));
                (UpstreamRequest { request, upload }, None)
            }
            Some(cap) => {
                let body = if let Some(bytes) = body.whole() {
                    // Not charged here: the idempotency stage has charged for it, or it was read with the head and
                    // shares its memory.
                    CopiedBody::Whole(bytes.clone())
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
                    .again()
                    .expect("the copy is complete before it is sent");
                (first, Some(copy))
            }
        }
    }
}

impl RequestCopy {
    /// Returns the request again, unless part of its body was dropped.
    pub(super) fn again(&self) -> Option<UpstreamRequest> {
        let (body, upload) = match &self.body {
            CopiedBody::Whole(bytes) => UpstreamBody::new(bytes.clone().into()),
            CopiedBody::Buffered(kept) => UpstreamBody::replaying(kept.replay()?),
        };
        let (method, target) = (self.method.clone(), self.target.clone());
        let request = Some(assemble(method, target, self.headers.clone(), body));
        Some(UpstreamRequest { request, upload })
    }

    /// Whether the request can be sent again.
    pub(super) fn is_whole(&self) -> bool {
        match &self.body {
            CopiedBody::Whole(_) => true,
            CopiedBody::Buffered(kept) => kept.is_whole(),
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
    pub(super) fn write(&self, headers: &mut HeaderMap, server: &HeaderValue) {
        let host = match self {
            Self::Preserve => return,
            Self::Server => server.clone(),
            Self::Literal(host) => host.clone(),
        };
        headers.insert(HOST, host);
    }
}
