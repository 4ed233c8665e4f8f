//! Values in a step of a scenario: statuses, rates, headers and quoted texts.

use std::borrow::Cow;

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, StatusCode};

use super::super::super::suggest;
use super::super::{ValueError, http_message, number};
use super::{ACTIONS, Word, error};
use crate::scenario::step::RetryAfterText;

pub(super) fn status(word: &Word<'_>) -> Result<StatusCode, ValueError> {
    if !word.text.bytes().all(|byte| byte.is_ascii_digit()) {
        let title = format!("`{}` is not an action of a step", word.text);
        let help = suggest::remedy(word.text, ACTIONS.into_iter());
        return Err(error(title, format!("{help}, or a status such as `503`")).at(word));
    }
    let number = word.text.parse().ok().filter(|n| (200..600).contains(n));
    let status = number.and_then(|number| StatusCode::from_u16(number).ok());
    status.ok_or_else(|| {
        let title = format!("`{}` is not the status of a response", word.text);
        error(title, "write a status from 200 to 599").at(word)
    })
}

/// With or without `/s`.
pub(super) fn byte_rate(word: &Word<'_>) -> Result<u64, ValueError> {
    let text = word.text.strip_suffix("/s").unwrap_or(word.text);
    let rate = number::size(text).ok().filter(|rate| *rate > 0);
    rate.ok_or_else(|| {
        let title = format!("`{}` is not a number of bytes per second", word.text);
        error(
            title,
            "write a size of at least 1 byte, such as `slow 1KiB`",
        )
        .at(word)
    })
}

pub(super) fn retry_after(value: &str) -> Result<RetryAfterText, ValueError> {
    if let Some(offset) = value.strip_prefix("http-date:") {
        let (sign, time) = offset.split_at_checked(1).unwrap_or(("", ""));
        let parsed = number::duration(time);
        return match (sign, parsed) {
            ("+", Ok(time)) => Ok(RetryAfterText::DateIn(time)),
            ("-", Ok(time)) => Ok(RetryAfterText::DateBefore(time)),
            _ => Err(error(
                format!("`{value}` is not a date"),
                "write `retry-after=http-date:+10s`, or `http-date:-10s` for a date in the past",
            )),
        };
    }
    http_message::header_value(value).map(RetryAfterText::Literal)
}

pub(super) fn header(value: &str) -> Result<(HeaderName, HeaderValue), ValueError> {
    let Some((name, text)) = value.split_once(':') else {
        return Err(error(
            format!("`{value}` is not a header"),
            "write `header=\"Name: value\"`",
        ));
    };
    let name = http_message::header_name(name)?;
    if [CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING].contains(&name) {
        return Err(error(
            format!("a step cannot set the header `{name}`"),
            "remove the header: the gateway sets it",
        ));
    }
    Ok((name, http_message::header_value(text.trim())?))
}

pub(super) fn chance(value: &str) -> Result<f64, ValueError> {
    let percent = value.strip_suffix('%').and_then(|text| text.parse().ok());
    match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
        Some(percent) => Ok(percent / 100.0),
        None => Err(error(
            format!("`{value}` is not a chance"),
            "write a percentage from 0% to 100%, such as `chance=30%`",
        )),
    }
}

/// A value without quotes is returned unchanged.
pub(super) fn unquote(value: &str) -> Cow<'_, str> {
    let quoted = value.strip_prefix('"');
    let Some(quoted) = quoted.and_then(|rest| rest.strip_suffix('"')) else {
        return value.into();
    };
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('t') => text.push('\t'),
            Some(other @ ('"' | '\\')) => text.push(other),
            Some(other) => text.extend(['\\', other]),
            None => text.push('\\'),
        }
    }
    text.into()
}
