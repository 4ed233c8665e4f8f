//! Values of `[upstream.NAME]`.

use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;

use super::ValueError;
use super::number::duration;
use crate::retry::Jitter;

/// Maximum part of the backoff that `jitter = "percent"` adds or subtracts.
const DEFAULT_PERCENT: f64 = 0.25;

/// Maximum part of the backoff that `jitter = "additive"` adds.
const DEFAULT_ADDITION: f64 = 0.3;

pub(super) fn check_path(text: &str) -> Result<PathAndQuery, ValueError> {
    // `PathAndQuery` silently drops a fragment and accepts non-ASCII.
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    let path = text
        .parse()
        .ok()
        .filter(|_| text.starts_with('/') && text.bytes().all(plain));
    path.ok_or_else(|| {
        ValueError::new(
            format!("`{text}` is not a valid path of a health check"),
            "write a path, with a query if needed, as in a request: \"/healthz\"",
        )
    })
}

pub(super) fn failures_word(text: &str) -> Result<(), ValueError> {
    if text == "5xx" {
        return Ok(());
    }
    Err(ValueError::new(
        format!("`{text}` is not a valid value"),
        "write \"5xx\" or a list such as [502, 503, 504]",
    ))
}

pub(super) fn jitter(text: &str) -> Result<Jitter, ValueError> {
    let jitter = match text {
        "none" => Jitter::None,
        "full" => Jitter::Full,
        "equal" => Jitter::Equal,
        "decorrelated" => Jitter::Decorrelated,
        "percent" => Jitter::Percent(DEFAULT_PERCENT),
        "additive" => Jitter::Proportional(DEFAULT_ADDITION),
        _ => parse_amount(text)?,
    };
    // The check for missing jitter finds a zero in any notation.
    Ok(match jitter {
        Jitter::Percent(0.0) | Jitter::Proportional(0.0) | Jitter::Added(Duration::ZERO) => {
            Jitter::None
        }
        some => some,
    })
}

fn parse_amount(text: &str) -> Result<Jitter, ValueError> {
    let symmetric = text.strip_prefix('±').or(text.strip_prefix("+-"));
    let (part, jitter): (_, fn(f64) -> Jitter) = if let Some(percents) = symmetric {
        (parse_percentage(percents), Jitter::Percent)
    } else if let Some(percents) = text.strip_prefix('+') {
        (parse_percentage(percents), Jitter::Proportional)
    } else if let Some(part) = decimal(text) {
        (Some(part), Jitter::Proportional)
    } else if let Ok(most) = duration(text) {
        return Ok(Jitter::Added(most));
    } else {
        (None, Jitter::Percent)
    };
    match part {
        Some(part) if part <= 1.0 => Ok(jitter(part)),
        Some(_) => Err(ValueError::new(
            format!("the jitter `{text}` is larger than the backoff itself"),
            "write at most \"±100%\", \"+100%\" or 1",
        )),
        None => Err(ValueError::new(
            format!("`{text}` is not a valid jitter"),
            "write \"none\", \"full\", \"equal\", \"decorrelated\", a percentage such as \"±25%\" or \"+30%\", an \
             added duration such as \"500ms\", or a number from 0 to 1",
        )),
    }
}

fn parse_percentage(percents: &str) -> Option<f64> {
    decimal(percents.strip_suffix('%')?).map(|percents| percents / 100.0)
}

/// `str::parse` alone would also accept `inf` and `1e3`.
fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (digits(whole) && digits(fraction)).then(|| text.parse().ok())?
}

pub(super) fn media_type(text: &str) -> Result<HeaderValue, ValueError> {
    let token = |name: &str| {
        let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !name.is_empty() && name.bytes().all(tchar)
    };
    let essence = text.split(';').next().unwrap_or_default();
    let is_media_type = essence
        .trim_end_matches([' ', '\t'])
        .split_once('/')
        .is_some_and(|(kind, subtype)| token(kind) && token(subtype));
    match HeaderValue::from_str(text) {
        Ok(value) if is_media_type && text.is_ascii() => Ok(value),
        _ => Err(ValueError::new(
            format!("`{}` is not a valid media type", text.escape_debug()),
            "write a type and a subtype: \"application/json\", \"text/html; charset=utf-8\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_path_is_an_absolute_path_with_an_optional_query() {
        for text in ["/", "/healthz", "/health?full=1&x=%20"] {
            assert_eq!(check_path(text).expect(text).as_str(), text);
        }
        for text in ["", "healthz", "*", "http://a/", "/a b", "/a#b", "/ä", "?a"] {
            assert!(check_path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn jitter_is_parsed_from_a_word_a_percentage_a_duration_or_a_number() {
        for (text, meaning) in [
            ("none", Jitter::None),
            ("full", Jitter::Full),
            ("equal", Jitter::Equal),
            ("decorrelated", Jitter::Decorrelated),
            ("percent", Jitter::Percent(0.25)),
            ("additive", Jitter::Proportional(0.3)),
            ("±25%", Jitter::Percent(0.25)),
            ("+-12.5%", Jitter::Percent(0.125)),
            ("+30%", Jitter::Proportional(0.3)),
            ("+100%", Jitter::Proportional(1.0)),
            ("500ms", Jitter::Added(Duration::from_millis(500))),
            ("0.3", Jitter::Proportional(0.3)),
            ("1", Jitter::Proportional(1.0)),
        ] {
            assert_eq!(jitter(text), Ok(meaning), "{text}");
        }
        for text in ["0", "0.0", "±0%", "+0%", "0ms"] {
            assert_eq!(jitter(text), Ok(Jitter::None), "{text}");
        }
    }

    #[test]
    fn the_error_about_an_invalid_jitter_contains_a_remedy() {
        for text in [
            "", "Full", "25%", "±25", "-25%", "+%", "+1e1%", "inf", ".5", "±", "±-1%",
        ] {
            let error = jitter(text).expect_err(text);
            assert!(error.help.contains("\"±25%\""), "{text}: {}", error.help);
        }
        for text in ["±101%", "+100.5%", "2", "1.01"] {
            let error = jitter(text).expect_err(text);
            assert!(
                error.title.contains("larger than the backoff itself"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_media_type_needs_a_type_and_a_subtype() {
        for text in [
            "text/plain",
            "application/problem+json",
            "text/html; charset=utf-8",
        ] {
            assert_eq!(media_type(text).expect(text), text);
        }
        for text in [
            "",
            "text",
            "text/",
            "/html",
            "text/a b",
            "te xt/a",
            "text/plain; a=\n",
            "text/ä",
        ] {
            assert!(media_type(text).is_err(), "{text}");
        }
    }
}
