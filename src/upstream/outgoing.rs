//! A request as it is sent, and what it takes to send it once more.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Uri, Version};
use http_body::Body as _;

use super::HostHeader;
use super::headers::{self, Provenance};
use super::replay::Kept;
use super::upload::{Progress, Upload};
use crate::body::RequestBody;
use crate::buffers::{Buffered, Buffers};
use crate::client::Caller;
use crate::context::Arrival;
use crate::intake::headers::HeaderNames;

/// A request ready to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// There unless it is being sent, or was.
    pub(super) request: Option<Request<Upload>>,
    /// The account of its body, where it has one.
    pub(super) upload: Option<Arc<Progress>>,
}

/// What it takes to send a request once more.
#[derive(Debug)]
pub(super) struct Spare {
    method: Method,
    target: Uri,
    headers: HeaderMap,
    body: SpareBody,
}

#[derive(Debug)]
enum SpareBody {
    /// It is here, or there is none.
    Whole(Bytes),
    /// It is kept as it passes.
    Kept(Kept),
}

/// How a request is made ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making<'a> {
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

impl Making<'_> {
    /// Returns the request as it is sent, and a spare one if the request may be retried.
    pub(super) fn make(self, request: Request<RequestBody>) -> (Outgoing, Option<Spare>) {
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
            // Said outright, or hyper would drop the body of a GET whose length is not known.
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
                let (body, upload) = Upload::new(body);
                let request = Some(assemble(parts.method, target, parts.headers, body));
                (Outgoing { request, upload }, None)
            }
            Some(cap) => {
                let body = if let Some(bytes) = body.whole() {
                    // Not charged here: the idempotency stage has charged for it, or it was read with the head and
                    // shares its memory.
                    SpareBody::Whole(bytes.clone())
                } else {
                    let client = self.caller.id();
                    let charge = self.buffers.charge(client, Buffered::Retry);
                    SpareBody::Kept(Kept::new(body, cap, charge))
                };
                let spare = Spare {
                    method: parts.method,
                    target,
                    headers: parts.headers,
                    body,
                };
                let first = spare.again().expect("all of it is here before it is sent");
                (first, Some(spare))
            }
        }
    }
}

impl Spare {
    /// The request once more, unless part of its body is gone.
    pub(super) fn again(&self) -> Option<Outgoing> {
        let (body, upload) = match &self.body {
            SpareBody::Whole(bytes) => Upload::new(bytes.clone().into()),
            SpareBody::Kept(kept) => Upload::replaying(kept.replay()?),
        };
        let (method, target) = (self.method.clone(), self.target.clone());
        let request = Some(assemble(method, target, self.headers.clone(), body));
        Some(Outgoing { request, upload })
    }

    /// Whether it can be sent once more.
    pub(super) fn is_whole(&self) -> bool {
        match &self.body {
            SpareBody::Whole(_) => true,
            SpareBody::Kept(kept) => kept.is_whole(),
        }
    }
}

fn assemble(method: Method, target: Uri, headers: HeaderMap, body: Upload) -> Request<Upload> {
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
