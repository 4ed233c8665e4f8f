//! Entries of `servers` in `[upstream.NAME]` of the configuration file.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::super::super::located::Located;
use super::super::super::scalar::ServerUrl;

/// Server of an upstream: a URL, or a table with `url` and `weight`.
///
/// `Deserialize` is implemented manually, because serde's untagged enums lose the source location of errors.
#[derive(Debug)]
pub(in super::super::super) enum ServerEntry {
    /// URL without a weight. The weight is 1.
    Url(ServerUrl),
    /// Table with the URL and an optional weight.
    Table(ServerTable),
}

/// Server with its weight.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct ServerTable {
    /// Scheme, host and optional port of the server.
    #[schemars(required)]
    pub(in super::super::super) url: Option<Located<ServerUrl>>,
    /// Share of the requests, relative to the weights of the other servers.
    #[schemars(range(min = 1, max = 1_000), extend("default" = 1))]
    pub(in super::super::super) weight: Option<Located<u32>>,
}

impl JsonSchema for ServerEntry {
    fn schema_name() -> Cow<'static, str> {
        "ServerEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let url = generator.subschema_for::<ServerUrl>();
        let table = generator.subschema_for::<ServerTable>();
        json_schema!({ "anyOf": [url, table] })
    }
}

impl<'de> Deserialize<'de> for ServerEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ServerEntryVisitor;

        impl<'de> Visitor<'de> for ServerEntryVisitor {
            type Value = ServerEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a table")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                ServerUrl::deserialize(StrDeserializer::new(text)).map(ServerEntry::Url)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                ServerTable::deserialize(MapAccessDeserializer::new(map)).map(ServerEntry::Table)
            }
        }

        deserializer.deserialize_any(ServerEntryVisitor)
    }
}
