//! Configuration values that are names or words: names of rate limits and routes, parts of a limit key, and backends.

use std::str::FromStr;

use super::{CountedHeader, ValueError};
use crate::throttle::KeyPart;

/// Name of a rate limit. `RateLimit` headers contain the name as a structured-field string, and metrics contain it as a
/// label. The allowed characters need no escapes in either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct LimitName(pub(in super::super) String);

impl FromStr for LimitName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if matches!(text.len(), 1..=64) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError::new(
            format!("`{text}` is not a valid name for a rate limit"),
            "write 1 to 64 characters: letters, digits, dots, dashes and underscores",
        ))
    }
}

/// Name of an upstream, a route or a JSON member. The name is not empty and contains no control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Label(pub(in super::super) String);

impl FromStr for Label {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(ValueError::new(
                format!("`{}` is not a valid name", text.escape_debug()),
                "write at least one character and no control characters",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Entry of `key` in `[limit.NAME]`: a property of requests. Requests with different values of this property have
/// different buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct KeyText(pub(in super::super) KeyPart);

impl FromStr for KeyText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let part = match (text, text.strip_prefix("header:")) {
            ("client", _) => KeyPart::Client,
            ("global", _) => KeyPart::Global,
            (_, Some(name)) => KeyPart::Header(name.parse::<CountedHeader>()?.0),
            (_, None) => {
                return Err(ValueError::new(
                    format!("`{text}` is not a valid `key` of a rate limit"),
                    "write \"client\", \"global\", \"header:NAME\", or a list of these",
                ));
            }
        };
        Ok(Self(part))
    }
}

/// Value of `backend` in `[store]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BackendWord {
    /// Memory of the process.
    Memory,
    /// Directory on disk.
    Disk,
    /// Redis server or cluster.
    Redis,
}

impl FromStr for BackendWord {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "memory" => Ok(Self::Memory),
            "disk" => Ok(Self::Disk),
            "redis" => Ok(Self::Redis),
            _ => Err(ValueError::new(
                format!("`{text}` is not a backend of the store"),
                "write \"memory\", \"disk\" or \"redis\"",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_limit_has_1_to_64_plain_characters() {
        assert!("per-device_1.0".parse::<LimitName>().is_ok());
        for text in ["", "a b", "a\"b", "größe", &"x".repeat(65)] {
            assert!(text.parse::<LimitName>().is_err(), "{text}");
        }
    }

    #[test]
    fn limit_keys_are_parsed() {
        let key = |text: &str| text.parse::<KeyText>().map(|KeyText(part)| part);
        assert_eq!(key("client"), Ok(KeyPart::Client));
        let header = http::HeaderName::from_static("x-api-key");
        assert_eq!(key("header:X-Api-Key"), Ok(KeyPart::Header(header)));
        assert!(key("ip").is_err() && key("header:").is_err() && key("header:a b").is_err());
    }

    #[test]
    fn backends_are_parsed() {
        assert_eq!("memory".parse(), Ok(BackendWord::Memory));
        assert_eq!("disk".parse(), Ok(BackendWord::Disk));
        assert_eq!("redis".parse(), Ok(BackendWord::Redis));
        let error = "memroy".parse::<BackendWord>().expect_err("misspelt");
        assert!(error.help.contains("memory"));
    }
}
