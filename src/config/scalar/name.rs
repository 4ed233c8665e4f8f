//! Names a person gives, and the few words with a fixed meaning.

use std::str::FromStr;

use super::{CountedHeader, Fault};
use crate::throttle::KeyPart;

/// The name of a limit. It is shown to clients in `RateLimit` headers as a structured-field string
/// and to operators as a metric's label, so it keeps to what needs no quoting in either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct LimitName(pub(in super::super) String);

impl FromStr for LimitName {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if matches!(text.len(), 1..=64) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(Fault::new(
            format!("`{text}` cannot name a limit"),
            "write 1 to 64 letters, digits, dots, dashes and underscores",
        ))
    }
}

/// The name of an upstream, a route or a JSON member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Label(pub(in super::super) String);

impl FromStr for Label {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(Fault::new(
                format!("`{}` is not a name", text.escape_debug()),
                "write a name of at least one character, all of them printable",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// One thing a limit's buckets are told apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct KeyText(pub(in super::super) KeyPart);

impl FromStr for KeyText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let part = match (text, text.strip_prefix("header:")) {
            ("client", _) => KeyPart::Client,
            ("global", _) => KeyPart::Global,
            (_, Some(name)) => KeyPart::Header(name.parse::<CountedHeader>()?.0),
            (_, None) => {
                return Err(Fault::new(
                    format!("a limit cannot be counted by `{text}`"),
                    "write \"client\", \"global\", \"header:NAME\", or a list of these",
                ));
            }
        };
        Ok(Self(part))
    }
}

/// What keeps buckets and idempotency keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BackendWord {
    /// Memory: they are gone with the process.
    Memory,
    /// A directory on disk.
    Disk,
    /// A Redis, which other gateways may share.
    Redis,
}

impl FromStr for BackendWord {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "memory" => Ok(Self::Memory),
            "disk" => Ok(Self::Disk),
            "redis" => Ok(Self::Redis),
            _ => Err(Fault::new(
                format!("`{text}` is not a backend"),
                "write \"memory\", \"disk\" or \"redis\"",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_in_plain_characters() {
        assert!("per-device_1.0".parse::<LimitName>().is_ok());
        for text in ["", "a b", "a\"b", "größe", &"x".repeat(65)] {
            assert!(text.parse::<LimitName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_is_counted_by_known_things() {
        let key = |text: &str| text.parse::<KeyText>().map(|KeyText(part)| part);
        assert_eq!(key("client"), Ok(KeyPart::Client));
        let header = http::HeaderName::from_static("x-api-key");
        assert_eq!(key("header:X-Api-Key"), Ok(KeyPart::Header(header)));
        assert!(key("ip").is_err() && key("header:").is_err() && key("header:a b").is_err());
    }

    #[test]
    fn a_backend_is_one_of_three() {
        assert_eq!("memory".parse(), Ok(BackendWord::Memory));
        assert_eq!("disk".parse(), Ok(BackendWord::Disk));
        assert_eq!("redis".parse(), Ok(BackendWord::Redis));
        let fault = "memroy".parse::<BackendWord>().expect_err("a typing error");
        assert!(fault.help.contains("memory"));
    }
}
