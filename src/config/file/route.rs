//! `[[route]]` of the configuration file, and its `idempotency` table.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many, Setting};
use super::super::scalar::{
    HeaderText, KeyHeader, KeyedMethod, Label, MethodName, ScopeText, Size, Timeout,
};
use crate::idempotency::{OnServerError, OnUnknown};
use crate::request::route::{AmbiguousPaths, PathMode};

/// Which requests match this route, and the upstream, rate limits and idempotency settings that apply to them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteSection {
    /// Unique name of the route, used in metrics and in the access log.
    #[schemars(required, extend("examples" = ["registration"]))]
    pub(crate) name: Option<Located<Label>>,
    /// Regular expression that must match a prefix of the request path, or a list of them. Add `$` to match the whole
    /// path.
    #[schemars(required, extend("examples" = ["/o/client/(register|token|scopes|validate)"]))]
    pub(crate) path: Option<Many<String>>,
    /// Method that the route matches, or a list of methods. Default: all methods.
    #[schemars(extend("examples" = [["POST", "GET"]]))]
    pub(crate) methods: Option<Many<MethodName>>,
    /// What happens to a request if a server can read its path as one of another route, or of no route. Examples of such
    /// paths are `/a/../b` and `/a%2Fb`.
    #[schemars(extend("default" = "reject"))]
    pub(crate) ambiguous_paths: AmbiguousPaths,
    /// Overrides `paths` of `[server]` for this route. Default: that of `[server]`, or `compatible` with
    /// `ambiguous_paths = "allow"`.
    #[schemars(extend("examples" = ["strict"]))]
    pub(crate) paths: Option<Located<PathMode>>,
    /// Name of the upstream that receives the requests. Required only if there are several upstreams.
    #[schemars(extend("examples" = ["api"]))]
    pub(crate) upstream: Option<Located<String>>,
    /// `first_byte_timeout` of the requests of this route, for example for long polls. Default: that of the upstream.
    #[schemars(extend("examples" = ["5m"]))]
    pub(crate) first_byte_timeout: Option<Located<Timeout>>,
    /// `idle_timeout` of the requests of this route. Default: that of the upstream.
    #[schemars(extend("examples" = ["5m"]))]
    pub(crate) idle_timeout: Option<Timeout>,
    /// `timeout` of the requests of this route. Default: that of the upstream.
    #[schemars(extend("examples" = ["10m"]))]
    pub(crate) timeout: Option<Timeout>,
    /// Names of the rate limits that apply, at most 8. A request must be admitted by all of them.
    #[schemars(length(max = 8), extend("default" = []))]
    pub(crate) limits: Vec<Located<String>>,
    /// Number of tokens that a request takes from each rate limit.
    #[schemars(extend("default" = 1))]
    pub(crate) cost: Setting<NonZeroU32>,
    /// How the gateway handles idempotency keys. `{}` uses the defaults. Without this table, keys are only forwarded.
    pub(crate) idempotency: Option<Located<IdempotencySection>>,
    /// Name of a scenario, whose steps respond to the requests of this route before they reach the upstream. The gateway
    /// traces and judges the retries of clients. A route with a scenario needs no upstream.
    #[schemars(extend("examples" = ["flaky"]))]
    pub(crate) scenario: Option<Located<String>>,
    /// Overrides `request_buffer` of `[server]` for this route.
    #[schemars(extend("examples" = [0]))]
    pub(crate) request_buffer: Option<Size>,
    /// Whether requests of the route are written to the access log. Default: `log.access`.
    #[schemars(extend("examples" = [true]))]
    pub(crate) access_log: Option<bool>,
}

