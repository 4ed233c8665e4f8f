//! Rates as text, such as `10/s` or `5/10s`.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

const DAY: u64 = 24 * 60 * 60;

/// Both are above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: NonZeroU32,
    pub(crate) period: Duration,
}

/// As in the configuration, such as `10/s`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.count)?;
        match (self.period.as_secs(), self.period.subsec_nanos()) {
            (1, 0) => f.write_str("s"),
            (60, 0) => f.write_str("m"),
            (3_600, 0) => f.write_str("h"),
            (DAY, 0) => f.write_str("d"),
            (seconds, 0) => write!(f, "{seconds}s"),
            _ => write!(f, "{}ms", self.period.as_millis()),
        }
    }
}

/// Error of a text that is not a rate such as `10/s`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{title}; {help}")]
pub struct RateError {
    /// What is wrong, in one line.
    pub(crate) title: String,
    /// How to write the rate.
    pub(crate) help: &'static str,
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let error = |title: String, help| RateError { title, help };
        let malformed = || {
            error(
                format!("`{text}` is not a rate"),
                "write a number of requests per time: \"1/s\", \"100/m\", \"5/h\", \"1000/d\" or \"5/10s\"",
            )
        };
        let (count, period) = text.split_once('/').ok_or_else(malformed)?;
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        let count: u32 = count.parse().map_err(|_| malformed())?;
        let (times, unit) = split_unit(period);
        let times = if times.is_empty() { "1" } else { times };
        let period = times
            .parse()
            .ok()
            .and_then(|times| times_unit(times, unit))
            .ok_or_else(malformed)?;
        let count = NonZeroU32::new(count).ok_or_else(|| {
            error(
                format!("the rate `{text}` admits no requests"),
                "write at least 1 request, such as \"1/s\"",
            )
        })?;
        if period.is_zero() {
            return Err(error(
                format!("the rate `{text}` has a time of zero"),
                "write a time longer than zero, such as \"1/s\" or \"5/10s\"",
            ));
        }
        Ok(Self { count, period })
    }
}

/// After the leading digits. Both parts can be empty.
pub(crate) fn split_unit(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(digits)
}

/// `None` for another unit than `ms`, `s`, `m`, `h` or `d`, or if the duration exceeds the range of `Duration`.
pub(crate) fn times_unit(count: u64, unit: &str) -> Option<Duration> {
    let seconds = match unit {
        "ms" => return Some(Duration::from_millis(count)),
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => DAY,
        _ => return None,
    };
    count.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_as_requests_per_time() {
        for (text, count, seconds) in [("1/s", 1, 1), ("100/m", 100, 60), ("5/10s", 5, 10)] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!(rate.count.get(), count);
            assert_eq!(rate.period, Duration::from_secs(seconds));
        }
        for text in ["", "1", "1/", "/s", "0/s", "1/0s", "+1/s", "1/w", "1 / s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
