//! Configuration values of `[store]` for Redis: prefix, credentials, timeouts and lease.

mod url;

use std::str::FromStr;
use std::time::Duration;

use super::{Timeout, ValueError};
use crate::store::redis::settings::Password;

pub(in super::super) use url::RedisUrl;

/// Largest allowed value of `limits_timeout` and of `records_timeout`. If Redis does not respond, a request waits until
/// the configured timeout expires.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Smallest allowed value of `lease`. A shorter lease could expire before the gateway has renewed it.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Largest allowed value of `lease`. After a crash of a gateway, the idempotency keys of its requests in flight stay
/// claimed until the lease expires.
pub(in super::super) const LONGEST_LEASE: Duration = Duration::from_hours(1);

/// Prefix of all Redis keys. Characters with a meaning in hash tags or in the patterns of `SCAN` and `KEYS` are not
/// allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct StorePrefix(pub(in super::super) String);

impl FromStr for StorePrefix {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
        if matches!(text.len(), 1..=64) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError::new(
            format!(
                "`{}` is not a valid prefix for Redis keys",
                text.escape_debug()
            ),
            "write 1 to 64 visible ASCII characters except `{}*?[]\\`, such as \"tidegate\"",
        ))
    }
}

/// Name of a Redis user: not empty, without spaces and control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct UserText(pub(in super::super) String);

impl FromStr for UserText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let unfit = |c: char| c.is_whitespace() || c.is_control();
        if text.is_empty() || text.contains(unfit) {
            return Err(ValueError::new(
                format!(
                    "`{}` is not a valid name of a Redis user",
                    text.escape_debug()
                ),
                "write a name without spaces, or remove `user` to use the default user",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Password of a Redis user. The password is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct PasswordText(pub(in super::super) Password);

impl FromStr for PasswordText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::new(
                "the password is empty",
                "write the password, or remove `password` to use no password",
            ));
        }
        Ok(Self(text.into()))
    }
}

/// Timeout of Redis operations, at most 10 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct StoreTimeout(pub(in super::super) Duration);

impl FromStr for StoreTimeout {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Timeout(duration) = text.parse()?;
        if duration > LONGEST_TIMEOUT {
            return Err(ValueError::new(
                format!(
                    "the timeout `{text}` is too long: requests wait for this time if Redis does not respond"
                ),
                "write at most \"10s\"",
            ));
        }
        Ok(Self(duration))
    }
}

/// Value of `lease`: how long an idempotency key stays claimed in Redis without a renewal, from 1 s to 1 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct LeaseDuration(pub(in super::super) Duration);

impl FromStr for LeaseDuration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Timeout(duration) = text.parse()?;
        if duration < SHORTEST_LEASE {
            return Err(ValueError::new(
                format!("the lease `{text}` is too short: the gateway could not renew it in time"),
                "write at least \"1s\"",
            ));
        }
        if duration > LONGEST_LEASE {
            return Err(ValueError::new(
                format!(
                    "the lease `{text}` is too long: idempotency keys of a crashed gateway stay claimed for this time"
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
    fn a_prefix_has_no_characters_with_a_meaning_in_redis() {
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
    fn a_user_name_has_no_spaces() {
        assert!("gate-1".parse::<UserText>().is_ok());
        for text in ["", "a b", "a\n", "\0"] {
            assert!(text.parse::<UserText>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_password_is_not_empty_and_debug_output_omits_it() {
        assert!("".parse::<PasswordText>().is_err());
        let password: PasswordText = "s3cret with spaces".parse().expect("a password");
        assert_eq!(password.0.reveal(), "s3cret with spaces");
        assert!(!format!("{password:?}").contains("s3cret"));
    }

    #[test]
    fn a_timeout_is_above_zero_and_at_most_10_s() {
        let timeout = |text: &str| text.parse::<StoreTimeout>().map(|StoreTimeout(d)| d);
        assert_eq!(timeout("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(timeout("10s"), Ok(LONGEST_TIMEOUT));
        for text in ["0ms", "10001ms", "1m", "soon"] {
            assert!(timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_lease_is_from_1_s_to_1_h() {
        let lease = |text: &str| text.parse::<LeaseDuration>().map(|LeaseDuration(d)| d);
        assert_eq!(lease("1s"), Ok(SHORTEST_LEASE));
        assert_eq!(lease("60m"), Ok(LONGEST_LEASE));
        for text in ["0s", "999ms", "3601s", "2h", "for ever"] {
            assert!(lease(text).is_err(), "{text}");
        }
    }
}
