//! Configuration values that are durations, sizes or rates.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::ValueError;

const DAY: u64 = 24 * 60 * 60;

/// Maximum of all configured durations: one year. A longer duration could overflow the arithmetic of timers.
const MAX_DURATION: Duration = Duration::from_secs(365 * DAY);

/// Duration from zero to one year, such as `250ms` or `24h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct HumanDuration(pub(in super::super) Duration);

impl FromStr for HumanDuration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (number, unit) = split_unit(text);
        let duration = number
            .parse()
            .ok()
            .and_then(|count| times_unit(count, unit))
            .ok_or_else(|| {
                ValueError::new(
                    format!("`{text}` is not a duration"),
                    "write a whole number and a unit (ms, s, m, h or d): \"250ms\", \"10s\", \"24h\"",
                )
            })?;
        if duration > MAX_DURATION {
            return Err(ValueError::new(
                format!("the duration `{text}` is longer than a year"),
                "write at most \"365d\"",
            ));
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let whole = units
            .iter()
            .find(|(_, unit)| millis != 0 && millis.is_multiple_of(*unit));
        let (unit, size) = whole.unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", millis / size)
    }
}

/// Duration longer than zero and up to one year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Timeout(pub(in super::super) Duration);

impl FromStr for Timeout {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let HumanDuration(duration) = text.parse()?;
        if duration.is_zero() {
            return Err(ValueError::new(
                format!("the duration `{text}` is zero"),
                "write a duration longer than zero, such as \"10s\"",
            ));
        }
        Ok(Self(duration))
    }
}

/// Size in bytes, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Size(pub(in super::super) u64);

impl FromStr for Size {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse()? {
            SizeOrZero(0) => Err(ValueError::new(
                format!("the size `{text}` is zero"),
                "write a size of at least 1 byte, such as \"64KiB\"",
            )),
            SizeOrZero(bytes) => Ok(Self(bytes)),
        }
    }
}

/// Size in bytes, which can be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct SizeOrZero(pub(in super::super) u64);

impl FromStr for SizeOrZero {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (number, unit) = split_unit(text);
        let shift = match unit {
            "" | "B" => Some(0),
            "KiB" => Some(10),
            "MiB" => Some(20),
            "GiB" => Some(30),
            _ => None,
        };
        let bytes = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(|| {
            ValueError::new(
                format!("`{text}` is not a size"),
                "write a whole number of bytes, or a whole number with KiB, MiB or GiB: \"64KiB\", \"1MiB\"",
            )
        })
    }
}

/// Rate: a number of requests (`count`) per time (`period`). Both are above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Rate {
    pub(in super::super) count: NonZeroU32,
    pub(in super::super) period: Duration,
}

impl FromStr for Rate {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let malformed = || {
            ValueError::new(
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
            ValueError::new(
                format!("the rate `{text}` admits no requests"),
                "write at least 1 request, such as \"1/s\"",
            )
        })?;
        if period.is_zero() {
            return Err(ValueError::new(
                format!("the rate `{text}` has a time of zero"),
                "write a time longer than zero, such as \"1/s\" or \"5/10s\"",
            ));
        }
        Ok(Self { count, period })
    }
}

/// Splits a text after its leading digits into a number and a unit. Both can be empty.
fn split_unit(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(digits)
}

fn times_unit(count: u64, unit: &str) -> Option<Duration> {
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
    fn durations_are_parsed_in_every_unit() {
        for (text, seconds) in [("10s", 10), ("5m", 300), ("24h", DAY), ("7d", 7 * DAY)] {
            let expected = HumanDuration(Duration::from_secs(seconds));
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        let expected = HumanDuration(Duration::from_millis(250));
        assert_eq!("250ms".parse(), Ok(expected));
        for text in ["", "s", "10", "10 s", "-1s", "1.5s", "10S", "1m30s", "366d"] {
            assert!(text.parse::<HumanDuration>().is_err(), "{text}");
        }
        let huge = format!("{}d", u64::MAX);
        assert!(huge.parse::<HumanDuration>().is_err());
    }

    #[test]
    fn a_displayed_duration_parses_to_the_same_value() {
        for text in ["0ms", "250ms", "1500ms", "10s", "90s", "5m", "24h"] {
            let read: HumanDuration = text.parse().expect(text);
            assert_eq!(read.to_string(), text);
        }
        let week: HumanDuration = "7d".parse().expect("a week");
        assert_eq!(week.to_string(), "168h");
    }

    #[test]
    fn a_zero_timeout_is_invalid() {
        assert!("0s".parse::<HumanDuration>().is_ok());
        assert!("0s".parse::<Timeout>().is_err());
    }

    #[test]
    fn sizes_are_parsed_with_binary_units_or_as_bytes() {
        assert_eq!("64KiB".parse(), Ok(Size(65_536)));
        assert_eq!("4GiB".parse(), Ok(Size(4 << 30)));
        assert_eq!("17".parse(), Ok(Size(17)));
        for text in ["", "1KB", "1 MiB", "0", "0KiB", "-1", "99999999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!("0KiB".parse(), Ok(SizeOrZero(0)));
        assert_eq!("2KiB".parse(), Ok(SizeOrZero(2048)));
        assert!("-1".parse::<SizeOrZero>().is_err());
    }

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
