//! Corrections of invalid values: what the author of a value in another notation probably means.
//!
//! A correction is shown only if it is a valid value, so it can be pasted into the file.

use super::super::scalar;

/// Returns a valid value of the scalar type `format` for a text that is not a valid value; `None` if its meaning is
/// unclear.
pub(super) fn correct(format: &str, text: &str) -> Option<String> {
    let text = text.trim();
    let corrected = match format {
        "Timeout" | "HumanDuration" => duration(text)?,
        "RateText" => rate(text)?,
        "Size" => size(text)?,
        "ServerUrl" => server_url(text)?,
        "KeyText" => limit_key(text)?,
        "ScopeText" => header_key(text)?,
        _ => return None,
    };
    scalar::check(format, &corrected).ok()?;
    Some(corrected)
}

/// Returns the unit of the configuration for a unit of time in words.
fn time_unit(word: &str) -> Option<&'static str> {
    match word.trim() {
        "ms" | "msec" | "millis" | "millisecond" | "milliseconds" => Some("ms"),
        "s" | "sec" | "secs" | "second" | "seconds" => Some("s"),
        "m" | "min" | "mins" | "minute" | "minutes" => Some("m"),
        "h" | "hr" | "hrs" | "hour" | "hours" => Some("h"),
        "d" | "day" | "days" => Some("d"),
        _ => None,
    }
}

/// Splits a text into a number, which can have decimals, and the lower-case text after it.
fn split_number(text: &str) -> Option<(&str, String)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    (!number.is_empty()).then(|| (number, rest.trim().to_lowercase()))
}

/// Corrects `75`, `75 sec` and `0.5s`.
fn duration(text: &str) -> Option<String> {
    let (number, unit) = split_number(text)?;
    let unit = if unit.is_empty() {
        "s"
    } else {
        time_unit(&unit)?
    };
    match (number.parse::<u32>(), unit) {
        (Ok(_), _) => Some(format!("{number}{unit}")),
        // Decimals of a second are whole milliseconds.
        (Err(_), "s") => {
            let (seconds, decimals) = number.split_once('.')?;
            let millis: u64 = format!("{decimals:0<3}").parse().ok()?;
            let seconds: u32 = seconds.parse().ok()?;
            (decimals.len() <= 3).then(|| format!("{}ms", u64::from(seconds) * 1_000 + millis))
        }
        (Err(_), _) => None,
    }
}

/// Corrects `10`, `10rps`, `10 per second` and `10/min`.
fn rate(text: &str) -> Option<String> {
    let (number, unit) = split_number(text)?;
    let unit = unit.replace(" per ", "/").replace("per ", "/");
    let unit = match unit.as_str() {
        "" | "rps" | "qps" => "s",
        "rpm" => "m",
        other => {
            let (what, unit) = other.split_once('/')?;
            let is_request = matches!(
                what.trim(),
                "" | "r" | "req" | "reqs" | "request" | "requests"
            );
            if !is_request {
                return None;
            }
            time_unit(unit)?
        }
    };
    let count: u32 = number.parse().ok()?;
    Some(format!("{count}/{unit}"))
}

/// Corrects `1MB`, `64k` and `10 MiB`.
fn size(text: &str) -> Option<String> {
    let (number, unit) = split_number(text)?;
    let unit = match unit.as_str() {
        "b" | "byte" | "bytes" => "B",
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        _ => return None,
    };
    Some(format!("{number}{unit}"))
}

/// Corrects `127.0.0.1:9000` and `http://127.0.0.1:9000/api`.
fn server_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let is_port = host.bytes().all(|byte| byte.is_ascii_digit());
    let is_scheme = host.starts_with("http");
    (!is_port && !is_scheme).then(|| format!("{scheme}://{host}"))
}

/// Corrects `ip`, `X-Api-Key` and `header: Api-Key`.
fn limit_key(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase().replace('-', "_");
    match lower.as_str() {
        "ip" | "client_ip" | "ip_address" | "address" | "remote_addr" | "device" | "per_client"
        | "per_ip" => Some("client".into()),
        "all" | "none" => Some("global".into()),
        _ => header_key(text),
    }
}

/// Corrects `X-Api-Key` and `header: Api-Key`. A text that is not clearly a header is not corrected, because clients can
/// choose the values of headers.
fn header_key(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if lower.starts_with("x-") || lower.starts_with("x_") {
        return Some(format!("header:{text}"));
    }
    let name = lower
        .strip_prefix("header")
        .map(|_| &text["header".len()..])?;
    let name = name.strip_prefix([':', '=', ' ', '.'])?.trim();
    Some(format!("header:{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_other_notations_are_corrected() {
        for (format, text, corrected) in [
            ("Timeout", "75", "75s"),
            ("Timeout", "75 sec", "75s"),
            ("Timeout", "2 Minutes", "2m"),
            ("HumanDuration", "0.5s", "500ms"),
            ("HumanDuration", "1.25", "1250ms"),
            ("HumanDuration", "9999999.5s", "9999999500ms"),
            ("RateText", "10", "10/s"),
            ("RateText", "10rps", "10/s"),
            ("RateText", "10 per second", "10/s"),
            ("RateText", "10/min", "10/m"),
            ("RateText", "100 requests per hour", "100/h"),
            ("RateText", "10r/s", "10/s"),
            ("Size", "1MB", "1MiB"),
            ("Size", "64k", "64KiB"),
            ("ServerUrl", "127.0.0.1:9000", "http://127.0.0.1:9000"),
            (
                "ServerUrl",
                "https://api.example/v1?a=1",
                "https://api.example",
            ),
            ("KeyText", "ip", "client"),
            ("KeyText", "X-Api-Key", "header:X-Api-Key"),
            ("KeyText", "header: Api-Key", "header:Api-Key"),
            ("KeyText", "per-client", "client"),
            ("ScopeText", "X-Api-Key", "header:X-Api-Key"),
        ] {
            assert_eq!(correct(format, text).as_deref(), Some(corrected), "{text}");
        }
    }

    #[test]
    fn a_value_with_an_unclear_meaning_is_not_corrected() {
        for (format, text) in [
            ("Timeout", "soon"),
            ("Timeout", "0"),
            ("Timeout", "1 fortnight"),
            ("HumanDuration", "0.0005s"),
            ("RateText", "often"),
            ("RateText", "1/fortnight"),
            ("RateText", "0/s"),
            ("Size", "large"),
            ("ServerUrl", "tcp://a"),
            ("ServerUrl", "http://user@a"),
            ("KeyText", "tenant"),
            ("KeyText", "api-key"),
            ("KeyText", "headers-x"),
            ("RateText", "10k/s"),
            ("RateText", "10,000/s"),
            ("RateText", "10-20/s"),
            ("ServerUrl", "https//api.example"),
            ("ServerUrl", "9000"),
        ] {
            assert_eq!(correct(format, text), None, "{text}");
        }
    }
}
