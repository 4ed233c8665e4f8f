//! What is said about upstreams alone: how they are checked, left alone and tried again.

use std::str::FromStr;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;

use super::{Fault, HumanDuration, Timeout};
use crate::retry::Jitter;

/// What `jitter = "percent"` means.
const USUAL_PERCENT: f64 = 0.25;

/// What `jitter = "additive"` means.
const USUAL_ADDITION: f64 = 0.3;

/// What a server is asked for to see whether it is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct CheckPath(pub(in super::super) PathAndQuery);

impl FromStr for CheckPath {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        // `PathAndQuery` drops a fragment without a word, and takes what is not ASCII.
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let path = text
            .parse()
            .ok()
            .filter(|_| text.starts_with('/') && text.bytes().all(plain));
        path.map(Self).ok_or_else(|| {
            Fault::new(
                format!("`{text}` cannot be asked for"),
                "write a path, and any query, as it stands in a request: \"/healthz\"",
            )
        })
    }
}

/// How often a server is asked whether it is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct CheckInterval(pub(in super::super) Duration);

impl FromStr for CheckInterval {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        within(text, "100ms", "1h").map(Self)
    }
}

/// Over how long something is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Window(pub(in super::super) Duration);

impl FromStr for Window {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        within(text, "1s", "1h").map(Self)
    }
}

/// How long a circuit is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct OpenTime(pub(in super::super) Duration);

impl FromStr for OpenTime {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        within(text, "10ms", "24h").map(Self)
    }
}

/// The word for all statuses from 500 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct FailuresWord;

impl FromStr for FailuresWord {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        if text == "5xx" {
            return Ok(Self);
        }
        Err(Fault::new(
            format!("`{text}` is not a choice here"),
            "write \"5xx\" or a list such as [502, 503, 504]",
        ))
    }
}

fn within(text: &str, least: &str, most: &str) -> Result<Duration, Fault> {
    let Timeout(duration) = text.parse()?;
    let [HumanDuration(shortest), HumanDuration(longest)] = [least.parse()?, most.parse()?];
    if duration < shortest {
        return Err(Fault::new(
            format!("`{text}` is too short"),
            format!("write at least \"{least}\""),
        ));
    }
    if duration > longest {
        return Err(Fault::new(
            format!("`{text}` is too long"),
            format!("write at most \"{most}\""),
        ));
    }
    Ok(duration)
}

/// How waits are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct JitterText(pub(in super::super) Jitter);

impl FromStr for JitterText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let jitter = match text {
            "none" => Jitter::None,
            "full" => Jitter::Full,
            "equal" => Jitter::Equal,
            "decorrelated" => Jitter::Decorrelated,
            "percent" => Jitter::Percent(USUAL_PERCENT),
            "additive" => Jitter::Proportional(USUAL_ADDITION),
            _ => measured(text)?,
        };
        // However it is spelt, nothing is nothing.
        Ok(Self(match jitter {
            Jitter::Percent(0.0) | Jitter::Proportional(0.0) | Jitter::Added(Duration::ZERO) => {
                Jitter::None
            }
            some => some,
        }))
    }
}

/// A jitter that says how much.
fn measured(text: &str) -> Result<Jitter, Fault> {
    let either_way = text.strip_prefix('±').or(text.strip_prefix("+-"));
    let (part, jitter): (_, fn(f64) -> Jitter) = if let Some(percents) = either_way {
        (hundredths(percents), Jitter::Percent)
    } else if let Some(percents) = text.strip_prefix('+') {
        (hundredths(percents), Jitter::Proportional)
    } else if let Some(part) = decimal(text) {
        (Some(part), Jitter::Proportional)
    } else if let Ok(HumanDuration(most)) = text.parse() {
        return Ok(Jitter::Added(most));
    } else {
        (None, Jitter::Percent)
    };
    match part {
        Some(part) if part <= 1.0 => Ok(jitter(part)),
        Some(_) => Err(Fault::new(
            format!("a jitter of `{text}` is more than the wait itself"),
            "write at most \"±100%\", \"+100%\" or 1",
        )),
        None => Err(Fault::new(
            format!("`{text}` is not a jitter"),
            "write \"none\", \"full\", \"equal\", \"decorrelated\", a percentage such as \"±25%\" or \"+30%\", a \
             duration that is added such as \"500ms\", or a number from 0 to 1",
        )),
    }
}

fn hundredths(percents: &str) -> Option<f64> {
    decimal(percents.strip_suffix('%')?).map(|percents| percents / 100.0)
}

/// A number in digits: what Rust would also take, such as `inf` and `1e3`, nobody means here.
fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (digits(whole) && digits(fraction)).then(|| text.parse().ok())?
}

/// The `Content-Type` of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct MediaType(pub(in super::super) HeaderValue);

impl FromStr for MediaType {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let token = |name: &str| {
            let tchar =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            !name.is_empty() && name.bytes().all(tchar)
        };
        let essence = text.split(';').next().unwrap_or_default();
        let named = essence
            .trim_end_matches([' ', '\t'])
            .split_once('/')
            .is_some_and(|(kind, subtype)| token(kind) && token(subtype));
        match HeaderValue::from_str(text) {
            Ok(value) if named && text.is_ascii() => Ok(Self(value)),
            _ => Err(Fault::new(
                format!("`{}` is not a media type", text.escape_debug()),
                "write a type and a subtype: \"application/json\", \"text/html; charset=utf-8\"",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_a_path() {
        let asked = |text: &str| text.parse::<CheckPath>().map(|CheckPath(path)| path);
        for text in ["/", "/healthz", "/health?full=1&x=%20"] {
            assert_eq!(asked(text).expect(text).as_str(), text);
        }
        for text in ["", "healthz", "*", "http://a/", "/a b", "/a#b", "/ä", "?a"] {
            assert!(asked(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_bounds_that_are_named() {
        for (text, remedy) in [("999ms", "at least \"1s\""), ("3601s", "at most \"1h\"")] {
            let fault = text.parse::<Window>().expect_err(text);
            assert!(fault.help.contains(remedy), "{}", fault.help);
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
    fn jitter_is_a_word_a_percentage_a_duration_or_a_number() {
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
    fn what_is_no_jitter_says_what_would_be() {
        for text in [
            "", "Full", "25%", "±25", "-25%", "+%", "+1e1%", "inf", ".5", "±", "±-1%",
        ] {
            let fault = text.parse::<JitterText>().expect_err(text);
            assert!(fault.help.contains("\"±25%\""), "{text}: {}", fault.help);
        }
        for text in ["±101%", "+100.5%", "2", "1.01"] {
            let fault = text.parse::<JitterText>().expect_err(text);
            assert!(fault.title.contains("more than the wait itself"), "{text}");
        }
    }

    #[test]
    fn a_media_type_has_a_subtype() {
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
