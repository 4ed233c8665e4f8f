//! `[[route]]`, and `idempotency` in it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many};
use super::super::scalar::{
    HeaderText, KeyHeader, KeyedMethod, Label, MethodName, ScopeText, Size, Timeout,
};

/// Which requests are taken, and what is done with them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RouteSection {
    /// Its name, also in metrics.
    #[schemars(required)]
    pub(in super::super) name: Option<Located<Label>>,
    /// Regular expressions over the path, anchored at its start and open at its end.
    #[schemars(required)]
    pub(in super::super) path: Option<Many<String>>,
    /// Methods taken: one, or a list. Default: all.
    pub(in super::super) methods: Option<Many<MethodName>>,
    /// Where requests go. May be left out where there is only one upstream.
    pub(in super::super) upstream: Option<Located<String>>,
    /// Limits that must all admit a request.
    #[schemars(length(max = 8), extend("default" = []))]
    pub(in super::super) limits: Option<Vec<Located<String>>>,
    /// Tokens a request takes from each limit.
    #[schemars(range(min = 1), extend("default" = 1))]
    pub(in super::super) cost: Option<Located<u32>>,
    /// What its idempotency keys mean. Without this table they are only forwarded.
    pub(in super::super) idempotency: Option<Located<IdempotencySection>>,
    /// Whether its requests are logged. Default: `log.access`.
    pub(in super::super) access_log: Option<Located<bool>>,
}

/// What a route's idempotency keys mean.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct IdempotencySection {
    /// Whether keys are looked at, and whether a request must have one.
    #[schemars(extend("default" = "optional"))]
    pub(in super::super) mode: Option<Located<IdempotencyWord>>,
    /// Methods whose keys are looked at: one, or a list. Others pass.
    #[schemars(extend("default" = ["POST", "PATCH"]))]
    pub(in super::super) methods: Option<Many<KeyedMethod>>,
    /// The header that contains the key.
    #[schemars(extend("default" = "Idempotency-Key"))]
    pub(in super::super) header: Option<Located<KeyHeader>>,
    /// Name of a top-level string member of an `application/json` body that can contain the key instead of the header,
    /// such as `idempotency_key` or `requestId`. The gateway then reads such bodies up to `max_request`, also without
    /// a key. Default: none.
    pub(in super::super) body_field: Option<Located<Label>>,
    /// What separates the key spaces of callers: `client`, `header:NAME`, `cookie:NAME`, a list of these, or
    /// `shared`. Default: the `Authorization` header if present, else the client.
    pub(in super::super) scope: Option<Many<ScopeText>>,
    /// How long an answer is remembered, from the moment it is there.
    #[schemars(extend("default" = "24h"))]
    pub(in super::super) ttl: Option<Located<Timeout>>,
    /// What happens to a duplicate while the first runs.
    #[schemars(extend("default" = "wait"))]
    pub(in super::super) in_flight: Option<Located<InFlightWord>>,
    /// With `wait`: the longest a duplicate waits for the first.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super) wait_timeout: Option<Located<Timeout>>,
    /// What happens to an answer that is a server error.
    #[schemars(extend("default" = "replay"))]
    pub(in super::super) on_server_error: Option<Located<OnServerErrorWord>>,
    /// Statuses that mean "not executed": the response is not stored and the key is released. Default: 401, 403,
    /// 425, 429, and 408 or 503 with `Retry-After`.
    #[schemars(inner(range(min = 200, max = 599)))]
    pub(in super::super) release_on: Option<Vec<Located<u16>>>,
    /// What a request that was sent and whose answer was lost means for the next one of its key.
    #[schemars(extend("default" = "hold"))]
    pub(in super::super) on_unknown: Option<Located<OnUnknownWord>>,
    /// Bytes of the largest request that can have a key.
    #[schemars(extend("default" = "1MiB", "minimum" = 1))]
    pub(in super::super) max_request: Option<Located<Size>>,
    /// Bytes of the largest answer that is kept.
    #[schemars(extend("default" = "1MiB", "minimum" = 1))]
    pub(in super::super) max_response: Option<Located<Size>>,
    /// Headers of an answer that a replay leaves out.
    #[schemars(extend("default" = []))]
    pub(in super::super) exclude_headers: Option<Vec<Located<HeaderText>>>,
    /// Keys one scope may have at once.
    #[schemars(range(min = 1), extend("default" = 100_000))]
    pub(in super::super) max_keys_per_scope: Option<Located<u32>>,
}

/// Whether keys are looked at, and whether a request must have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum IdempotencyWord {
    /// Keys are only forwarded.
    Off,
    /// A request may have one.
    Optional,
    /// A request must have one.
    Required,
}

/// What happens to a duplicate while the first runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum InFlightWord {
    /// It waits for the answer of the first.
    Wait,
    /// It is told to come back.
    Conflict,
}

/// What happens to an answer that is a server error.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnServerErrorWord {
    /// It is kept like any other.
    Replay,
    /// It is not kept, and the next request runs again.
    Release,
}

/// What a request whose outcome is not known means for the next one of its key.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnUnknownWord {
    /// That one is refused: never a second execution.
    Hold,
    /// That one runs: upstream understands the key itself.
    Release,
}
