//! Durations, sizes and rates.

use std::time::Duration;

use super::ValueError;
use crate::throttle::RateError;
use crate::throttle::rate::{Rate, split_unit, times_unit};

/// A longer duration could overflow the arithmetic of timers.
const MAX_DURATION: Duration = Duration::from_hours(365 * 24);

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

pub(in super::super) fn display_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let whole = units
        .iter()
        .find(|(_, unit)| millis != 0 && millis.is_multiple_of(*unit));
    let (unit, size) = whole.unwrap_or(&("ms", 1));
    format!("{}{unit}", millis / size)
}

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

pub(super) fn rate(text: &str) -> Result<Rate, ValueError> {
    text.parse()
        .map_err(|error: RateError| ValueError::new(error.title, error.help))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

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
}
