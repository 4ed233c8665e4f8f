//! The wait before a retry as a header value, in whole numbers that are rounded up, so that a client never retries too
//! early. The minimum is 1, because a client would retry at once after a 0.

use std::time::{Duration, SystemTime};

use http::HeaderValue;

use crate::respond::RetryAfterForm;

/// A larger value would overflow in clients that store it in a signed 32-bit integer.
const MAX_SECONDS: u64 = i32::MAX as u64;

pub(crate) fn whole_seconds(wait: Duration) -> u32 {
    let rounded = wait
        .as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0));
    u32::try_from(rounded.clamp(1, MAX_SECONDS)).expect("clamped to 31 bits")
}

/// From 1 ms to 2³¹−1 s.
pub(crate) fn milliseconds(wait: Duration) -> HeaderValue {
    let millis = wait
        .as_secs()
        .saturating_mul(1_000)
        .saturating_add(u64::from(wait.subsec_nanos().div_ceil(1_000_000)));
    digits(millis.clamp(1, MAX_SECONDS * 1_000))
}

/// `wall` is the start of the wait.
pub(crate) fn header(wait: Duration, form: RetryAfterForm, wall: SystemTime) -> HeaderValue {
    match form {
        RetryAfterForm::Seconds => match whole_seconds(wait) {
            1 => const { HeaderValue::from_static("1") },
            seconds => digits(seconds.into()),
        },
        RetryAfterForm::HttpDate => http_date(wait, wall),
    }
}

/// One allocation. `HeaderValue::from` needs two.
fn digits(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits are visible ASCII")
}

/// Rounded up, and at least 1 s after `wall`.
fn http_date(wait: Duration, wall: SystemTime) -> HeaderValue {
    let wait = wait.clamp(Duration::from_secs(1), Duration::from_secs(MAX_SECONDS));
    let since_epoch = wall
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        + wait;
    let seconds = since_epoch.as_secs() + u64::from(since_epoch.subsec_nanos() > 0);
    // The end of the year 9999, because an HTTP date has a year of four digits.
    let seconds = seconds.min(253_402_300_799);
    let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    HeaderValue::try_from(date).expect("an HTTP date is ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up_and_never_zero() {
        let cases = [
            (0, 1),
            (1, 1),
            (999, 1),
            (1_000, 1),
            (1_001, 2),
            (59_999, 60),
        ];
        for (millis, seconds) in cases {
            assert_eq!(
                whole_seconds(Duration::from_millis(millis)),
                seconds,
                "{millis} ms"
            );
        }
        assert_eq!(whole_seconds(Duration::new(1, 1)), 2);
    }

    #[test]
    fn seconds_saturate_at_31_bits() {
        assert_eq!(whole_seconds(Duration::MAX), i32::MAX.unsigned_abs());
    }

    #[test]
    fn milliseconds_are_rounded_up_never_zero_and_saturate() {
        let cases = [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(1), 1),
            (Duration::from_nanos(1_000_001), 2),
            (Duration::from_millis(250), 250),
            (Duration::new(0, 999_999_999), 1_000),
            (Duration::new(7, 249_000_001), 7_250),
            (Duration::from_secs(MAX_SECONDS), MAX_SECONDS * 1_000),
            (Duration::MAX, MAX_SECONDS * 1_000),
        ];
        for (wait, expected) in cases {
            assert_eq!(milliseconds(wait), &*expected.to_string(), "{wait:?}");
        }
    }

    #[test]
    fn a_date_is_rounded_up_and_at_least_one_second_ahead() {
        let wall = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        let date = http_date;
        assert_eq!(
            date(Duration::from_secs(10), wall),
            "Wed, 21 Oct 2026 07:28:10 GMT"
        );
        assert_eq!(date(Duration::ZERO, wall), "Wed, 21 Oct 2026 07:28:01 GMT");
        let late = wall + Duration::from_millis(1);
        assert_eq!(
            date(Duration::from_secs(1), late),
            "Wed, 21 Oct 2026 07:28:02 GMT"
        );
    }

    #[test]
    fn a_clock_before_1970_or_in_9999_gives_a_valid_date() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        let before_epoch = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        let date = |wall| http_date(Duration::from_secs(5), wall);
        assert_eq!(date(end), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(date(before_epoch), "Thu, 01 Jan 1970 00:00:05 GMT");
    }
}
