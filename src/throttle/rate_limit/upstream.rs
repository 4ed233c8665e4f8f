//! `RateLimit` fields that upstream sends, and how they combine with those of the gateway.
//!
//! Members of upstream stay byte for byte, with parameters that the gateway does not know. A field is replaced if it does
//! not parse as a list of names with parameters (draft 11), or as numbers (`legacy` and `x`): appended members would not
//! parse either.
//!
//! The work is linear in the size of the field, which the limit for response heads bounds. The visitors of `sfv` keep
//! only names that can collide with a name of the gateway, so that a field of 10,000 members allocates nothing for most
//! of them.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::BareItemFromInput;
use sfv::visitor::{
    EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor,
};
use smallvec::SmallVec;
use thiserror::Error;

use super::super::Limit;
use super::super::decision::USUAL_LIMITS;
use crate::clock::Clock;

/// Prefix of a limit's name that upstream uses too.
const PREFIX: &str = "tidegate.";

/// A reset above this is an epoch time: as seconds from now it would be more than 31 years.
const LONGEST_DELTA: u64 = 1_000_000_000;

/// The longest reset in seconds that the gateway writes, as in `Retry-After`.
const LONGEST_RESET: u64 = i32::MAX as u64;

/// The members that upstream sent in `RateLimit` or `RateLimit-Policy`.
#[derive(Debug, Default)]
pub(super) struct Field {
    /// All lines as one; empty if upstream sent none, or none that parse.
    pub(super) line: BytesMut,
    /// Names that are the name of a limit, or end with it.
    names: BTreeSet<String>,
}

/// A member whose bare item is not a string, and thus not a name.
#[derive(Debug, Error)]
#[error("member without a name")]
struct Unnamed;

/// Collects the names of a list that end with the name of a limit.
struct Names<'a> {
    limits: &'a [Arc<Limit>],
    found: &'a mut BTreeSet<String>,
}

impl Field {
    /// Joins the lines of a field. If one does not parse, the field has no members.
    pub(super) fn parse(lines: &[HeaderValue], limits: &[Arc<Limit>]) -> Self {
        let mut field = Self::default();
        for line in lines.iter().filter(|line| !line.is_empty()) {
            let names = Names {
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

impl<'de> ListVisitor<'de> for Names<'_> {
    type Out = ();
    type Error = Unnamed;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Unnamed> {
        Ok(self)
    }

    fn finish(self) -> Result<(), Unnamed> {
        Ok(())
    }
}

impl<'de> EntryVisitor<'de> for &mut Names<'_> {
    type Error = Unnamed;

    fn item(self) -> Result<impl ItemVisitor<'de>, Unnamed> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Unnamed> {
        Err::<Ignored, _>(Unnamed)
    }
}

impl<'de> ItemVisitor<'de> for &mut Names<'_> {
    type Out = ();
    type Error = Unnamed;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, Unnamed> {
        let BareItemFromInput::String(name) = item else {
            return Err(Unnamed);
        };
        let name = name.as_str();
        let collides = self.limits.iter().any(|limit| name.ends_with(&*limit.name));
        if collides && !self.found.contains(name) {
            self.found.insert(name.to_owned());
        }
        Ok(Ignored)
    }
}

/// Returns the name of each limit beside the members of `fields`. A name that is used twice gets [`PREFIX`], more than
/// once if upstream is a gateway that renamed its own limit.
pub(super) fn distinct_names<'a>(
    limits: &'a [Arc<Limit>],
    fields: &[&Field; 2],
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

/// The limit that upstream sent in a dialect with one field for each of limit, remaining and reset.
#[derive(Debug)]
pub(super) struct Tightest {
    remaining: u64,
    /// Seconds from now.
    reset: Option<u64>,
}

impl Tightest {
    /// Parses the lines of the three fields; `None` if one does not parse, or there is no `remaining`.
    pub(super) fn parse(
        [limit, remaining, reset]: &[Vec<HeaderValue>; 3],
        clock: &Clock,
    ) -> Option<Self> {
        // `100, 100;w=60`: the limit that applies, and then policies.
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

    /// Returns whether upstream leaves the client fewer requests than the gateway does, or as many for longer.
    pub(super) fn is_tighter_than(&self, remaining: u64, reset: u64) -> bool {
        let theirs = (self.remaining, Reverse(self.reset.unwrap_or_default()));
        theirs < (remaining, Reverse(reset))
    }

    /// Writes the three fields as upstream `sent` them, except that the reset is in seconds from now. A field that
    /// upstream did not send is removed: it would be that of another limit.
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

fn parse_digits(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Parses seconds from now, or an epoch time in seconds. A fraction is rounded up.
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