/// How the gateway handles the idempotency keys of a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdempotencySection {
    /// Whether the gateway handles idempotency keys, and whether a request must have a key.
    #[schemars(extend("default" = "optional"))]
    pub(crate) mode: Setting<KeyMode>,
    /// Method whose idempotency keys the gateway handles, or a list of methods. Keys of other methods are only
    /// forwarded.
    #[schemars(extend("default" = ["POST", "PATCH"]))]
    pub(crate) methods: Setting<Many<KeyedMethod>>,
    /// Request header that contains the idempotency key.
    #[schemars(extend("default" = "Idempotency-Key"))]
    pub(crate) header: KeyHeader,
    /// Name of a top-level string member of an `application/json` body that can contain the idempotency key instead of
    /// the header, such as `idempotency_key` or `requestId`. With this setting, the gateway buffers every JSON body up
    /// to `max_request`, also if it has no key. A larger body gets 413, and invalid JSON gets 400. Default: none.
    #[schemars(extend("examples" = ["idempotency_key"]))]
    pub(crate) body_field: Option<Located<Label>>,
    /// What identifies a caller: `client`, `header:NAME`, `cookie:NAME`, or a list of these. Equal idempotency keys of
    /// different callers are independent. `shared` means that all callers share their keys. Default: the
    /// `Authorization` header if present, else the client.
    pub(crate) scope: Option<Many<ScopeText>>,
    /// How long a response is stored and replayed, from its completion.
    #[schemars(extend("default" = "24h"))]
    pub(crate) ttl: Timeout,
    /// What happens to a duplicate request (same idempotency key) while the first request is in flight.
    #[schemars(extend("default" = "wait"))]
    pub(crate) in_flight: OnDuplicate,
    /// With `in_flight = "wait"`: how long a duplicate request waits before it gets 409.
    #[schemars(extend("default" = "10s"))]
    pub(crate) wait_timeout: Setting<Timeout>,
    /// What happens to a response of the upstream with status 5xx or 408.
    #[schemars(extend("default" = "replay"))]
    pub(crate) on_server_error: OnServerError,
    /// Statuses of responses that mean "the request was not executed". Such a response is not stored, so the next
    /// request with the same idempotency key is executed. Default: 401, 403, 425, 429, and 408 or 503 with
    /// `Retry-After`.
    #[schemars(inner(range(min = 200, max = 599)), extend("examples" = [[401, 403, 425, 429]]))]
    pub(crate) release_on: Option<Vec<u16>>,
    /// What happens to the next request with the same idempotency key if the outcome of the first request is unknown:
    /// the first request was sent, but its response was lost.
    #[schemars(extend("default" = "hold"))]
    pub(crate) on_unknown: OnUnknown,
    /// Maximum body size of a request with an idempotency key. A request with a larger body gets 413.
    #[schemars(extend("default" = "1MiB", "minimum" = 1))]
    pub(crate) max_request: Setting<Size>,
    /// Maximum size of a stored response. After a larger response, a duplicate request gets 409 instead of a replay.
    #[schemars(extend("default" = "1MiB", "minimum" = 1))]
    pub(crate) max_response: Setting<Size>,
    /// Headers of the stored response that are removed from replayed responses.
    #[schemars(extend("default" = []))]
    pub(crate) exclude_headers: Vec<HeaderText>,
    /// Maximum number of stored idempotency keys of one caller, as identified by `scope`. Above this number, requests
    /// with new keys get 429. Default: no maximum.
    #[schemars(extend("examples" = [100_000]))]
    pub(crate) max_keys_per_scope: Option<NonZeroU32>,
}

/// Whether the gateway handles idempotency keys, and whether a request must have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyMode {
    /// The gateway only forwards idempotency keys.
    Off,
    /// The gateway handles idempotency keys. A request without a key is forwarded as usual.
    Optional,
    /// The gateway handles idempotency keys. A request without a key gets 400.
    Required,
}

/// What happens to a duplicate request (same idempotency key) while the first request is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnDuplicate {
    /// The duplicate request waits for the response to the first request.
    Wait,
    /// The duplicate request gets 409 with `Retry-After`.
    Conflict,
}
