//! Configuration values of `[upstream.NAME]`: health checks, circuit breakers and retries.

use std::str::FromStr;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;

use super::{HumanDuration, Timeout, ValueError};
use crate::retry::Jitter;

/// Jitter of `jitter = "percent"`: at most this fraction of the backoff is added or subtracted.
const DEFAULT_PERCENT: f64 = 0.25;

/// Jitter of `jitter = "additive"`: at most this fraction of the backoff is added.
const DEFAULT_ADDITION: f64 = 0.3;

/// Path and query of a health check request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct CheckPath(pub(in super::super) PathAndQuery);

impl FromStr for CheckPath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // The characters are checked here, because `PathAndQuery` silently drops a fragment and accepts non-ASCII.
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let path = text
            .parse()
            .ok()
            .filter(|_| text.starts_with('/') && text.bytes().all(plain));
        path.map(Self).ok_or_else(|| {
            ValueError::new(
                format!("`{text}` is not a valid path of a health check"),
                "write a path, with a query if needed, as in a request: \"/healthz\"",
            )
        })
    }
}

/// Value of `interval` in `health`: time from one health check to the next, from 100 ms to 1 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct CheckInterval(pub(in super::super) Duration);

impl FromStr for CheckInterval {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        within(text, "100ms", "1h").map(Self)
    }
}

/// Value of `window`: period over which a ratio is computed, from 1 s to 1 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Window(pub(in super::super) Duration);

impl FromStr for Window {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        within(text, "1s", "1h").map(Self)
    }
}

/// Value of `open` or `open_max`: how long a circuit stays open, from 10 ms to 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct OpenTime(pub(in super::super) Duration);

impl FromStr for OpenTime {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        within(text, "10ms", "24h").map(Self)
    }
}

/// The word `"5xx"` as the value of `failures`: all statuses from 500 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct FailuresWord;

impl FromStr for FailuresWord {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "5xx" {
            return Ok(Self);
        }
        Err(ValueError::new(
            format!("`{text}` is not a valid value"),
            "write \"5xx\" or a list such as [502, 503, 504]",
        ))
    }
}

fn within(text: &str, least: &str, most: &str) -> Result<Duration, ValueError> {
    let Timeout(duration) = text.parse()?;
    let [HumanDuration(shortest), HumanDuration(longest)] = [least.parse()?, most.parse()?];
    if duration < shortest {
        return Err(ValueError::new(
            format!("the duration `{text}` is too short"),
            format!("write at least \"{least}\""),
        ));
    }
    if duration > longest {
        return Err(ValueError::new(
            format!("the duration `{text}` is too long"),
            format!("write at most \"{most}\""),
        ));
    }
    Ok(duration)
}

/// Value of `jitter`: random variation of the backoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct JitterText(pub(in super::super) Jitter);

impl FromStr for JitterText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let jitter = match text {
            "none" => Jitter::None,
            "full" => Jitter::Full,
            "equal" => Jitter::Equal,
            "decorrelated" => Jitter::Decorrelated,
            "percent" => Jitter::Percent(DEFAULT_PERCENT),
            "additive" => Jitter::Proportional(DEFAULT_ADDITION),
            _ => parse_amount(text)?,
        };
        // A zero in any notation is treated as "none", so that the check for missing jitter finds it.
        Ok(Self(match jitter {
            Jitter::Percent(0.0) | Jitter::Proportional(0.0) | Jitter::Added(Duration::ZERO) => {
                Jitter::None
            }
            some => some,
        }))
    }
}

/// Parses a jitter with an amount: a percentage, a fraction or a duration.
fn parse_amount(text: &str) -> Result<Jitter, ValueError> {
    let symmetric = text.strip_prefix('±').or(text.strip_prefix("+-"));
    let (part, jitter): (_, fn(f64) -> Jitter) = if let Some(percents) = symmetric {
        (parse_percentage(percents), Jitter::Percent)
    } else if let Some(percents) = text.strip_prefix('+') {
        (parse_percentage(percents), Jitter::Proportional)
    } else if let Some(part) = decimal(text) {
        (Some(part), Jitter::Proportional)
    } else if let Ok(HumanDuration(most)) = text.parse() {
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

/// Parses a number that consists only of digits and at most one dot. `str::parse` alone would also accept `inf` and
/// `1e3`.
fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (digits(whole) && digits(fraction)).then(|| text.parse().ok())?
}

/// Media type, such as `text/plain; charset=utf-8`, for a `Content-Type` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct MediaType(pub(in super::super) HeaderValue);

impl FromStr for MediaType {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let token = |name: &str| {
            let tchar =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            !name.is_empty() && name.bytes().all(tchar)
        };
        let essence = text.split(';').next().unwrap_or_default();
        let is_media_type = essence
            .trim_end_matches([' ', '\t'])
            .split_once('/')
            .is_some_and(|(kind, subtype)| token(kind) && token(subtype));
        match HeaderValue::from_str(text) {
            Ok(value) if is_media_type && text.is_ascii() => Ok(Self(value)),
            _ => Err(ValueError::new(
                format!("`{}` is not a valid media type", text.escape_debug()),
                "write a type and a subtype: \"application/json\", \"text/html; charset=utf-8\"",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_path_is_an_absolute_path_with_an_optional_query() {
        let parsed = |text: &str| text.parse::<CheckPath>().map(|CheckPath(path)| path);
        for text in ["/", "/healthz", "/health?full=1&x=%20"] {
            assert_eq!(parsed(text).expect(text).as_str(), text);
        }
        for text in ["", "healthz", "*", "http://a/", "/a b", "/a#b", "/ä", "?a"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_remedy_for_a_time_out_of_range_contains_the_bound() {
        for (text, remedy) in [("999ms", "at least \"1s\""), ("3601s", "at most \"1h\"")] {
            let error = text.parse::<Window>().expect_err(text);
            assert!(error.help.contains(remedy), "{}", error.help);
        }
        assert!("1s".parse::<Window>().is_ok() && "1h".parse::<Window>().is_ok());
        assert!(
            "99ms".parse::<CheckInterval>().is_err() && "100ms".parse::<CheckInterval>().is_ok()
        );
        assert!("9ms".parse::<OpenTime>().is_err() && "10ms".parse::<OpenTime>().is_ok());
        assert!("25h".parse::<OpenTime>().is_err() && "1d".parse::<OpenTime>().is_ok());
        assert!("0s".parse::<OpenTime>().is_err() && "soon".parse::<Window>().is_err());
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
            assert_eq!(text.parse(), Ok(JitterText(meaning)), "{text}");
        }
        for text in ["0", "0.0", "±0%", "+0%", "0ms"] {
            assert_eq!(text.parse(), Ok(JitterText(Jitter::None)), "{text}");
        }
    }

    #[test]
    fn the_error_about_an_invalid_jitter_contains_a_remedy() {
        for text in [
            "", "Full", "25%", "±25", "-25%", "+%", "+1e1%", "inf", ".5", "±", "±-1%",
        ] {
            let error = text.parse::<JitterText>().expect_err(text);
            assert!(error.help.contains("\"±25%\""), "{text}: {}", error.help);
        }
        for text in ["±101%", "+100.5%", "2", "1.01"] {
            let error = text.parse::<JitterText>().expect_err(text);
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
            assert_eq!(text.parse::<MediaType>().expect(text).0, text);
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
            assert!(text.parse::<MediaType>().is_err(), "{text}");
        }
    }
}
