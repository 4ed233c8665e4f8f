//! Configuration values that are names or words: names of rate limits and routes, and parts of a limit key.

use super::ValueError;
use super::http_message::counted_header;
use crate::throttle::{KeyPart, is_limit_name};

/// Parses the name of a rate limit.
pub(super) fn limit_name(text: &str) -> Result<String, ValueError> {
    if is_limit_name(text) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        format!("`{text}` is not a valid name for a rate limit"),
        "write 1 to 64 characters: letters, digits, dots, dashes and underscores",
    ))
}

/// Parses a name that is not empty and contains no control characters.
pub(super) fn label(text: &str) -> Result<String, ValueError> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(ValueError::new(
            format!("`{}` is not a valid name", text.escape_debug()),
            "write at least one character and no control characters",
        ));
    }
    Ok(text.to_owned())
}

/// Parses an entry of `key` in `[limit.NAME]`.
pub(super) fn limit_key(text: &str) -> Result<KeyPart, ValueError> {
    let part = match (text, text.strip_prefix("header:")) {
        ("client", _) => KeyPart::Client,
        ("global", _) => KeyPart::Global,
        (_, Some(name)) => KeyPart::Header(counted_header(name)?),
        (_, None) => {
            return Err(ValueError::new(
                format!("`{text}` is not a valid `key` of a rate limit"),
                "write \"client\", \"global\", \"header:NAME\", or a list of these",
            ));
        }
    };
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_limit_has_1_to_64_plain_characters() {
        assert!(limit_name("per-device_1.0").is_ok());
        for text in ["", "a b", "a\"b", "größe", &"x".repeat(65)] {
            assert!(limit_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limit_keys_are_parsed() {
        let key = limit_key;
        assert_eq!(key("client"), Ok(KeyPart::Client));
        let header = http::HeaderName::from_static("x-api-key");
        assert_eq!(key("header:X-Api-Key"), Ok(KeyPart::Header(header)));
        assert!(key("ip").is_err() && key("header:").is_err() && key("header:a b").is_err());
    }
}
