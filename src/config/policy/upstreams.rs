//! `[upstream.NAME]`: servers, timeouts, retries, circuit breaker, health checks and concurrency limit.
//!
//! A default never contradicts a configured value: for example, if the configured `min` is above the default of `max`,
//! `max` is set to `min`.

mod breaker;
mod health;
mod retry;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;

use super::super::Purpose;
use super::super::file::{ConcurrencySection, ServerEntry, UpstreamSection};
use super::super::located::{Located, Named, Setting};
use super::super::problem::Findings;
use super::super::scalar::{Label, ServerUrl, display_duration};
use super::super::source::Span;
use super::files;
use crate::upstream::{ConcurrencySettings, Server, Timeouts, Upstream};

pub(super) fn resolve(
    sections: &Named<Label, UpstreamSection>,
    purpose: Purpose,
    findings: &mut Findings,
) -> Vec<Arc<Upstream>> {
    let sections = sections.entries.iter();
    sections
        .map(|(name, section)| Arc::new(upstream(&name.value, &section.value, purpose, findings)))
        .collect()
}

fn upstream(
    name: &str,
    section: &UpstreamSection,
    purpose: Purpose,
    findings: &mut Findings,
) -> Upstream {
    let entries = section.servers.as_deref().unwrap_or_default();
    check_duplicates(entries, findings);
    let servers: Vec<_> = (entries.iter())
        .filter_map(|entry| server(&entry.value))
        .collect();
    let uses_tls = servers.iter().any(|server| server.tls);
    if let Some(Located { span, .. }) = &section.ca_file
        && !uses_tls
        && !findings.was_removed(&format!("upstream.{name}.servers"))
    {
        findings.warning(
            span,
            "`ca_file` has no effect: no server of this upstream uses TLS",
            "write `https://` in the URLs of the servers, or remove `ca_file`",
        );
    }
    let retry = section
        .retry
        .as_ref()
        .map(|retry| retry::resolve(retry, findings));
    let deadline = retry.and_then(|retry| retry.deadline());
    let timeouts = timeouts(section, deadline);
    if let Some((first_byte, span)) = section.first_byte_timeout.configured() {
        warn_about_first_byte_timeout(first_byte.0, span, deadline, findings);
    }
    Upstream {
        name: name.into(),
        breaker: breaker::resolve(&section.breaker, entries.len(), findings),
        servers,
        host: section.host.0.clone(),
        timeouts,
        retry,
        health: health::resolve(name, section, findings),
        keep_alive: section.keep_alive.0,
        slow_start: section.slow_start.0,
        concurrency: section
            .concurrency
            .as_ref()
            .map(|bounds| concurrency(bounds, findings)),
        ca: (section.ca_file.as_ref())
            .filter(|_| uses_tls)
            .and_then(|file| files::read_ca(file, purpose, findings)),
    }
}

fn server(entry: &ServerEntry) -> Option<Server> {
    match entry {
        ServerEntry::Url(ServerUrl(server)) => Some(server.clone()),
        ServerEntry::Table(table) => {
            let ServerUrl(server) = table.url.clone()?;
            Some(Server {
                weight: table.weight,
                ..server
            })
        }
    }
}

/// Metrics and the admin API identify a server by host and port.
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

/// If retries have a `deadline`, the default of `first_byte_timeout` is at most half of it, so that time for another
/// attempt remains.
fn timeouts(section: &UpstreamSection, deadline: Option<Duration>) -> Timeouts {
    let first_byte = section.first_byte_timeout.value.0;
    Timeouts {
        connect: section.connect_timeout.0,
        first_byte: match (&section.first_byte_timeout.span, deadline) {
            (None, Some(deadline)) => first_byte.min(deadline / 2),
            _ => first_byte,
        },
        idle: section.idle_timeout.0,
        total: section.timeout.as_ref().map(|total| total.0),
    }
}

/// With such values the request ends at the deadline, and no other attempt follows.
pub(super) fn warn_about_first_byte_timeout(
    first_byte: Duration,
    span: &Span,
    deadline: Option<Duration>,
    findings: &mut Findings,
) {
    if let Some(deadline) = deadline
        && first_byte >= deadline
    {
        findings.warning(
            span,
            "a request is never retried after a `first_byte_timeout`, because `deadline` of `retry` has passed by then",
            format!(
                "set `first_byte_timeout` to less than \"{}\", or raise `deadline` in the `retry` table",
                display_duration(deadline)
            ),
        );
    }
}

fn concurrency(section: &ConcurrencySection, findings: &mut Findings) -> ConcurrencySettings {
    let ConcurrencySection { min, max, initial } = section;
    for (lower, higher, [below, above]) in [
        (min, max, ["min", "max"]),
        (min, initial, ["min", "initial"]),
        (initial, max, ["initial", "max"]),
    ] {
        if let (Some((lower, of_lower)), Some((higher, of_higher))) =
            (lower.configured(), higher.configured())
            && lower > higher
        {
            findings
                .error(
                    of_higher,
                    format!("`{above}` of `concurrency` is below `{below}`"),
                    format!("set `{above}` to at least {lower}, or lower `{below}`"),
                )
                .note(of_lower, format!("`{below}` is {lower}"));
            break;
        }
    }
    let configured = || {
        [min, initial, max]
            .into_iter()
            .filter_map(|key| Some(*key.configured()?.0))
    };
    let value = |key: &Setting<NonZeroU32>, default: NonZeroU32| match key.span {
        Some(_) => key.value,
        None => default,
    };
    let min = value(min, configured().fold(min.value, NonZeroU32::min));
    let max = value(max, configured().fold(max.value, NonZeroU32::max));
    let initial = value(initial, initial.value.min(max).max(min));
    ConcurrencySettings { min, max, initial }
}

#[cfg(test)]
mod tests;
