//! `breaker` of an upstream.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::super::super::located::Located;
use super::super::super::scalar::{FailuresWord, MediaType, OpenTime, Window};

/// What opens the circuit of a server. With this table, all failures count: connect failures, first-byte
/// timeouts, lost connections and the statuses in `failures`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct BreakerSection {
    /// Whether circuits open at all.
    #[schemars(extend("default" = true))]
    pub(in super::super::super) enabled: Option<Located<bool>>,
    /// Failures in a row that open the circuit.
    #[schemars(range(min = 1), extend("default" = 5))]
    pub(in super::super::super) consecutive_failures: Option<Located<u32>>,
    /// Statuses that are failures, or `"5xx"` for all of 500 to 599. Timeouts and lost connections are failures,
    /// too.
    #[schemars(extend("default" = [502, 503, 504]))]
    pub(in super::super::super) failures: Option<FailuresEntry>,
    /// Part of the requests in `window` that opens the circuit if they fail.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0, "default" = 0.5))]
    pub(in super::super::super) failure_ratio: Option<Located<f64>>,
    /// Time over which that part is counted.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super::super) window: Option<Located<Window>>,
    /// Requests in `window` below which `failure_ratio` does not apply.
    #[schemars(range(min = 1), extend("default" = 20))]
    pub(in super::super::super) min_requests: Option<Located<u32>>,
    /// First open time. Each failed probe doubles it.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super::super) open: Option<Located<OpenTime>>,
    /// Longest open time.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super::super) open_max: Option<Located<OpenTime>>,
    /// Body of the 503 while the circuits of all servers are open. Default: a problem document.
    pub(in super::super::super) fallback: Option<FallbackTable>,
}

/// Body of the 503 while the circuits of all servers are open.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct FallbackTable {
    /// The text.
    #[schemars(required)]
    pub(in super::super::super) body: Option<Located<String>>,
    /// Its media type.
    #[schemars(extend("default" = "text/plain; charset=utf-8"))]
    pub(in super::super::super) content_type: Option<Located<MediaType>>,
}

/// Statuses that are failures of a server.
///
/// serde's untagged enums lose spans, so the variant is chosen by a visitor.
#[derive(Debug)]
pub(in super::super::super) enum FailuresEntry {
    /// `"5xx"`: all of 500 to 599.
    All,
    /// A list of statuses.
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
        struct Choice;

        impl<'de> Visitor<'de> for Choice {
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

        deserializer.deserialize_any(Choice)
    }
}
