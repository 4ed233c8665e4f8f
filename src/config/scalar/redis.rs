//! Values of `[store]` for Redis.

use super::ValueError;
use crate::store::redis::settings::{Password, RedisNode};
use crate::store::redis::url;

pub(super) fn redis_url(text: &str) -> Result<RedisNode, ValueError> {
    url::redis_url(text).map_err(|error| ValueError::new(error.title, error.help))
}

/// Characters with a meaning in hash tags or in the patterns of `SCAN` and `KEYS` are not allowed.
pub(super) fn prefix(text: &str) -> Result<String, ValueError> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
    if matches!(text.len(), 1..=64) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        format!(
            "`{}` is not a valid prefix for Redis keys",
            text.escape_debug()
        ),
        "write 1 to 64 visible ASCII characters except `{}*?[]\\`, such as \"tidegate\"",
    ))
}

pub(super) fn user(text: &str) -> Result<String, ValueError> {
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
    Ok(text.to_owned())
}

pub(super) fn password(text: &str) -> Result<Password, ValueError> {
    if text.is_empty() {
        return Err(ValueError::new(
            "the password is empty",
            "write the password, or remove `password` to use no password",
        ));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_no_characters_with_a_meaning_in_redis() {
        let longest = "x".repeat(64);
        for text in ["tidegate", "a:b/c-d_e.f", "!~@^|", &longest] {
            assert!(prefix(text).is_ok(), "{text}");
        }
        for unfit in [
            "", " ", "\t", "ü", "\u{7f}", "{", "}", "*", "?", "[", "]", "\\",
        ] {
            assert!(prefix(unfit).is_err(), "{unfit:?}");
            let within = format!("a{unfit}b");
            assert_eq!(prefix(&within).is_ok(), unfit.is_empty());
        }
        assert!(prefix(&"x".repeat(65)).is_err());
    }

    #[test]
    fn a_user_name_has_no_spaces() {
        assert!(user("gate-1").is_ok());
        for text in ["", "a b", "a\n", "\0"] {
            assert!(user(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_password_is_not_empty_and_debug_output_omits_it() {
        assert!(password("").is_err());
        let password = password("s3cret with spaces").expect("a password");
        assert_eq!(password.reveal(), "s3cret with spaces");
        assert!(!format!("{password:?}").contains("s3cret"));
    }
}
