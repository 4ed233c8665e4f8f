//! Types of single configuration values: durations, rates, addresses and others.
//!
//! Each type implements `FromStr` with an error that contains a remedy. Each type has one line in the table below
//! (`scalars!`), which implements serde's `Deserialize` and `JsonSchema` for it. The schema contains the type name as
//! `format`. Validation calls [`check`] with this name, so invalid values are reported together with unknown keys,
//! before decoding.

mod http_message;
mod idempotency;
mod name;
mod net;
mod number;
mod redis;
mod upstream;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use thiserror::Error;

pub(super) use http_message::{
    CountedHeader, DocsUrl, HeaderText, HostChoice, MethodName, Origin, ResponseHeader, TokenText,
    ValueText,
};
pub(super) use idempotency::{KeyHeader, KeyedMethod, ScopeText};
pub(super) use net::{Cidr, Listen, ServerUrl};
pub(super) use number::{HumanDuration, Rate, Size, SizeOrZero, Timeout};
pub(super) use redis::{
    LONGEST_LEASE, LeaseDuration, PasswordText, RedisUrl, StorePrefix, StoreTimeout, UserText,
};
pub(super) use upstream::{
    CheckInterval, CheckPath, FailuresWord, JitterText, MediaType, OpenTime, Window,
};

pub(super) use name::{BackendWord, KeyText, Label, LimitName};

/// Error: the text of a configuration value cannot be parsed as the type of this value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{title}; {help}")]
pub(super) struct ValueError {
    /// What is wrong, in one line.
    pub(super) title: String,
    /// How to fix the value.
    pub(super) help: String,
}

impl ValueError {
    pub(super) fn new(title: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            help: help.into(),
        }
    }
}

macro_rules! scalars {
    ($($name:ident, $types:tt, $pattern:literal, [$($example:literal),+];)+) => {
        /// Checks that a text can be parsed as the type whose name is `format`. A `format` that is not in the table
        /// accepts every text.
        pub(super) fn check(format: &str, text: &str) -> Result<(), ValueError> {
            match format {
                $(stringify!($name) => text.parse::<$name>().map(drop),)+
                _ => Ok(()),
            }
        }

        /// Names of all types in the table. These are the values of `format` that [`check`] knows.
        #[cfg(test)]
        pub(super) const FORMATS: &[&str] = &[$(stringify!($name)),+];

        $(
            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({
                        "type": $types,
                        "format": stringify!($name),
                        // A text with `${` is always accepted, because the schema cannot know the value of a variable.
                        "pattern": concat!("^(?:", $pattern, r")$|\$\{"),
                        "examples": [$($example),+],
                    })
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_any(FromText(std::marker::PhantomData))
                }
            }
        )+
    };
}

