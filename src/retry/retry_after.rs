//! Parser of the `Retry-After` header (RFC 9110, section 10.2.3), which contains seconds or a date.
//!
//! All three date formats of section 5.6.7 are accepted. A two-digit year from 70 to 99 is in the 20th century, others
//! are in the 21st. A number that exceeds 64 bits counts as `u64::MAX`, because the server asks for a very long delay.
//! The meaning of an invalid value, such as `1.5`, is not guessed.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use thiserror::Error;

/// Valid value of a `Retry-After` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// Seconds from the arrival of the response.
    Seconds(u64),
    /// A time of the system clock.
    At(SystemTime),
}

/// Why a `Retry-After` value is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// The value is empty or consists of whitespace.
    #[error("invalid Retry-After: the value is empty")]
    Empty,
    /// The number has a sign, as in `-1` or `+5`.
    #[error("invalid Retry-After: a number of seconds must not have a sign")]
    Signed,
    /// The number has characters other than digits, as in `1.5`, `5s` or `1e3`.
    #[error("invalid Retry-After: a number of seconds must consist of digits only")]
    NotWhole,
    /// The value is neither a number nor a valid HTTP date, whose day of the week must be right.
    #[error("invalid Retry-After: the value is neither a number of seconds nor a valid HTTP date")]
    NoDate,
}

impl RetryAfter {
    /// Parses a value, ignoring white space around it.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tidegate::retry::RetryAfter;
    ///
    /// let retry_after = RetryAfter::parse("120")?;
    /// assert_eq!(retry_after.wait(SystemTime::now()), Duration::from_secs(120));
    /// # Ok::<_, tidegate::retry::Unreadable>(())
    /// ```
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, Unreadable> {
        let value = value.as_ref().trim_ascii();
        match value {
            [] => Err(Unreadable::Empty),
            [b'+' | b'-', ..] => Err(Unreadable::Signed),
            digits if digits.iter().all(u8::is_ascii_digit) => {
                Ok(Self::Seconds(saturating(digits)))
            }
            [b'0'..=b'9' | b'.', ..] => Err(Unreadable::NotWhole),
            date => {
                let text = str::from_utf8(date).map_err(|_| Unreadable::NoDate)?;
                let date = httpdate::parse_http_date(text).map_err(|_| Unreadable::NoDate)?;
                Ok(Self::At(date))
            }
        }
    }

    /// Returns the `Retry-After` of a response if it is valid. Of several lines, which HTTP does not allow, the first
    /// is used.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(header::RETRY_AFTER)?).ok()
    }

    /// Returns how long to wait from `now`; zero for a date in the past.
    pub fn wait(self, now: SystemTime) -> Duration {
        match self {
            Self::Seconds(seconds) => Duration::from_secs(seconds),
            Self::At(time) => time.duration_since(now).unwrap_or_default(),
        }
    }
}

