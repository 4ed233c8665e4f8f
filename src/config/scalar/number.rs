//! Configuration values that are durations, sizes or rates.

use std::num::NonZeroU32;
use std::time::Duration;

use super::ValueError;

const DAY: u64 = 24 * 60 * 60;

/// Maximum of all configured durations: one year. A longer duration could overflow the arithmetic of timers.
const MAX_DURATION: Duration = Duration::from_secs(365 * DAY);

/// Parses a duration from zero to one year, such as `250ms` or `24h`.
pub(super) fn duration(text: &str) -> Result<Duration, ValueError> {
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
    Ok(duration)
}

/// Returns a duration in the form of the configuration file, such as `250ms`.
pub(in super::super) fn display_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let whole = units
        .iter()
        .find(|(_, unit)| millis != 0 && millis.is_multiple_of(*unit));
    let (unit, size) = whole.unwrap_or(&("ms", 1));
    format!("{}{unit}", millis / size)
}

/// Parses a duration longer than zero.
pub(super) fn timeout(text: &str) -> Result<Duration, ValueError> {
    let duration = duration(text)?;
    if duration.is_zero() {
        return Err(ValueError::new(
            format!("the duration `{text}` is zero"),
            "write a duration longer than zero, such as \"10s\"",
        ));
    }
    Ok(duration)
}

/// Parses a size, such as `64KiB` or `1000`, to a number of bytes.
pub(super) fn size(text: &str) -> Result<u64, ValueError> {
    let (number, unit) = split_unit(text);
    let shift = match unit {
        "" | "B" => Some(0),
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        _ => None,
    };
    let bytes = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        ValueError::new(
            format!("`{text}` is not a size"),
            "write a whole number of bytes, or a whole number with KiB, MiB or GiB: \"64KiB\", \"1MiB\"",
        )
    })
}

/// Number of requests (`count`) per time (`period`). Both are above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Rate {
    pub(in super::super) count: NonZeroU32,
    pub(in super::super) period: Duration,
}

/// Parses a rate, such as `1/s` or `5/10s`.
pub(super) fn rate(text: &str) -> Result<Rate, ValueError> {
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
    Ok(Rate { count, period })
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
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "s", "10", "10 s", "-1s", "1.5s", "10S", "1m30s", "366d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration(&format!("{}d", u64::MAX)).is_err());
    }

    #[test]
    fn a_displayed_duration_parses_to_the_same_value() {
        for text in ["0ms", "250ms", "1500ms", "10s", "90s", "5m", "24h"] {
            assert_eq!(duration(text).map(display_duration).as_deref(), Ok(text));
        }
        assert_eq!(duration("7d").map(display_duration).as_deref(), Ok("168h"));
    }

    #[test]
    fn a_zero_timeout_is_invalid() {
        assert!(duration("0s").is_ok());
        assert!(timeout("0s").is_err());
    }

    #[test]
    fn sizes_are_parsed_with_binary_units_or_as_bytes() {
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size("17"), Ok(17));
        assert_eq!(size("0KiB"), Ok(0));
        for text in ["", "1KB", "1 MiB", "-1", "99999999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_parsed_as_requests_per_time() {
        for (text, count, seconds) in [("1/s", 1, 1), ("100/m", 100, 60), ("5/10s", 5, 10)] {
            let rate = rate(text).expect(text);
            assert_eq!(rate.count.get(), count);
            assert_eq!(rate.period, Duration::from_secs(seconds));
        }
        for text in ["", "1", "1/", "/s", "0/s", "1/0s", "+1/s", "1/w", "1 / s"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
