//! Merges the `RateLimit` headers that an upstream sends with those of the gateway.
//!
//! The members that the upstream sent are copied byte for byte, including unknown parameters. A header that does not
//! parse is dropped, because clients could not parse the gateway's members next to it either; in the dialects `legacy`
//! and `x`, all three are dropped together.
//!
//! The parsing time is linear in the size of the header, which the maximum size of a response head bounds. Only names
//! that can equal a limit name are copied.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::BareItemFromInput;
use sfv::visitor::{
    EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor,
};
use smallvec::SmallVec;
use thiserror::Error;

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
    /// Member names that end with a limit name of the gateway. Only these can equal a name that the gateway writes,
    /// which is a limit name with or without [`PREFIX`].
    names: BTreeSet<String>,
}

#[derive(Debug, Error)]
#[error("a member of the upstream's `RateLimit` header is not a quoted string")]
struct MemberWithoutName;

struct NameCollector<'a> {
    limits: &'a [RouteLimit],
    found: &'a mut BTreeSet<String>,
}

impl RateLimitField {
    /// Returns an empty field if a line does not parse.
    pub(super) fn parse(lines: &[HeaderValue], limits: &[RouteLimit]) -> Self {
        let mut field = Self::default();
        for line in lines.iter().filter(|line| !is_blank(line)) {
            let names = NameCollector {
                limits,
                found: &mut field.names,
            };
            let parser = sfv::Parser::new(line.as_bytes());
            if parser.parse_list_with_visitor(names).is_err() {
                return Self::default();
            }
            if !field.line.is_empty() {
                field.line.extend_from_slice(b", ");
            }
            field.line.extend_from_slice(line.as_bytes());
        }
        field
    }
}

impl<'de> ListVisitor<'de> for NameCollector<'_> {
    type Out = ();
    type Error = MemberWithoutName;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, MemberWithoutName> {
        Ok(self)
    }

    fn finish(self) -> Result<(), MemberWithoutName> {
        Ok(())
    }
}

impl<'de> EntryVisitor<'de> for &mut NameCollector<'_> {
    type Error = MemberWithoutName;

    fn item(self) -> Result<impl ItemVisitor<'de>, MemberWithoutName> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, MemberWithoutName> {
        Err::<Ignored, _>(MemberWithoutName)
    }
}

impl<'de> ItemVisitor<'de> for &mut NameCollector<'_> {
    type Out = ();
    type Error = MemberWithoutName;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, MemberWithoutName> {
        let BareItemFromInput::String(name) = item else {
            return Err(MemberWithoutName);
        };
        let name = name.as_str();
        let collides = self.limits.iter().any(|limit| name.ends_with(&*limit.name));
        if collides && !self.found.contains(name) {
            self.found.insert(name.to_owned());
        }
        Ok(Ignored)
    }
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