fn saturating(digits: &[u8]) -> u64 {
    let append = |number: u64, digit: &u8| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    digits.iter().fold(0, append)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::{any, proptest};
    use proptest::prop_assert_eq;

    use super::*;

    /// Wednesday, 21 October 2026, 07:28:00 UTC, as the time since the Unix epoch.
    const WEDNESDAY: Duration = Duration::from_mins(29_876_128);

    fn wednesday() -> SystemTime {
        SystemTime::UNIX_EPOCH + WEDNESDAY
    }

    #[test]
    fn seconds_are_a_delay_independent_of_the_current_time() {
        for (value, seconds) in [("0", 0), ("5", 5), ("120", 120), ("007", 7), (" 5\t", 5)] {
            let parsed = RetryAfter::parse(value).unwrap();
            assert_eq!(parsed, RetryAfter::Seconds(seconds), "{value:?}");
            assert_eq!(parsed.wait(wednesday()), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn all_three_date_formats_are_parsed() {
        let forms = [
            "Wed, 21 Oct 2026 07:28:00 GMT",
            "Wednesday, 21-Oct-26 07:28:00 GMT",
            "Wed Oct 21 07:28:00 2026",
            "  Wed, 21 Oct 2026 07:28:00 GMT ",
        ];
        for form in forms {
            let parsed = RetryAfter::parse(form);
            assert_eq!(parsed, Ok(RetryAfter::At(wednesday())), "{form:?}");
        }
        let sixth = RetryAfter::parse("Sun Nov  6 08:49:37 1994");
        let named = RetryAfter::parse("Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(sixth.is_ok() && sixth == named);
    }

    #[test]
    fn a_two_digit_year_up_to_69_is_in_the_21st_century() {
        let same = |short: &str, long: &str| {
            let (short, long) = (RetryAfter::parse(short), RetryAfter::parse(long));
            assert!(long.is_ok());
            assert_eq!(short, long);
        };
        same(
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT",
        );
        same(
            "Tuesday, 31-Dec-69 23:59:59 GMT",
            "Tue, 31 Dec 2069 23:59:59 GMT",
        );
        same(
            "Thursday, 01-Jan-70 00:00:00 GMT",
            "Thu, 01 Jan 1970 00:00:00 GMT",
        );
    }

    #[test]
    fn a_future_date_is_an_exact_delay_and_a_past_date_is_zero() {
        let parsed = RetryAfter::parse("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        let wait = |before| parsed.wait(wednesday() - before);
        assert_eq!(wait(Duration::from_secs(90)), Duration::from_secs(90));
        assert_eq!(wait(Duration::from_millis(1)), Duration::from_millis(1));
        assert_eq!(wait(Duration::ZERO), Duration::ZERO);
        let later = wednesday() + Duration::from_hours(1);
        assert_eq!(parsed.wait(later), Duration::ZERO);
    }

    #[test]
    fn a_number_above_64_bits_becomes_the_maximum() {
        let long = [
            "9".repeat(400),
            "5".repeat(40),
            format!("1{}", "0".repeat(30)),
        ];
        let least = ["18446744073709551615", "18446744073709551616"];
        for value in least.into_iter().chain(long.iter().map(String::as_str)) {
            let parsed = RetryAfter::parse(value);
            assert_eq!(parsed, Ok(RetryAfter::Seconds(u64::MAX)), "{value}");
        }
    }

    #[test]
    fn each_invalid_value_has_its_error() {
        let invalid = [
            ("", Unreadable::Empty),
            (" \t ", Unreadable::Empty),
            ("-1", Unreadable::Signed),
            ("+5", Unreadable::Signed),
            ("1.5", Unreadable::NotWhole),
            (".5", Unreadable::NotWhole),
            ("5s", Unreadable::NotWhole),
            ("1e3", Unreadable::NotWhole),
            ("5, 10", Unreadable::NotWhole),
            ("0x10", Unreadable::NotWhole),
            ("2026-10-21T07:28:00Z", Unreadable::NotWhole),
            ("soon", Unreadable::NoDate),
            ("Infinity", Unreadable::NoDate),
            // The day of the week is wrong, because 21 October 2026 is a Wednesday.
            ("Thu, 21 Oct 2026 07:28:00 GMT", Unreadable::NoDate),
            ("Mon, 30 Feb 2026 07:28:00 GMT", Unreadable::NoDate),
            ("Wed, 21 Oct 2026 24:00:00 GMT", Unreadable::NoDate),
            ("Wed, 21 Oct 2026 07:28:00 CET", Unreadable::NoDate),
            ("Wed, 21 Oct 2026 07:28:00", Unreadable::NoDate),
            ("٣", Unreadable::NoDate),
        ];
        for (value, error) in invalid {
            assert_eq!(RetryAfter::parse(value), Err(error), "{value:?}");
        }
        assert_eq!(RetryAfter::parse([0xff]), Err(Unreadable::NoDate));
    }

    #[test]
    fn of_several_lines_the_first_counts_and_an_invalid_one_is_ignored() {
        let first = |lines: &[&'static str]| {
            let line = |value: &&'static str| {
                let value = HeaderValue::from_static(value);
                (header::RETRY_AFTER, value)
            };
            RetryAfter::of(&lines.iter().map(line).collect())
        };
        assert_eq!(first(&[]), None);
        assert_eq!(first(&["soon"]), None);
        assert_eq!(first(&["3"]), Some(RetryAfter::Seconds(3)));
        assert_eq!(first(&["3", "5"]), Some(RetryAfter::Seconds(3)));
    }

    proptest! {
        #[test]
        fn only_digits_are_parsed_as_seconds(value in "[0-9 +.e-]{0,5}") {
            let digits = value.trim();
            let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
            let seconds = digits.parse().ok().filter(|_| whole).map(RetryAfter::Seconds);
            prop_assert_eq!(RetryAfter::parse(&value).ok(), seconds);
        }

        #[test]
        fn formatted_values_parse_to_the_same_value(seconds in any::<u64>(), date in 0_u64..253_402_300_800) {
            let parsed = RetryAfter::parse(seconds.to_string());
            prop_assert_eq!(parsed, Ok(RetryAfter::Seconds(seconds)));
            let date = SystemTime::UNIX_EPOCH + Duration::from_secs(date);
            let parsed = RetryAfter::parse(httpdate::fmt_http_date(date));
            prop_assert_eq!(parsed, Ok(RetryAfter::At(date)));
        }
    }
}
