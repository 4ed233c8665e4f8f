//! What is said about Redis alone: where it is, who we are to it, and how long it may take.

mod url;

use std::str::FromStr;
use std::time::Duration;

use super::{Fault, Timeout};
use crate::store::redis::settings::Password;

pub(in super::super) use url::RedisUrl;

/// How long an operation on Redis may take at most: a request waits for it.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A claim is renewed several times within its lease, and a clock has to tell one from the next.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// How long the key of a gateway that died may stay claimed.
pub(in super::super) const LONGEST_LEASE: Duration = Duration::from_hours(1);

/// What every name in Redis begins with. The characters left out mean something in a hash tag, or in
/// the patterns an operator looks names up by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct StorePrefix(pub(in super::super) String);

impl FromStr for StorePrefix {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
        if matches!(text.len(), 1..=64) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(Fault::new(
            format!("`{}` cannot begin the names in Redis", text.escape_debug()),
            "write 1 to 64 visible ASCII characters, none of them one of `{}*?[]\\`: \"tidegate\"",
        ))
    }
}

/// Who the gateway is to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct UserText(pub(in super::super) String);

impl FromStr for UserText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let unfit = |c: char| c.is_whitespace() || c.is_control();
        if text.is_empty() || text.contains(unfit) {
            return Err(Fault::new(
                format!("Redis can have no user called `{}`", text.escape_debug()),
                "write a name without spaces, or leave the key out to be the default user",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// How the gateway proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct PasswordText(pub(in super::super) Password);

impl FromStr for PasswordText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Err(Fault::new(
                "an empty password proves nothing",
                "write the password, or leave the key out to go without",
            ));
        }
        Ok(Self(text.into()))
    }
}

/// How long an operation on Redis may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct StoreTimeout(pub(in super::super) Duration);

impl FromStr for StoreTimeout {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let Timeout(duration) = text.parse()?;
        if duration > LONGEST_TIMEOUT {
            return Err(Fault::new(
                format!("`{text}` is too long: requests wait for it when Redis does not answer"),
                "write at most \"10s\"",
            ));
        }
        Ok(Self(duration))
    }
}

/// How long a claim holds unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Lease(pub(in super::super) Duration);

impl FromStr for Lease {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let Timeout(duration) = text.parse()?;
        if duration < SHORTEST_LEASE {
            return Err(Fault::new(
                format!("a lease of `{text}` is too short to be renewed in time"),
                "write at least \"1s\"",
            ));
        }
        if duration > LONGEST_LEASE {
            return Err(Fault::new(
                format!(
                    "a lease of `{text}` is too long: the keys of a gateway that died stay claimed"
                ),
                "write at most \"1h\"",
            ));
        }
        Ok(Self(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_means_nothing_to_redis() {
        let longest = "x".repeat(64);
        for text in ["tidegate", "a:b/c-d_e.f", "!~@^|", &longest] {
            assert!(text.parse::<StorePrefix>().is_ok(), "{text}");
        }
        for unfit in [
            "", " ", "\t", "ü", "\u{7f}", "{", "}", "*", "?", "[", "]", "\\",
        ] {
            assert!(unfit.parse::<StorePrefix>().is_err(), "{unfit:?}");
            let within = format!("a{unfit}b");
            assert_eq!(within.parse::<StorePrefix>().is_ok(), unfit.is_empty());
        }
        assert!("x".repeat(65).parse::<StorePrefix>().is_err());
    }

    #[test]
    fn a_user_has_a_name_without_spaces() {
        assert!("gate-1".parse::<UserText>().is_ok());
        for text in ["", "a b", "a\n", "\0"] {
            assert!(text.parse::<UserText>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_password_is_never_empty_and_never_shown() {
        assert!("".parse::<PasswordText>().is_err());
        let password: PasswordText = "s3cret with spaces".parse().expect("a password");
        assert_eq!(password.0.reveal(), "s3cret with spaces");
        assert!(!format!("{password:?}").contains("s3cret"));
    }

    #[test]
    fn a_timeout_is_longer_than_zero_and_at_most_ten_seconds() {
        let timeout = |text: &str| text.parse::<StoreTimeout>().map(|StoreTimeout(d)| d);
        assert_eq!(timeout("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(timeout("10s"), Ok(LONGEST_TIMEOUT));
        for text in ["0ms", "10001ms", "1m", "soon"] {
            assert!(timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_lease_lasts_from_a_second_to_an_hour() {
        let lease = |text: &str| text.parse::<Lease>().map(|Lease(d)| d);
        assert_eq!(lease("1s"), Ok(SHORTEST_LEASE));
        assert_eq!(lease("60m"), Ok(LONGEST_LEASE));
        for text in ["0s", "999ms", "3601s", "2h", "for ever"] {
            assert!(lease(text).is_err(), "{text}");
        }
    }
}
