//! Texts of reports: escapes, durations and counts.

use std::fmt::Write as _;

use crate::lab::verdict::Verdict;
use crate::request::log_fields::is_unprintable;

/// One line that is valid in every format. Control characters, invisible characters and directional marks become
/// escapes such as `\u{1b}`. So do the two characters that XML 1.0 does not allow otherwise.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) || matches!(character, '\u{fffe}' | '\u{ffff}') {
            write!(out, "{}", character.escape_unicode()).expect("writing to a string never fails");
        } else {
            out.push(character);
        }
    }
    out
}

pub(super) fn escape_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            character => out.push(character),
        }
    }
    out
}

/// Such as `250 ms`, `1.204 s` or `130 s`.
pub(super) fn duration(ms: f64) -> String {
    if ms < 999.5 {
        return format!("{ms:.0} ms");
    }
    let seconds = ms / 1_000.0;
    let decimals = match seconds {
        ..10.0 => 3,
        ..100.0 => 2,
        _ => 1,
    };
    let text = format!("{seconds:.decimals$}");
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

pub(super) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

pub(super) fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NotEnoughData => "not enough data",
        verdict => verdict.id(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_no_trailing_zeros() {
        for (ms, expected) in [
            (0.0, "0 ms"),
            (250.4, "250 ms"),
            (999.6, "1 s"),
            (1_204.0, "1.204 s"),
            (9_999.9, "10 s"),
            (12_345.0, "12.35 s"),
            (130_000.0, "130 s"),
            (100_000.0, "100 s"),
        ] {
            assert_eq!(duration(ms), expected, "{ms}");
        }
    }

    #[test]
    fn a_printable_text_is_one_line_without_escape_sequences() {
        let text = "a\u{1b}[31m\nb\u{202e}\u{0}\u{ffff}\\ \u{e9}";
        let expected = "a\\u{1b}[31m\\u{a}b\\u{202e}\\u{0}\\u{ffff}\\ \u{e9}";
        assert_eq!(printable(text), expected);
    }
}
