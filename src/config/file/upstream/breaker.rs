//! `[upstream.NAME.breaker]` of the configuration file.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::super::super::located::Located;
use super::super::super::scalar::{FailuresWord, MediaType, OpenTime, Window};

/// Circuit breaker of each server. With this table, the following are failures: connect failures, first-byte
/// timeouts, lost connections and the statuses in `failures`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct BreakerSection {
    /// Whether the circuit breaker is on. If `false`, no failure stops requests to a server.
    #[schemars(extend("default" = true))]
    pub(in super::super::super) enabled: Option<Located<bool>>,
    /// Number of consecutive failures of a server that opens its circuit.
    #[schemars(range(min = 1), extend("default" = 5))]
    pub(in super::super::super) consecutive_failures: Option<Located<u32>>,
    /// Statuses of responses that are failures, or `"5xx"` for all from 500 to 599. Timeouts and lost connections are
    /// always failures.
    #[schemars(extend("default" = [502, 503, 504]))]
    pub(in super::super::super) failures: Option<FailuresEntry>,
    /// Fraction of failed requests within `window` that opens the circuit of a server.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0, "default" = 0.5))]
    pub(in super::super::super) failure_ratio: Option<Located<f64>>,
    /// Period over which `failure_ratio` is computed.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super::super) window: Option<Located<Window>>,
    /// Minimum number of requests within `window` for `failure_ratio` to apply.
    #[schemars(range(min = 1), extend("default" = 20))]
    pub(in super::super::super) min_requests: Option<Located<u32>>,
    /// How long the circuit stays open before a probe request is sent to the server. Each failed probe doubles this
    /// time.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super::super) open: Option<Located<OpenTime>>,
    /// Maximum time that the circuit stays open before the next probe request.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super::super) open_max: Option<Located<OpenTime>>,
    /// Body of the 503 response while the circuits of all servers are open. Default: a problem document (RFC 9457).
    pub(in super::super::super) fallback: Option<FallbackTable>,
}

/// Body of the 503 response while the circuits of all servers are open.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct FallbackTable {
    /// Text of the body.
    #[schemars(required)]
    pub(in super::super::super) body: Option<Located<String>>,
    /// Media type of the body.
    #[schemars(extend("default" = "text/plain; charset=utf-8"))]
    pub(in super::super::super) content_type: Option<Located<MediaType>>,
}

/// Statuses of responses that are failures of a server.
///
/// `Deserialize` is implemented manually, because serde's untagged enums lose the source location of errors.
#[derive(Debug)]
pub(in super::super::super) enum FailuresEntry {
    /// `"5xx"`: all statuses from 500 to 599.
    All,
    /// The listed statuses.
    Statuses(Vec<u16>),
}

impl JsonSchema for FailuresEntry {
    fn schema_name() -> Cow<'static, str> {
        "FailuresEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {
                    "type": "array",
                    "items": { "type": "integer", "minimum": 500, "maximum": 599 },
                    "examples": [[502, 503, 504]],
                },
                FailuresWord::json_schema(generator),
            ]
        })
    }
}

impl<'de> Deserialize<'de> for FailuresEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FailuresVisitor;

        impl<'de> Visitor<'de> for FailuresVisitor {
            type Value = FailuresEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"5xx\" or a list of statuses")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let FailuresWord = text.parse().map_err(E::custom)?;
                Ok(FailuresEntry::All)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                let statuses = Vec::deserialize(SeqAccessDeserializer::new(seq))?;
                Ok(FailuresEntry::Statuses(statuses))
            }
        }

        deserializer.deserialize_any(FailuresVisitor)
    }
}
