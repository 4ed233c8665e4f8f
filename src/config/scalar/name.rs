//! Names of rate limits and routes, and parts of a limit key.

use super::ValueError;
use super::http_message::counted_header;
use crate::throttle::{KeyPart, is_limit_name};

pub(super) fn limit_name(text: &str) -> Result<String, ValueError> {
    if is_limit_name(text) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        format!("`{text}` is not a valid name for a rate limit"),
        "write 1 to 64 characters: letters, digits, dots, dashes and underscores",
    ))
}

pub(super) fn label(text: &str) -> Result<String, ValueError> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(ValueError::new(
            format!("`{}` is not a valid name", text.escape_debug()),
            "write at least one character and no control characters",
        ));
    }
    Ok(text.to_owned())
}

pub(super) fn limit_key(text: &str) -> Result<KeyPart, ValueError> {
    let part = match (text, text.strip_prefix("header:")) {
        ("client", _) => KeyPart::Client,
        ("global", _) => KeyPart::Global,
        (_, Some(name)) => KeyPart::Header(counted_header(name)?),
        (_, None) => {
            let help = match text.trim_start_matches('$') {
                "binary_remote_addr" | "remote_addr" | "ip" | "client_ip" => {
                    "write \"client\" for the address of the client"
                }
                _ => "write \"client\", \"global\", \"header:NAME\", or a list of these",
            };
            return Err(ValueError::new(
                format!("`{text}` is not a valid `key` of a rate limit"),
                help,
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
