//! What a `Retry-After` says, read as RFC 9110 § 10.2.3 writes it: seconds, or a date.
//!
//! A date is read in all three forms of § 5.6.7, the year of two digits included (70 to 99 are of the last
//! century, the others of this one); one that is past means "now". More digits than fit are a very long time
//! and not junk: whoever sent them wants to be left alone, and how long anybody is believed is the caller's
//! to say, see [`RetryAfterPolicy`](super::RetryAfterPolicy).
//!
//! What cannot be read is named ([`Unreadable`]) and never guessed at: `1.5` might be meant as a second and a
//! half, but who sends it has not read the RFC, and the caller has a wait of its own to fall back on.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use thiserror::Error;

/// What a `Retry-After` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// This many seconds from now.
    Seconds(u64),
    /// At this time.
    At(SystemTime),
}

/// Why a `Retry-After` says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// `-1` or `+5`.
    #[error("a number of seconds has no sign")]
    Signed,
    /// `1.5`, `5s` or `1e3`.
    #[error("a number of seconds has nothing but digits")]
    NotWhole,
    /// Neither a number nor a date that exists, with the right day of the week.
    #[error("it is neither a number of seconds nor an HTTP date")]
    NoDate,
}

impl RetryAfter {
    /// Reads the header's value; white space around it does not matter.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tidegate::retry::RetryAfter;
    ///
    /// let told = RetryAfter::parse("120")?;
    /// assert_eq!(told.wait(SystemTime::now()), Duration::from_secs(120));
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

    /// What the headers of an answer say: `None` where there is no such line, or none that can be read. Of
    /// several lines, which nobody may send, the first counts.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(header::RETRY_AFTER)?).ok()
    }

    /// How long that is from `now`; nothing for a time that is past.
    pub fn wait(self, now: SystemTime) -> Duration {
        match self {
            Self::Seconds(seconds) => Duration::from_secs(seconds),
            Self::At(time) => time.duration_since(now).unwrap_or_default(),
        }
    }
}

/// A number of any length, stopping at the largest that fits.
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

    /// Wednesday, 21 October 2026, 07:28:00.
    const WEDNESDAY: Duration = Duration::from_mins(29_876_128);

    fn wednesday() -> SystemTime {
        SystemTime::UNIX_EPOCH + WEDNESDAY
    }

    #[test]
    fn seconds_are_a_wait_from_now_whatever_time_it_is() {
        for (value, seconds) in [("0", 0), ("5", 5), ("120", 120), ("007", 7), (" 5\t", 5)] {
            let told = RetryAfter::parse(value).unwrap();
            assert_eq!(told, RetryAfter::Seconds(seconds), "{value:?}");
            assert_eq!(told.wait(wednesday()), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn a_date_is_read_in_all_three_forms() {
        let forms = [
            "Wed, 21 Oct 2026 07:28:00 GMT",
            "Wednesday, 21-Oct-26 07:28:00 GMT",
            "Wed Oct 21 07:28:00 2026",
            "  Wed, 21 Oct 2026 07:28:00 GMT ",
        ];
        for form in forms {
            let told = RetryAfter::parse(form);
            assert_eq!(told, Ok(RetryAfter::At(wednesday())), "{form:?}");
        }
        let sixth = RetryAfter::parse("Sun Nov  6 08:49:37 1994");
        let named = RetryAfter::parse("Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(sixth.is_ok() && sixth == named);
    }

    #[test]
    fn a_year_of_two_digits_is_of_this_century_up_to_69() {
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
    fn a_date_is_waited_for_to_the_moment_and_a_past_one_not_at_all() {
        let told = RetryAfter::parse("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        let wait = |before| told.wait(wednesday() - before);
        assert_eq!(wait(Duration::from_secs(90)), Duration::from_secs(90));
        assert_eq!(wait(Duration::from_millis(1)), Duration::from_millis(1));
        assert_eq!(wait(Duration::ZERO), Duration::ZERO);
        let later = wednesday() + Duration::from_hours(1);
        assert_eq!(told.wait(later), Duration::ZERO);
    }

    #[test]
    fn more_digits_than_fit_are_a_very_long_time() {
        let long = [
            "9".repeat(400),
            "5".repeat(40),
            format!("1{}", "0".repeat(30)),
        ];
        let least = ["18446744073709551615", "18446744073709551616"];
        for value in least.into_iter().chain(long.iter().map(String::as_str)) {
            let told = RetryAfter::parse(value);
            assert_eq!(told, Ok(RetryAfter::Seconds(u64::MAX)), "{value}");
        }
    }

    #[test]
    fn every_refusal_has_its_name() {
        let refused = [
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
            // The 21st is a Wednesday.
            ("Thu, 21 Oct 2026 07:28:00 GMT", Unreadable::NoDate),
            ("Mon, 30 Feb 2026 07:28:00 GMT", Unreadable::NoDate),
            ("Wed, 21 Oct 2026 24:00:00 GMT", Unreadable::NoDate),
            ("Wed, 21 Oct 2026 07:28:00 CET", Unreadable::NoDate),
            ("Wed, 21 Oct 2026 07:28:00", Unreadable::NoDate),
            ("٣", Unreadable::NoDate),
        ];
        for (value, refusal) in refused {
            assert_eq!(RetryAfter::parse(value), Err(refusal), "{value:?}");
        }
        assert_eq!(RetryAfter::parse([0xff]), Err(Unreadable::NoDate));
    }

    #[test]
    fn of_an_answer_the_first_line_counts_and_junk_is_as_good_as_none() {
        let told = |lines: &[&'static str]| {
            let line = |value: &&'static str| {
                let value = HeaderValue::from_static(value);
                (header::RETRY_AFTER, value)
            };
            RetryAfter::of(&lines.iter().map(line).collect())
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["soon"]), None);
        assert_eq!(told(&["3"]), Some(RetryAfter::Seconds(3)));
        assert_eq!(told(&["3", "5"]), Some(RetryAfter::Seconds(3)));
    }

    proptest! {
        #[test]
        fn seconds_are_read_from_digits_and_nothing_else(value in "[0-9 +.e-]{0,5}") {
            let digits = value.trim();
            let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
            let seconds = digits.parse().ok().filter(|_| whole).map(RetryAfter::Seconds);
            prop_assert_eq!(RetryAfter::parse(&value).ok(), seconds);
        }

        #[test]
        fn what_is_written_is_what_is_read(seconds in any::<u64>(), date in 0_u64..253_402_300_800) {
            let told = RetryAfter::parse(seconds.to_string());
            prop_assert_eq!(told, Ok(RetryAfter::Seconds(seconds)));
            let date = SystemTime::UNIX_EPOCH + Duration::from_secs(date);
            let told = RetryAfter::parse(httpdate::fmt_http_date(date));
            prop_assert_eq!(told, Ok(RetryAfter::At(date)));
        }
    }
}