scalars! {
    HumanDuration, "string", "[0-9]+(?:ms|s|m|h|d)", ["250ms", "10s", "5m", "24h", "7d"];
    Timeout, "string", "0*[1-9][0-9]*(?:ms|s|m|h|d)", ["250ms", "10s", "5m"];
    Size, ["string", "integer"], "[0-9]+(?:B|KiB|MiB|GiB)?", ["64KiB", "1MiB", "4GiB"];
    SizeOrZero, ["string", "integer"], "[0-9]+(?:B|KiB|MiB|GiB)?", ["64KiB", "1MiB", "0"];
    Rate, "string", "0*[1-9][0-9]*/[0-9]*(?:ms|s|m|h|d)", ["1/s", "100/m", "5/10s"];
    Listen, "string", r"\S+:[0-9]+", ["127.0.0.1:8080", "[::]:8080"];
    Cidr, "string", "[0-9A-Fa-f:.]+(?:/[0-9]+)?", ["10.0.0.0/8", "192.0.2.7", "fd00::/8"];
    ServerUrl, "string", "https?://[^/?#@]+/?", ["http://127.0.0.1:9000", "https://api.example"];
    CheckPath, "string", "/[!-\"$-~]*", ["/healthz"];
    CheckInterval, "string", "0*[1-9][0-9]*(?:ms|s|m|h)", ["5s", "500ms"];
    Window, "string", "0*[1-9][0-9]*(?:ms|s|m|h)", ["10s", "1m"];
    OpenTime, "string", "0*[1-9][0-9]*(?:ms|s|m|h|d)", ["5s", "60s"];
    FailuresWord, "string", "5xx", ["5xx"];
    JitterText, ["string", "number"],
        r"none|full|equal|decorrelated|percent|additive|(?:±|\+-|\+)[0-9]+(?:\.[0-9]+)?%|[0-9]+(?:ms|s|m|h|d)|0(?:\.[0-9]+)?|1(?:\.0+)?",
        ["full", "equal", "decorrelated", "±25%", "+30%", "500ms"];
    MediaType, "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*;.*)?",
        ["text/plain; charset=utf-8", "application/json"];
    HostChoice, "string", r"\S+", ["preserve", "server", "api.example"];
    MethodName, "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["GET", "POST"];
    HeaderText, "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["x-request-id"];
    ResponseHeader, "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["X-Served-By"];
    ValueText, "string", ".*", ["edge"];
    Origin, "string", r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+", ["https://app.example", "*"];
    DocsUrl, "string", r"https?://[^/?#\s]\S*", ["https://docs.example/errors"];
    TokenText, "string", r"\S+", ["${TIDEGATE_ADMIN_TOKEN}"];
    KeyText, "string", "client|global|header:.+", ["client", "global", "header:x-api-key"];
    BackendWord, "string", "memory|disk|redis", ["memory", "disk", "redis"];
    RedisUrl, "string", r"rediss?://(?:[^/?#@]+@)?[^/?#@]+(?:/[0-9]*)?",
        ["redis://127.0.0.1:6379", "rediss://redis.example/1"];
    StorePrefix, "string", r"[!-)+->@-Z^-z|~]{1,64}", ["tidegate"];
    UserText, "string", r"\S+", ["tidegate"];
    PasswordText, "string", ".+", ["${REDIS_PASSWORD}"];
    StoreTimeout, "string", "0*[1-9][0-9]*(?:ms|s)", ["50ms", "500ms", "10s"];
    LeaseDuration, "string", "0*[1-9][0-9]*(?:ms|s|m|h)", ["65s", "5m"];
    KeyedMethod, "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["POST", "PATCH"];
    KeyHeader, "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["Idempotency-Key"];
    ScopeText, "string", "client|shared|(?:header|cookie):.+",
        ["header:x-api-key", "cookie:session", "client", "shared"];
    LimitName, "string", "[A-Za-z0-9_.-]{1,64}", ["device"];
    Label, "string", ".+", ["api"];
}

/// serde visitor that parses a value from a string or a number. The schema check has already rejected numbers if the
/// type does not allow them.
struct FromText<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = ValueError>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_in_the_schema_are_valid() {
        let mut generator = SchemaGenerator::default();
        let schemas = [
            HumanDuration::json_schema(&mut generator),
            Timeout::json_schema(&mut generator),
            Size::json_schema(&mut generator),
            SizeOrZero::json_schema(&mut generator),
            Rate::json_schema(&mut generator),
            Listen::json_schema(&mut generator),
            Cidr::json_schema(&mut generator),
            ServerUrl::json_schema(&mut generator),
            CheckPath::json_schema(&mut generator),
            CheckInterval::json_schema(&mut generator),
            Window::json_schema(&mut generator),
            OpenTime::json_schema(&mut generator),
            JitterText::json_schema(&mut generator),
            MediaType::json_schema(&mut generator),
            HostChoice::json_schema(&mut generator),
            MethodName::json_schema(&mut generator),
            HeaderText::json_schema(&mut generator),
            ResponseHeader::json_schema(&mut generator),
            Origin::json_schema(&mut generator),
            KeyText::json_schema(&mut generator),
            KeyedMethod::json_schema(&mut generator),
            KeyHeader::json_schema(&mut generator),
            ScopeText::json_schema(&mut generator),
            BackendWord::json_schema(&mut generator),
            RedisUrl::json_schema(&mut generator),
            StorePrefix::json_schema(&mut generator),
            UserText::json_schema(&mut generator),
            StoreTimeout::json_schema(&mut generator),
            LeaseDuration::json_schema(&mut generator),
        ];
        for schema in schemas {
            let format = schema.get("format").and_then(|f| f.as_str());
            let examples = schema.get("examples").and_then(|e| e.as_array());
            for example in examples.expect("every scalar has examples") {
                let text = example.as_str().expect("examples are strings");
                assert_eq!(check(format.expect("a format"), text), Ok(()), "{text}");
            }
        }
    }
}
