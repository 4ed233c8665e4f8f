//! `max_buffered` and `max_buffered_per_client` of `[server]`: maximum size of bodies in memory.

use super::super::file::ServerSection;
use super::super::problem::Findings;
use super::super::source::Span;
use super::bytes;
use crate::request::buffers::BufferBounds;

/// A location is `None` if the key is not set.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'a> {
    pub(super) value: BufferBounds,
    total: Option<&'a Span>,
    per_client: Option<&'a Span>,
}

/// The default of `max_buffered_per_client` is at most half of `max_buffered`, so that one client cannot use more.
pub(super) fn resolve<'a>(section: &'a ServerSection, findings: &mut Findings) -> Bounds<'a> {
    let total = bytes(&section.max_buffered.value);
    let per_client = bytes(&section.max_buffered_per_client.value);
    let value = BufferBounds {
        total,
        per_client: match section.max_buffered_per_client.span {
            Some(_) => per_client,
            None => per_client.min(total / 2),
        },
    };
    let bounds = Bounds {
        value,
        total: section.max_buffered.span.as_ref(),
        per_client: section.max_buffered_per_client.span.as_ref(),
    };
    if let Some(span) = bounds.per_client
        && value.per_client > value.total
        && !findings.was_removed("server.max_buffered")
    {
        let title = format!(
            "`max_buffered_per_client` is {} bytes, which is above `max_buffered` of {} bytes",
            value.per_client, value.total
        );
        let help = "lower `max_buffered_per_client`, or raise `max_buffered`";
        let error = findings.error(span, title, help);
        if let Some(total) = bounds.total {
            error.note(total, "`max_buffered` is set here");
        }
    }
    bounds
}

impl Bounds<'_> {
    /// A body larger than `max_buffered` is always rejected. A body larger than `max_buffered_per_client` is rejected
    /// while more than half of `max_buffered` is in use.
    pub(super) fn check_request(self, max_request: usize, span: &Span, findings: &mut Findings) {
        let BufferBounds { total, per_client } = self.value;
        let (key, bound, set) = if max_request > total {
            ("max_buffered", total, self.total)
        } else if max_request > per_client {
            // The default of `max_buffered_per_client` depends on `max_buffered`, so the error then shows that line.
            let set = self.per_client.or(self.total);
            ("max_buffered_per_client", per_client, set)
        } else {
            return;
        };
        let title = format!(
            "`max_request` is {max_request} bytes, which is above `{key}` of {bound} bytes"
        );
        let help = format!("lower `max_request`, or raise `{key}` in [server]");
        let error = findings.error(span, title, help);
        if let Some(set) = set {
            error.note(set, format!("`{key}` is determined here"));
        }
    }
}
