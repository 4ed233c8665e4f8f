//! Merges the `RateLimit` headers that an upstream sends with those of the gateway.
//!
//! The members that the upstream sent are copied byte for byte, including unknown parameters. A header that does not
//! parse is dropped, because clients could not parse the gateway's members next to it either; in the dialects `legacy`
//! and `x`, all three are dropped together.
//!
//! The time of a merge is nearly linear in the size of the header, which the maximum size of a response head bounds.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Item, List, ListEntry};
use smallvec::SmallVec;

use super::super::decision::USUAL_LIMITS;
use super::super::stage::RouteLimit;
use crate::clock::Clock;

/// Of the gateway's limit, if the upstream uses the same name.
const PREFIX: &str = "tidegate.";

/// A larger reset value is read as a Unix time (31 years).
const LONGEST_DELTA: u64 = 1_000_000_000;

/// In seconds, as for `Retry-After`.
const LONGEST_RESET: u64 = i32::MAX as u64;

#[derive(Debug, Default)]
pub(super) struct RateLimitField {
    /// All lines, joined with commas. Empty if there is none or one does not parse.
    pub(super) line: BytesMut,
    names: BTreeSet<String>,
}

impl RateLimitField {
    /// Returns an empty field if a line does not parse.
    pub(super) fn parse(lines: &[HeaderValue]) -> Self {
        let mut field = Self::default();
        for line in lines.iter().filter(|line| !is_blank(line)) {
            let Some(names) = member_names(line) else {
                return Self::default();
            };
            field.names.extend(names);
            if !field.line.is_empty() {
                field.line.extend_from_slice(b", ");
            }
            field.line.extend_from_slice(line.as_bytes());
        }
        field
    }
}

/// `None` if the line does not parse, or if a member is not a quoted string, and so has no name.
fn member_names(line: &HeaderValue) -> Option<Vec<String>> {
    let list: List = sfv::Parser::new(line.as_bytes()).parse().ok()?;
    let name = |member| match member {
        ListEntry::Item(Item {
            bare_item: BareItem::String(name),
            ..
        }) => Some(name.into()),
        _ => None,
    };
    list.into_iter().map(name).collect()
}

/// Returns a name for each limit that neither the upstream nor another limit uses. The prefix is repeated if the
/// upstream is a gateway that prefixed its own names.
pub(super) fn distinct_names<'a>(
    limits: &'a [RouteLimit],
    fields: &[&RateLimitField; 2],
) -> SmallVec<[Cow<'a, str>; USUAL_LIMITS]> {
    let mut names = SmallVec::<[Cow<'a, str>; USUAL_LIMITS]>::new();
    for (index, limit) in limits.iter().enumerate() {
        let mut name = Cow::Borrowed(&*limit.name);
        while fields.iter().any(|field| field.names.contains(&*name))
            || names.contains(&name)
            || limits[index + 1..].iter().any(|other| *other.name == *name)
        {
            name = Cow::Owned([PREFIX, &name].concat());
        }
        names.push(name);
    }
    names
}

#[derive(Debug)]
pub(super) struct UpstreamLimit {
    remaining: u64,
    /// In seconds.
    reset: Option<u64>,
}

impl UpstreamLimit {
    /// Returns `None` if a header does not parse or `remaining` is absent.
    pub(super) fn parse(
        [limit, remaining, reset]: &[Vec<HeaderValue>; 3],
        clock: &Clock,
    ) -> Option<Self> {
        // Policies can follow the first number: `100, 100;w=60`.
        if let Some(limit) = limit.first() {
            let number = limit.to_str().ok()?.split([',', ';']).next()?;
            parse_digits(number.trim())?;
        }
        let [remaining] = &remaining[..] else {
            return None;
        };
        let reset = match &reset[..] {
            [] => None,
            [reset] => Some(parse_reset(reset.to_str().ok()?, clock)?),
            _ => return None,
        };
        Some(Self {
            remaining: parse_digits(remaining.to_str().ok()?)?,
            reset,
        })
    }

    pub(super) fn is_tighter_than(&self, remaining: u64, reset: u64) -> bool {
        let tightness = (self.remaining, Reverse(self.reset.unwrap_or_default()));
        tightness < (remaining, Reverse(reset))
    }

    /// Replaces the gateway's three headers. A header that the upstream did not send is removed, because its value
    /// belongs to another limit.
    pub(super) fn write(
        &self,
        headers: &mut HeaderMap,
        names: &[HeaderName; 3],
        [limit, remaining, _]: [Vec<HeaderValue>; 3],
    ) {
        let reset = self.reset.map(HeaderValue::from).into_iter().collect();
        for (name, lines) in names.iter().zip([limit, remaining, reset]) {
            headers.remove(name);
            for line in lines {
                headers.append(name.clone(), line);
            }
        }
    }
}

fn is_blank(line: &HeaderValue) -> bool {
    line.as_bytes().trim_ascii().is_empty()
}

fn parse_digits(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Returns seconds from now, rounded up.
fn parse_reset(text: &str, clock: &Clock) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_late = parse_digits(fraction)? > 0;
    let seconds = parse_digits(whole)?.saturating_add(is_late.into());
    let delta = if seconds > LONGEST_DELTA {
        let now = clock.wall().duration_since(UNIX_EPOCH).ok()?;
        seconds.saturating_sub(now.as_secs())
    } else {
        seconds
    };
    Some(delta.min(LONGEST_RESET))
}

#[cfg(test)]
mod tests;
