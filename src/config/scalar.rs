//! Types of single configuration values: durations, rates, addresses and others.
//!
//! Each type is one line in the table below (`scalars!`), which names the function that parses it. The schema contains
//! the type name as `format`. Validation calls [`check`] with it, so invalid values are reported together with unknown
//! keys, before decoding.

mod http_message;
mod idempotency;
mod name;
mod net;
mod number;
mod redis;
mod step;
mod upstream;

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ::http::uri::PathAndQuery;
use ::http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::Value;
use thiserror::Error;

use crate::retry::Jitter;
use crate::scenario::step::Step;
use crate::store::redis::settings::{Password, RedisNode};
use crate::throttle::KeyPart;
use crate::throttle::rate::Rate;
use crate::upstream::{HostHeader, Server};

pub(super) use http_message::OriginPattern;
pub(super) use idempotency::ScopeEntry;
pub(super) use number::display_duration;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{title}; {help}")]
pub(super) struct ValueError {
    pub(super) title: String,
    pub(super) help: String,
    /// Range of bytes that is wrong. `None` means the whole text.
    pub(super) part: Option<Range<usize>>,
}

impl ValueError {
    pub(super) fn new(title: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            help: help.into(),
            part: None,
        }
    }
}

/// A line of the table contains the name of the type and the Rust type that it wraps, the function that parses it, its
/// name in the documentation, its JSON types, the regular expression of its text, and examples.
macro_rules! scalars {
    ($(
        $(#[$doc:meta])*
        $name:ident($inner:ty): $parse:path, $title:literal, $types:tt, $pattern:literal, [$($example:literal),+];
    )+) => {
        /// A `format` that is not in the table accepts every text.
        pub(super) fn check(format: &str, text: &str) -> Result<(), ValueError> {
            match format {
                $(stringify!($name) => $parse(text).map(drop),)+
                _ => Ok(()),
            }
        }

        #[cfg(test)]
        pub(super) fn schemas() -> Vec<Schema> {
            let mut generator = SchemaGenerator::default();
            vec![$($name::json_schema(&mut generator)),+]
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq)]
            pub(super) struct $name(pub(super) $inner);

            impl FromStr for $name {
                type Err = ValueError;

                fn from_str(text: &str) -> Result<Self, ValueError> {
                    $parse(text).map(Self)
                }
            }

            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({
                        "title": $title,
                        "type": $types,
                        "format": stringify!($name),
                        // The schema cannot know the value of a variable.
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
    /// Duration from zero to one year.
    HumanDuration(Duration): number::duration, "duration", "string",
        "[0-9]+(?:ms|s|m|h|d)", ["250ms", "10s", "5m", "24h", "7d"];
    /// Duration longer than zero and up to one year.
    Timeout(Duration): number::timeout, "duration", "string",
        "0*[1-9][0-9]*(?:ms|s|m|h|d)", ["250ms", "10s", "5m"];
    Size(u64): number::size, "size", ["string", "integer"], "[0-9]+(?:B|KiB|MiB|GiB)?", ["64KiB", "1MiB", "4GiB"];
    RateText(Rate): number::rate, "rate", "string",
        "0*[1-9][0-9]*/[0-9]*(?:ms|s|m|h|d)", ["1/s", "100/m", "5/10s"];
    Listen(SocketAddr): net::listen, "address", "string", r"\S+:[0-9]+", ["127.0.0.1:8080", "[::]:8080"];
    Cidr(IpNet): net::cidr, "network", "string",
        "[0-9A-Fa-f:.]+(?:/[0-9]+)?", ["10.0.0.0/8", "192.0.2.7", "fd00::/8"];
    ServerUrl(Server): net::server_url, "URL", "string",
        "https?://[^/?#@]+/?", ["http://127.0.0.1:9000", "https://api.example"];
    FilePath(PathBuf): net::file_path, "path", "string", ".*", ["/etc/tidegate/file"];
    CheckPath(PathAndQuery): upstream::check_path, "path", "string", "/[!-\"$-~]*", ["/healthz"];
    /// The word `"5xx"` as the value of `failures`: all statuses from 500 to 599.
    FailuresWord(()): upstream::failures_word, "string", "string", "5xx", ["5xx"];
    JitterText(Jitter): upstream::jitter, "jitter", ["string", "number"],
        r"none|full|equal|decorrelated|percent|additive|(?:±|\+-|\+)[0-9]+(?:\.[0-9]+)?%|[0-9]+(?:ms|s|m|h|d)|0(?:\.[0-9]+)?|1(?:\.0+)?",
        ["full", "equal", "decorrelated", "±25%", "+30%", "500ms"];
    MediaType(HeaderValue): upstream::media_type, "media type", "string",
        "[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*;.*)?",
        ["text/plain; charset=utf-8", "application/json"];
    HostChoice(HostHeader): http_message::host_choice, "host", "string",
        r"\S+", ["preserve", "server", "api.example"];
    MethodName(Method): http_message::method, "method", "string", "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["GET", "POST"];
    HeaderText(HeaderName): http_message::header_name, "header", "string",
        "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["x-request-id"];
    ResponseHeader(HeaderName): http_message::response_header, "header", "string",
        "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["X-Served-By"];
    ValueText(HeaderValue): http_message::header_value, "string", "string", ".*", ["edge"];
    Origin(OriginPattern): http_message::origin, "origin", "string",
        r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+", ["https://app.example", "*"];
    /// `Link` header with the URL of a documentation page.
    DocsUrl(HeaderValue): http_message::docs_link, "URL", "string",
        r"https?://[^/?#\s]\S*", ["https://docs.example/errors"];
    TokenText(Password): http_message::token, "string", "string", r"\S+", ["${TIDEGATE_ADMIN_TOKEN}"];
    /// Property of requests. Requests with different values of this property have different buckets.
    KeyText(KeyPart): name::limit_key, "string", "string",
        "client|global|header:.+", ["client", "global", "header:x-api-key"];
    RedisUrl(RedisNode): redis::redis_url, "URL", "string", r"rediss?://(?:[^/?#@]+@)?[^/?#@]+(?:/[0-9]*)?",
        ["redis://127.0.0.1:6379", "rediss://redis.example/1"];
    StorePrefix(String): redis::prefix, "string", "string", r"[!-)+->@-Z^-z|~]{1,64}", ["tidegate"];
    UserText(String): redis::user, "string", "string", r"\S+", ["tidegate"];
    PasswordText(Password): redis::password, "string", "string", ".+", ["${REDIS_PASSWORD}"];
    KeyedMethod(Method): idempotency::keyed_method, "method", "string",
        "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["POST", "PATCH"];
    KeyHeader(HeaderName): idempotency::key_header, "header", "string",
        "[!#$%&'*+.^_`|~0-9A-Za-z-]+", ["Idempotency-Key"];
    /// What identifies a caller. Equal idempotency keys of different callers are independent.
    ScopeText(ScopeEntry): idempotency::scope, "string", "string", "client|shared|(?:header|cookie):.+",
        ["header:x-api-key", "cookie:session", "client", "shared"];
    StepText(Step): step::step, "step", "string", ".+", ["429 retry-after=2", "delay 200ms + 503", "reset"];
    LimitName(String): name::limit_name, "string", "string", "[A-Za-z0-9_.-]{1,64}", ["device"];
    Label(String): name::label, "string", "string", ".+", ["api"];
}

/// Bounds are `formatMinimum` and `formatMaximum` of a duration, and `minimum` of a size.
pub(super) fn check_bounds(text: &str, schema: &Value) -> Result<(), ValueError> {
    let bound = |name| schema.get(name).and_then(Value::as_str);
    match schema.get("format").and_then(Value::as_str) {
        Some("Timeout" | "HumanDuration") => {
            let duration = number::duration(text)?;
            if let Some(least) = bound("formatMinimum")
                && duration < number::duration(least)?
            {
                return Err(ValueError::new(
                    format!("the duration `{text}` is too short"),
                    format!("write at least \"{least}\""),
                ));
            }
            if let Some(most) = bound("formatMaximum")
                && duration > number::duration(most)?
            {
                return Err(ValueError::new(
                    format!("the duration `{text}` is too long"),
                    format!("write at most \"{most}\""),
                ));
            }
        }
        Some("Size") => {
            let least = schema.get("minimum").and_then(Value::as_u64);
            if let Some(least) =
                least.filter(|least| number::size(text).is_ok_and(|size| size < *least))
            {
                return Err(ValueError::new(
                    format!("the size `{text}` is too small"),
                    format!("write at least {least} byte, such as \"64KiB\""),
                ));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The schema check has already rejected numbers if the type does not allow them.
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
        let schemas = schemas();
        for schema in &schemas {
            let format = schema.get("format").and_then(|f| f.as_str());
            let examples = schema.get("examples").and_then(|e| e.as_array());
            for example in examples.expect("every scalar has examples") {
                let text = example.as_str().expect("examples are strings");
                assert_eq!(check(format.expect("a format"), text), Ok(()), "{text}");
            }
        }
        assert!(schemas.len() > 25, "{}", schemas.len());
    }
}
