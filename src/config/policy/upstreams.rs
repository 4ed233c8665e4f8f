//! `[upstream.NAME]`: servers, timeouts, retries, circuit breaker, health checks and concurrency limit.
//!
//! Omitted configuration keys have the defaults of the settings types. A default never contradicts a configured value:
//! for example, if the configured `min` is above the default of `max`, `max` is set to `min`.

mod breaker;
mod health;
mod retry;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;

use super::super::file::{ConcurrencySection, ServerEntry, UpstreamSection};
use super::super::located::{Located, Named};
use super::super::problem::Findings;
use super::super::scalar::{HumanDuration, Label, ServerUrl};
use super::super::source::Span;
use super::{count, duration, timeout};
use crate::upstream::{
    BreakerSettings, ConcurrencySettings, HostHeader, Server, Timeouts, Upstream, UpstreamId,
};

/// Default of `slow_start`.
const DEFAULT_SLOW_START: Duration = Duration::from_secs(10);

/// Converts the sections to upstreams, sorted by name. The index of an upstream in the list is its id.
pub(super) fn resolve(
    sections: &Named<Label, UpstreamSection>,
    findings: &mut Findings,
) -> Vec<Arc<Upstream>> {
    let numbered = sections.0.iter().enumerate();
    numbered
        .map(|(id, (name, section))| {
            let upstream = upstream(UpstreamId(id), &name.value.0, &section.value, findings);
            Arc::new(upstream)
        })
        .collect()
}

fn upstream(
    id: UpstreamId,
    name: &str,
    section: &UpstreamSection,
    findings: &mut Findings,
) -> Upstream {
    let servers = section.servers.as_deref().unwrap_or_default();
    check_duplicates(servers, findings);
    let retry = section
        .retry
        .as_ref()
        .map(|retry| retry::resolve(retry, findings));
    let deadline = retry.and_then(|retry| retry.deadline());
    let timeouts = timeouts(section, deadline);
    warn_about_timeouts(section, deadline, findings);
    Upstream {
        id,
        name: name.into(),
        servers: servers
            .iter()
            .filter_map(|entry| server(&entry.value))
            .collect(),
        host: match &section.host {
            Some(host) => host.value.0.clone(),
            None => HostHeader::Preserve,
        },
        timeouts,
        retry,
        breaker: match &section.breaker {
            Some(breaker) => breaker::resolve(breaker, findings),
            None => BreakerSettings::default(),
        },
        health: health::resolve(section, findings),
        slow_start: duration(section.slow_start.as_ref(), DEFAULT_SLOW_START),
        concurrency: section
            .concurrency
            .as_ref()
            .map(|bounds| concurrency(bounds, findings)),
        ca_file: section.ca_file.as_ref().map(|file| file.value.clone()),
    }
}

fn server(entry: &ServerEntry) -> Option<Server> {
    match entry {
        ServerEntry::Url(ServerUrl(server)) => Some(server.clone()),
        ServerEntry::Table(table) => {
            let ServerUrl(server) = table.url.as_ref()?.value.clone();
            Some(Server {
                weight: count(table.weight.as_ref(), server.weight),
                ..server
            })
        }
    }
}

/// Reports a server that is listed twice. This is an error because metrics and the admin API identify a server by its
/// host and port.
fn check_duplicates(servers: &[Located<ServerEntry>], findings: &mut Findings) {
    let mut seen: Vec<(Authority, &Span)> = Vec::new();
    for entry in servers {
        let Some(Server { authority, .. }) = server(&entry.value) else {
            continue;
        };
        match seen.iter().find(|(name, _)| *name == authority) {
            None => seen.push((authority, &entry.span)),
            Some((_, first)) => {
                findings
                    .error(
                        &entry.span,
                        format!("the server `{authority}` is listed twice"),
                        "remove one entry; for a larger share of the requests, write \
                        `{ url = \"…\", weight = 2 }`",
                    )
                    .note(first, "first entry of this server");
            }
        }
    }
}

/// Sets the defaults of the timeouts. If retries have a `deadline`, the default of `first_byte_timeout` is at most half
/// of it, so that time for another attempt remains after a timeout.
fn timeouts(section: &UpstreamSection, deadline: Option<Duration>) -> Timeouts {
    let default = Timeouts::default();
    let first_byte = deadline.map_or(default.first_byte, |deadline| {
        default.first_byte.min(deadline / 2)
    });
    Timeouts {
        connect: timeout(section.connect_timeout.as_ref(), default.connect),
        first_byte: timeout(section.first_byte_timeout.as_ref(), first_byte),
        idle: timeout(section.idle_timeout.as_ref(), default.idle),
        total: section.timeout.as_ref().map(|total| total.value.0),
    }
}

/// Warns if `first_byte_timeout` is not shorter than `deadline`. With such values, the deadline has already passed when
/// `first_byte_timeout` expires, so no other attempt follows.
fn warn_about_timeouts(
    section: &UpstreamSection,
    deadline: Option<Duration>,
    findings: &mut Findings,
) {
    if let (Some(first_byte), Some(deadline)) = (&section.first_byte_timeout, deadline)
        && first_byte.value.0 >= deadline
    {
        findings.warning(
            &first_byte.span,
            "a request is never retried after a `first_byte_timeout`, because `deadline` of `retry` has passed by then",
            format!(
                "set `first_byte_timeout` to less than \"{}\", or raise `deadline` in the `retry` table",
                HumanDuration(deadline)
            ),
        );
    }
}

fn concurrency(section: &ConcurrencySection, findings: &mut Findings) -> ConcurrencySettings {
    let default = ConcurrencySettings::default();
    let ConcurrencySection { min, max, initial } = section;
    for (lower, higher, [below, above]) in [
        (min, max, ["min", "max"]),
        (min, initial, ["min", "initial"]),
        (initial, max, ["initial", "max"]),
    ] {
        if let (Some(lower), Some(higher)) = (lower, higher)
            && lower.value > higher.value
        {
            findings
                .error(
                    &higher.span,
                    format!("`{above}` of `concurrency` is below `{below}`"),
                    format!(
                        "set `{above}` to at least {}, or lower `{below}`",
                        lower.value
                    ),
                )
                .note(&lower.span, format!("`{below}` is {}", lower.value));
            break;
        }
    }
    let [min, max, initial] = [min, max, initial].map(|given| nonzero(given.as_ref()));
    let given = || [min, initial, max].into_iter().flatten();
    let min = min.unwrap_or_else(|| given().fold(default.min, NonZeroU32::min));
    let max = max.unwrap_or_else(|| given().fold(default.max, NonZeroU32::max));
    let initial = initial.unwrap_or_else(|| default.initial.min(max).max(min));
    ConcurrencySettings { min, max, initial }
}

fn nonzero(given: Option<&Located<u32>>) -> Option<NonZeroU32> {
    given.and_then(|given| NonZeroU32::new(given.value))
}

#[cfg(test)]
mod tests;
