//! Trace of the requests to a route with a scenario, and of their responses.
//!
//! All times are durations since the start of the trace, measured with the clock of the gateway.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version};

use super::step::Step;
use crate::request::client::ClientId;
use crate::request::test_id::TestId;

#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) started: SystemTime,
    pub(crate) attempts: Vec<Attempt>,
    /// Requests that are not in the trace, because it was full.
    pub(crate) untraced: u64,
    pub(crate) timer_delay: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) client: ClientId,
    /// Attempts with the same number used the same connection.
    pub(crate) connection: u64,
    pub(crate) version: Version,
    pub(crate) method: Method,
    pub(crate) target: String,
    /// Test that the path named with `/t/ID/`. A test that a header named is in `headers`.
    pub(crate) test: Option<TestId>,
    /// As received. Reports redact credentials.
    pub(crate) headers: HeaderMap,
    /// Without the quotes of a structured-field string.
    pub(crate) key: Option<String>,
    pub(crate) body: ObservedBody,
    /// When the head was received.
    pub(crate) arrived: Duration,
    /// `None` if a rate limit rejected the request, or if the scenario had ended.
    pub(crate) step: Option<Arc<Step>>,
    /// `None` while the request is in flight, or if the client disconnected before the response.
    pub(crate) response: Option<ObservedResponse>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedBody {
    pub(crate) length: u64,
    /// For a body of more than 1 MiB, hash of the first MiB.
    pub(crate) hash: [u8; 32],
    /// Whether the gateway has read neither the whole body nor its first MiB, so that it cannot be compared.
    pub(crate) is_partial: bool,
    /// `None` unless the trace includes secrets.
    pub(crate) content: Option<Bytes>,
}

#[derive(Clone, Debug)]
pub(crate) struct ObservedResponse {
    /// `None` if the connection or stream was closed before the status was sent.
    pub(crate) status: Option<StatusCode>,
    pub(crate) headers: HeaderMap,
    /// When the gateway started to send the response, or closed the connection.
    pub(crate) started: Duration,
    /// When the last byte was written to the socket, or the response was aborted.
    pub(crate) ended: Duration,
    pub(crate) end: ResponseEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEnd {
    Complete,
    /// The gateway aborted the response, as the scenario demands or because the upstream failed.
    Aborted,
    /// The client closed the connection or the stream before the response was complete.
    ClientClosed,
}
