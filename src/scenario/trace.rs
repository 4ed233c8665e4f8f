//! Trace of the requests that a client sent to a route with a scenario, and of their responses.
//!
//! All times are durations since the start of the trace, measured with the clock of the gateway.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version};

use super::step::Step;
use crate::request::client::ClientId;
use crate::request::test_id::TestId;

/// Requests that the gateway observed, in the order of their arrival.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    /// System time at the start of the trace.
    pub(crate) started: SystemTime,
    /// Requests in the order of their arrival.
    pub(crate) attempts: Vec<Attempt>,
    /// Number of requests that are not in the trace, because it was full.
    pub(crate) untraced: u64,
    /// 99th percentile of the delay of the gateway's own timers during the trace.
    pub(crate) timer_delay: Duration,
}

/// One request and its response.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// Client that sent the request.
    pub(crate) client: ClientId,
    /// Number of the client connection. Attempts with the same number used the same connection.
    pub(crate) connection: u64,
    /// HTTP version of the request.
    pub(crate) version: Version,
    /// Method of the request.
    pub(crate) method: Method,
    /// Path and query of the request.
    pub(crate) target: String,
    /// Test that the path named with `/t/ID/`. A test that a header named is in `headers`.
    pub(crate) test: Option<TestId>,
    /// Headers of the request as received. Reports redact credentials.
    pub(crate) headers: HeaderMap,
    /// Value of `Idempotency-Key`, without the quotes of a structured-field string. `None` if there is none.
    pub(crate) key: Option<String>,
    /// Body of the request.
    pub(crate) body: ObservedBody,
    /// Time at which the head of the request was received.
    pub(crate) arrived: Duration,
    /// Step of the scenario that determined the response. `None` if a rate limit rejected the request, or if the
    /// scenario had ended.
    pub(crate) step: Option<Arc<Step>>,
    /// Response of the gateway. `None` while the request is in flight, or if the client disconnected before the
    /// response.
    pub(crate) response: Option<ObservedResponse>,
}

/// Body of a request or response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedBody {
    /// Number of bytes.
    pub(crate) length: u64,
    /// Hash of the bytes. For a body of more than 1 MiB, hash of the first MiB.
    pub(crate) hash: [u8; 32],
    /// Whether the gateway has read neither the whole body nor its first MiB, so that it cannot be compared.
    pub(crate) is_partial: bool,
    /// Content. `None` unless the trace includes secrets.
    pub(crate) content: Option<Bytes>,
}

/// Response to an attempt.
#[derive(Clone, Debug)]
pub(crate) struct ObservedResponse {
    /// Status of the response. `None` if the connection or stream was closed before the status was sent.
    pub(crate) status: Option<StatusCode>,
    /// Headers of the response.
    pub(crate) headers: HeaderMap,
    /// Time at which the gateway started to send the response, or closed the connection.
    pub(crate) started: Duration,
    /// Time at which the last byte was written to the socket, or at which the response was aborted.
    pub(crate) ended: Duration,
    /// How the response ended.
    pub(crate) end: ResponseEnd,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEnd {
    /// The complete response was written to the socket.
    Complete,
    /// The gateway aborted the response, as the scenario demands or because the upstream failed.
    Aborted,
    /// The client closed the connection or the stream before the response was complete.
    ClientClosed,
}
