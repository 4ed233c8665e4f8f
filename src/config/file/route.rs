//! `[[route]]` and its `idempotency` table.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many};
use super::super::scalar::{
    HeaderText, KeyHeader, KeyedMethod, Label, MethodName, ScopeText, Size, Timeout,
};

/// Route: which requests match, and the upstream, limits and idempotency rule that apply to them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RouteSection {
    /// Unique name of the route, used in metrics and in the access log.
    #[schemars(required)]
    pub(in super::super) name: Option<Located<Label>>,
    /// Regular expressions for the path, anchored at its start and open at its end: one, or a list.
    #[schemars(required)]
    pub(in super::super) path: Option<Many<String>>,
    /// Methods that the route matches: one, or a list. Default: all.
    pub(in super::super) methods: Option<Many<MethodName>>,
    /// Name of the upstream that receives the requests. Optional if there is only one upstream.
    pub(in super::super) upstream: Option<Located<String>>,
    /// Names of the limits that apply, at most 8. All of them must admit a request.
    #[schemars(length(max = 8), extend("default" = []))]
    pub(in super::super) limits: Option<Vec<Located<String>>>,
    /// Tokens that a request takes from each limit.
    #[schemars(range(min = 1), extend("default" = 1))]
    pub(in super::super) cost: Option<Located<u32>>,
    /// Idempotency keys of the route. Without this table, keys are only forwarded.
    pub(in super::super) idempotency: Option<Located<IdempotencySection>>,
    /// Whether requests of the route are written to the access log. Default: `log.access`.
    pub(in super::super) access_log: Option<Located<bool>>,
}

/// Idempotency keys of a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct IdempotencySection {
    /// Whether the gateway handles keys, and whether a request must have one.
    #[schemars(extend("default" = "optional"))]
    pub(in super::super) mode: Option<Located<IdempotencyWord>>,
    /// Methods whose keys the gateway handles: one, or a list. Requests with other methods pass through.
    #[schemars(extend("default" = ["POST", "PATCH"]))]
    pub(in super::super) methods: Option<Many<KeyedMethod>>,
    /// Header that contains the key.
    #[schemars(extend("default" = "Idempotency-Key"))]
    pub(in super::super) header: Option<Located<KeyHeader>>,
    /// Name of a top-level string member of an `application/json` body that can contain the key instead of the header,
    /// such as `idempotency_key` or `requestId`. The gateway then reads such bodies up to `max_request`, also if they
    /// have no key. Default: none.
    pub(in super::super) body_field: Option<Located<Label>>,
    /// What separates the key spaces of callers: `client`, `header:NAME`, `cookie:NAME`, a list of these, or
    /// `shared`. Default: the `Authorization` header if present, else the client.
    pub(in super::super) scope: Option<Many<ScopeText>>,
    /// Time that a response is stored, counted from its completion.
    #[schemars(extend("default" = "24h"))]
    pub(in super::super) ttl: Option<Located<Timeout>>,
    /// What happens to a duplicate while the first request is in flight.
    #[schemars(extend("default" = "wait"))]
    pub(in super::super) in_flight: Option<Located<InFlightWord>>,
    /// With `in_flight = "wait"`: longest wait of a duplicate. After it, the duplicate gets 409.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super) wait_timeout: Option<Located<Timeout>>,
    /// What happens to a response that is a server error: 5xx or 408.
    #[schemars(extend("default" = "replay"))]
    pub(in super::super) on_server_error: Option<Located<OnServerErrorWord>>,
    /// Statuses that mean "not executed": the response is not stored and the key is released. Default: 401, 403,
    /// 425, 429, and 408 or 503 with `Retry-After`.
    #[schemars(inner(range(min = 200, max = 599)))]
    pub(in super::super) release_on: Option<Vec<Located<u16>>>,
    /// What happens to the next request with a key whose outcome is unknown: the first request was sent, and its
    /// response was lost.
    #[schemars(extend("default" = "hold"))]
    pub(in super::super) on_unknown: Option<Located<OnUnknownWord>>,
    /// Maximum size of the body of a request with a key. Larger requests get 413.
    #[schemars(extend("default" = "1MiB", "minimum" = 1))]
    pub(in super::super) max_request: Option<Located<Size>>,
    /// Maximum size of a stored response. For a larger response, duplicates get 409 instead of a replay.
    #[schemars(extend("default" = "1MiB", "minimum" = 1))]
    pub(in super::super) max_response: Option<Located<Size>>,
    /// Response headers that a replay omits.
    #[schemars(extend("default" = []))]
    pub(in super::super) exclude_headers: Option<Vec<Located<HeaderText>>>,
    /// Maximum number of stored keys per scope. Above it, requests with new keys get 429.
    #[schemars(range(min = 1), extend("default" = 100_000))]
    pub(in super::super) max_keys_per_scope: Option<Located<u32>>,
}

/// Whether the gateway handles keys, and whether a request must have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum IdempotencyWord {
    /// Keys are only forwarded.
    Off,
    /// A request can have a key.
    Optional,
    /// A request without a key gets 400.
    Required,
}

/// What happens to a duplicate while the first request is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum InFlightWord {
    /// The duplicate waits for the response to the first request.
    Wait,
    /// The duplicate gets 409 with `Retry-After`.
    Conflict,
}

/// What happens to a response that is a server error: 5xx or 408.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnServerErrorWord {
    /// The response is stored and replayed.
    Replay,
    /// The response is not stored, and the next request with the key is executed.
    Release,
}

/// What happens to the next request with a key whose outcome is unknown.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnUnknownWord {
    /// The request gets 409. It is never executed a second time.
    Hold,
    /// The request is executed. Upstream must handle the key itself.
    Release,
}
